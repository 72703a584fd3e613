"""Tests of the tests' own environment (`tests/support/own_home.py`): it does not depend on the caller's, and the tests write
neither to the user's home nor to their own Python environment."""

import os
import re
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from command import captured

ROOT = Path(__file__).parents[1]
#: Tests of programs that write bytecode, fonts, compiled functions or a device id, and one whose files are truncated.
_TESTS = (
    "scripts/cli/test_train_errors.py::test_a_full_disk[--log-l]",
    "scripts/test_pictures.py::test_labels_do_not_collide",
    "sim/frontend/test_upsampling.py::test_residual_of_pixels",
)
#: Variables of the running tests that would hide a missing fixture.
_OF_TESTS = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "ORT_DISABLE_TELEMETRY")


def files(folder):
    """Returns {path: (bytes, time of modification in ns)} of all files in the folder."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(place, name))
            found[os.path.relpath(os.path.join(place, name), folder)] = status.st_size, status.st_mtime_ns
    return found


@pytest.mark.slow
def test_tests_leave_home_and_environment_alone(tmp_path):
    """A subset of tests leaves the home directory and the installed packages unchanged, and writes no bytecode into the
    packages."""
    package = find_spec("tensorboardX")
    if package is None:
        pytest.skip("tensorboardX is not installed")
    installed = tmp_path / "installed"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(package.origin).parent, installed / "tensorboardX", ignore=ignored)
    (tmp_path / "home").mkdir()
    # The last one has the functions that numba compiles.
    folders = tmp_path / "home", installed, sysconfig.get_paths()["purelib"], ROOT / "sim" / "golden"
    environment = {name: value for name, value in os.environ.items() if name not in _OF_TESTS}
    environment |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(installed)}

    def run_pytest(*words):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        done = captured(command, cwd=ROOT, env=environment, timeout=300)
        assert done.returncode == 0, done.stdout

    # Python writes the bytecode of pytest before any code of a test runs, unless the installation has written it.
    run_pytest("--collect-only", str(ROOT / "tests" / "test_size.py"))
    before = [files(folder) for folder in folders]
    run_pytest(*(str(ROOT / "tests" / test) for test in _TESTS))
    for folder, old in zip(folders, before):
        new = files(folder)
        changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        assert not changed, f"{len(changed)} files of {folder} are new or changed: {changed[:5]}"


def test_processes_of_tests_keep_bytecode(tmp_path):
    """Tests and the processes that they start write bytecode to the build folder, even if the environment disables bytecode."""
    script = "import sys, own_home; own_home.enter(); own_home.leave(); print(sys.dont_write_bytecode)"
    script += "; import subprocess; subprocess.run([sys.executable, '-c', 'import sys; print(sys.dont_write_bytecode)'])"
    environment = os.environ | {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT / "tests" / "support"),
        "PYTHONUNBUFFERED": "1",
    }
    done = captured([sys.executable, "-c", script], env=environment, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_environment_does_not_depend_on_the_callers(tmp_path):
    """Tests see the same variables, file permissions and terminal in every environment, except for a few places."""
    script = "import os, own_home; own_home.enter(); own_home.leave(); print(sorted(os.environ.items()), os.umask(0))"
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "tests" / "support"), "HOME": str(tmp_path)}
    bare |= {"TPU_BUILD": str(tmp_path), "TPU_TEST_HOMES": str(tmp_path), "TPU_TEST_INSTALLING": "{}"}
    hostile = {"TERM": "dumb", "COLUMNS": "40", "LINES": "3", "NO_COLOR": "1", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
    hostile |= {"LANG": "tr_TR.UTF-8", "LC_ALL": "C", "PYTEST_ADDOPTS": "-x", "MAKEFLAGS": "-j", "CFLAGS": "-O9", "CXX": "false"}
    hostile |= {"TMPDIR": "a folder", "TPU_PROGRESS": "1", "TPU_PROGRAMS_MB": "9", "XDG_CACHE_HOME": "/", "OMP_NUM_THREADS": "3"}
    seen = set()
    for given, mask in ({}, 0o022), (hostile, 0o077):
        command = [sys.executable, "-c", script]
        done = captured(command, env=bare | given, umask=mask, check=True)
        seen.add(done.stdout.replace(_homes(done.stdout), ""))
    assert len(seen) == 1


def _homes(text):
    return re.search(r"tpu-test-homes-\w+", text)[0]
