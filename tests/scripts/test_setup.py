"""Tests that `scripts/setup.sh`, with a fake pip, keeps a working environment from any working directory."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Records the packages to install.
_PIP = """
import os, sys, time
if sys.argv[1] == "install":
    if "PIP_FAILS" in os.environ:
        sys.exit("no network")
    time.sleep(0.2)
    with open(os.environ["PIP_LOG"], "a") as log:
        log.write(sys.argv[-1] + "\\n")
"""
ALL = ["uv", ".[test]", "mlxtend>=0.23"]


class Project:
    """A folder with `setup.sh` and an environment whose pip is the fake one."""

    def __init__(self, folder):
        self.folder, self.log = folder, folder / "pip.log"
        (folder / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "setup.sh", folder / "scripts")
        (folder / "pyproject.toml").write_text("[project]\n")
        self.packages = new_environment(folder / ".venv")
        (self.packages / "pip").mkdir()
        (self.packages / "pip" / "__main__.py").write_text(_PIP)
        for name in ("cocotb", "numpy", "extra"):
            (self.packages / f"{name}.py").touch()

    def start(self, folder=None, path=(), **environment):
        path = os.pathsep.join([*map(str, path), os.environ["PATH"]])
        return subprocess.Popen(
            ["bash", f"{folder or self.folder}/scripts/setup.sh"],
            env=os.environ | {"PATH": path, "PIP_LOG": str(self.log)} | environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *given, **environment):
        process = self.start(*given, **environment)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0, said
        return said

    def installed(self):
        """Returns the requests to the fake pip since the last call."""
        found = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found


def new_environment(folder):
    venv.create(folder, symlinks=True)
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "a b")


def _active(project):
    return {"path": [project.folder / ".venv" / "bin"], "VIRTUAL_ENV": str(project.folder / ".venv")}


def _in_another(project):
    new_environment(project.folder / "other")
    return {"path": [project.folder / "other" / "bin"], "VIRTUAL_ENV": str(project.folder / "other")}


def _through_a_link(project):
    (project.folder.parent / "link").symlink_to(project.folder)
    return {"folder": project.folder.parent / "link"}


def _older_stamp(project):
    (project.folder / ".venv" / "place").write_text(f"3.9.1 /usr/bin/python3 {project.folder}\n")
    return {}


def _path_of_packages(project):
    return {"PYTHONPATH": str(project.folder / "nowhere"), "PYTHONHOME": str(project.folder)}


def test_working_environment_is_kept(project):
    """Further calls in other situations (active environment, symbolic link, older stamp) keep the environment's files and the
    user's packages, and install nothing."""
    project.run()
    assert project.installed() == ALL
    before = {path: path.lstat().st_ino for path in (project.folder / ".venv").rglob("*")}
    for situation in (_active, _in_another, _through_a_link, _older_stamp, _path_of_packages):
        assert not project.run(**situation(project)) and not project.installed(), situation
        assert {path: path.lstat().st_ino for path in before if path.name != "place"}.items() <= before.items(), situation


def test_changed_requirements_are_installed(project):
    """If the requirements changed, the script installs them into the existing environment, even if that environment runs the
    script."""
    project.run()
    (project.folder / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    project.installed()
    project.run(**_active(project))
    assert project.installed() == ALL and (project.packages / "extra.py").exists()


def test_twice_at_once(project):
    processes = [project.start(), project.start()]
    said = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert project.installed() == ALL


def test_an_installation_that_was_interrupted(project):
    """After an interrupted installation, packages with missing files are removed and the others stay."""
    for name, files in (("whole", ["whole.py,,0"]), ("cut", ["cut.py,,7"]), ("lost", ["lost/a.py,,0"]), ("half", None)):
        (project.packages / f"{name}.py").touch()
        folder = project.packages / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        if files:
            (folder / "RECORD").write_text("\n".join([*files, f"{folder.name}/METADATA,,"]))
    project.run()  # the mark is not there
    assert len(list(project.packages.glob("*.dist-info"))) == 4
    (project.folder / ".venv" / "installing").touch()
    project.installed()
    project.run()
    assert [path.name for path in project.packages.glob("*.dist-info")] == ["whole-1.0.dist-info"]
    assert project.installed() == ALL and not (project.folder / ".venv" / "installing").exists()


@pytest.mark.parametrize("name", ["a$b", "a:b"])
def test_a_path_that_python_does_not_support(project, name):
    moved = project.folder.rename(project.folder.with_name(name))
    process = project.start(moved)
    assert process.communicate(timeout=60)[1].startswith(f"setup: the path {moved} contains $ or :, which Python's installer")
    assert process.returncode == 1 and project.installed() == []


def test_failed_installation_is_repeated(project):
    """After a failed installation, the next call installs again."""
    process = project.start(PIP_FAILS="1")
    assert "no network" in process.communicate(timeout=60)[1] and process.returncode == 1
    project.run()
    assert project.installed() == ALL


@pytest.mark.slow
@pytest.mark.parametrize("situation", ["unfinished", "moved", "without Python"])
def test_broken_environment_is_made_again(project, situation):
    """An environment that is unfinished, moved or without Python is made again with an interpreter from outside. The fake pip is
    absent here, so nothing is downloaded."""
    project.run()
    if situation == "unfinished":
        (project.folder / ".venv" / "unfinished").touch()
    elif situation == "moved":
        project.folder = project.folder.rename(project.folder.parent / "elsewhere")
    else:
        for path in (project.folder / ".venv" / "bin").glob("python*"):
            path.unlink()
    process = project.start(**_active(project), PIP_NO_INDEX="1", UV_OFFLINE="1")
    said = process.communicate(timeout=300)[1]
    assert "making it anew" in said and "making .venv: " in said and process.returncode == 1, said
    environment = project.folder / ".venv"
    assert (environment / "place").read_text() == f"{project.folder}\n" and (environment / "installing").exists()
    assert not list(environment.rglob("extra.py")) and not (environment / "unfinished").exists()
