"""Tests that `pip install` installs hardware and simulation with their data files, in one package."""

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from amaranth_tpu.hw.verilog import header
from amaranth_tpu.scripts import release
from command import captured

pytestmark = pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="pip builds packages with setuptools")

ROOT = Path(__file__).parents[2]
#: Builds with the code that pip calls, but without pip's copy of the sources.
_BUILD = "import setuptools; setuptools.setup(script_args=['-q', 'egg_info', '-e', '{0}', 'build_py', '-d', '{0}'])"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    done = captured([sys.executable, "-W", "ignore", "-c", _BUILD.format(folder)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def test_installation_is_one_package(installed):
    """The installation has one top-level package, because general names such as `hw` would collide with other packages. It
    includes the licence."""
    assert sorted(path.name for path in installed.iterdir()) == ["amaranth_tpu", "amaranth_tpu.egg-info"]
    metadata = (installed / "amaranth_tpu.egg-info" / "PKG-INFO").read_text()
    assert "\nLicense: Apache-2.0\n" in metadata and "\nLicense-File: LICENSE\n" in metadata


@pytest.mark.slow
def test_runs_from_an_empty_folder(installed, tmp_path):
    """The installed package runs a shipped network in an empty folder, without the source tree."""
    command = (installed / "amaranth_tpu.egg-info" / "entry_points.txt").read_text().partition("tpu = ")[2].split(":")[0]
    code = f"import amaranth_tpu.hw.config as module; from {command} import main; print(module.__file__, flush=True); main()"
    done = captured(
        [sys.executable, "-c", code, "run", "--model", "d", "--simulator", "golden", "--images", "2", "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
    )
    assert done.returncode == 0, done.stderr
    module, figures = done.stdout.splitlines()
    assert Path(module).is_relative_to(installed) and json.loads(figures)["images"] == 2


def test_named_extras_exist():
    """Every extra that a text or script names exists, and the extra for training needs no deep-learning framework."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml")]
    for folder in ("hw", "sim", "scripts"):
        sources += [path for kind in ("*.py", "*.md", "*.sh") for path in (ROOT / folder).rglob(kind)]
    named = [
        (path.name, name)
        for path in sources
        for names in re.findall(r"(?:'\.|amaranth-tpu)\[([a-z,]+)\]", path.read_text())
        for name in names.split(",")
    ]
    assert len(named) > 5 and not [one for one in named if one[1] not in extras], named
    assert not [package for package in extras["train"] if re.match(r"torch|onnxruntime", package)]


def test_every_file_is_installed(installed):
    for folder in ("hw", "sim", "scripts"):
        expected = {
            path.relative_to(ROOT)
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".sh"
        }
        places = {path: Path("tpu") / path.name if path.parent == Path("sim/short") else path for path in expected}
        missing = sorted(str(path) for path, place in places.items() if not (installed / "amaranth_tpu" / place).exists())
        assert not missing, missing


def test_every_file_is_in_the_source_distribution(installed):
    """The list of files that setuptools packs has all tests, scripts and sources."""
    packed = {*(installed / "amaranth_tpu.egg-info" / "SOURCES.txt").read_text().splitlines()}
    expected = {
        str(path.relative_to(ROOT))
        for folder in ("hw", "sim", "scripts", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert not expected - packed and {"pyproject.toml", "README.md", "CONTRIBUTING.md", "LICENSE"} <= packed
    assert not [name for name in packed if name.endswith(".pyc")]


def test_version_is_the_same_everywhere():
    """Project, FuseSoC core files and changelog have the same version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cores = [*(ROOT / "hw").rglob("*.core"), *(ROOT / "sim").rglob("*.core")]
    named = {path.name: re.search(r"^name: .*:(.+)$", path.read_text(), re.M)[1] for path in cores}
    assert len(named) >= 3 and set(named.values()) == {version}, named
    assert re.search(r"^## (.*)$", (ROOT / "scripts/docs/changelog.md").read_text(), re.M)[1] == version


def test_sums_of_a_release(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "verilog_text", lambda config, cores, latency, name: f"{config} {cores}")
    for name, data in release.release_files("9.8", {"a.whl": b"wheel"}).items():
        (tmp_path / name).write_bytes(data)
    assert len({path.read_bytes() for path in tmp_path.glob("amaranth-tpu-9.8-*.v")}) == len(release.CORES) == 5
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert captured(check, cwd=tmp_path).stdout.count(": OK") == 6
    (tmp_path / "a.whl").write_bytes(b"Wheel")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1


@pytest.mark.slow
def test_packages_of_a_release():
    if importlib.util.find_spec("build") is None or importlib.util.find_spec("twine") is None:
        pytest.skip("needs the extra release")
    packages = release.packages()
    assert sorted(Path(name).suffix for name in packages) == [".gz", ".whl"]
    wheel = next(data for name, data in packages.items() if name.endswith(".whl"))
    assert zipfile.ZipFile(io.BytesIO(wheel)).read("amaranth_tpu/hw/verilog/commit.txt").decode() == header.source()


def test_commit_of_a_release(tmp_path, monkeypatch):
    """An installed package has the commit of its release, if it is one."""
    monkeypatch.setattr(header, "_ROOT", tmp_path)
    monkeypatch.setattr(header, "RELEASED", tmp_path / "commit.txt")
    assert header.source() == ""
    header.RELEASED.write_text("commit 12ab")
    assert header.source() == "commit 12ab"
