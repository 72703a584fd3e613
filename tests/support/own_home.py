"""A home for each test, and folders for the caches of Python and tools: tests write neither into the user's home nor into the
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

#: Each would lead past `HOME`.
_ELSEWHERE = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "MPLCONFIGDIR")
#: The folder with homes. Processes that the tests start have theirs in it, so that the first process removes all.
_FOLDER = "TPU_TEST_HOMES"
_numbers = itertools.count()
_settings = {}


def enter():
    """Changes the environment of this process, and of those that it starts."""
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
    os.environ["NUMBA_CACHE_DIR"] = str(build / "numba")  # not beside the sources
    os.environ.setdefault("YOWASP_CACHE_DIR", str(build / "yowasp"))  # compiled in minutes
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before a test imports onnxruntime by itself
    os.environ[_FOLDER] = tempfile.mkdtemp(prefix="tpu-test-homes-", dir=os.environ.get(_FOLDER))
    next_home()


def next_home():
    """Makes an empty home, and makes it this process's."""
    os.environ["HOME"] = os.path.join(os.environ[_FOLDER], str(next(_numbers)))
    os.mkdir(os.environ["HOME"])


def for_installing():
    """Environment variables for tests that install packages: the user's settings of pip, and caches that stay."""
    return dict(_settings)


def leave():
    """Removes all homes."""
    shutil.rmtree(os.environ[_FOLDER], ignore_errors=True)
