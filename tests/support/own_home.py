"""A private home for each test, and cache folders for Python and tools, so that tests change neither the user's home nor the
environment."""

import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path

import platformdirs

from amaranth_tpu.hw.tools.process import build_directory

__all__ = ["enter", "for_installing", "leave", "next_home"]

#: Each of these variables would override `HOME`.
_ELSEWHERE = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
#: The folder of all homes. Child processes use it too, so that the first process removes everything.
_FOLDER = "TPU_TEST_HOMES"
_numbers = itertools.count()
_settings = {}


def enter():
    """Sets the environment of this process and its children: private homes, and cache folders in the build folder."""
    build = build_directory()  # before HOME changes, which it may be in
    # Of pip, which may name another index; it has them in one of these places.
    folder = Path(platformdirs.user_config_dir("pip", appauthor=False))
    for path in (folder / "pip.conf", Path.home() / ".pip" / "pip.conf"):
        if path.exists():
            _settings.setdefault("PIP_CONFIG_FILE", str(path))
    # pip asks for the version of a Rust compiler, and rustup answers with a file in the home.
    _settings["RUSTUP_HOME"] = str(build / "rustup")
    _settings.update(UV_CACHE_DIR=str(build / "uv"), PIP_CACHE_DIR=str(build / "pip"), UV_SYSTEM_CERTS="true")
    for name in _ELSEWHERE:
        os.environ.pop(name, None)
    # Bytecode too: a file cut short by a full disk would stay in the environment for good.
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(build / "pycache")
    # Without bytecode, each of the hundreds of processes that tests start compiles all of its modules, which takes seconds.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["NUMBA_CACHE_DIR"] = str(build / "numba")  # not in the source folders
    os.environ["MPLCONFIGDIR"] = str(build / "matplotlib")  # in an empty home, each process searches all fonts, for seconds
    os.environ.setdefault("YOWASP_CACHE_DIR", str(build / "yowasp"))  # takes minutes to compile
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before a test imports onnxruntime
    os.environ[_FOLDER] = tempfile.mkdtemp(prefix="tpu-test-homes-", dir=os.environ.get(_FOLDER))
    next_home()


def next_home():
    """Makes an empty home directory, and sets HOME to it."""
    os.environ["HOME"] = os.path.join(os.environ[_FOLDER], str(next(_numbers)))
    os.mkdir(os.environ["HOME"])


def for_installing():
    """Returns environment variables for tests that install packages: the user's pip settings, and persistent caches."""
    return dict(_settings)


def leave():
    """Removes all private home directories."""
    shutil.rmtree(os.environ[_FOLDER], ignore_errors=True)
