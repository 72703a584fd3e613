"""Tests that `pip install` installs hardware and simulation with their data files, in one package."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="pip builds packages with setuptools")

ROOT = Path(__file__).parents[2]
#: Builds with the code that pip calls, but without pip's copy of the sources.
_BUILD = "import setuptools; setuptools.setup(script_args=['-q', 'egg_info', '-e', '{0}', 'build_py', '-d', '{0}'])"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _BUILD.format(folder)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
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
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--model", "d", "--simulator", "golden", "--images", "2", "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
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
