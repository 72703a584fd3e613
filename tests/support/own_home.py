"""The environment of the tests: variables from one table, and a private home for each test. Tests do not depend on the caller's
settings, and change neither the user's home nor the Python environment."""

import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import platformdirs

from amaranth_tpu.hw.tools.process import build_directory

#: The folder of all homes. Child processes use it too, so that the first process removes everything.
_FOLDER = "TPU_TEST_HOMES"
#: Settings for tests that install packages, as JSON: child processes no longer see the caller's home and variables.
_INSTALLING = "TPU_TEST_INSTALLING"
#: The caller's variables that tests see: places of programs, libraries and files, and what the tests themselves read.
_KEPT = re.compile(
    rf"PATH|LD_LIBRARY_PATH|LD_PRELOAD|TMPDIR|PYTEST_XDIST_\w+|YOWASP_CACHE_DIR|{_FOLDER}|{_INSTALLING}"
    r"|TPU_(BUILD|BUILD_SECONDS|DATA|SEED|TESTFLOAT)"
)
#: Variables with the same value for every caller. All others are removed.
_FIXED = {
    "LANG": "C.UTF-8",
    "TERM": "xterm",
    "ORT_DISABLE_TELEMETRY": "1",  # before a test imports onnxruntime
    "TPU_PROGRAMS_MB": "0",  # tests patch the compiler, so a program cached by another test must not be reused
    "TPU_PROGRESS": "0",  # on a loaded machine, lines of progress would appear in tests that compare the whole standard error
}
#: Variables by which pip and uv reach their index.
_NETWORK = re.compile(r"(?i:\w+_proxy)|(PIP|UV)_\w+|SSL_CERT_\w+|(CURL|REQUESTS)_CA_BUNDLE")
_numbers = itertools.count()


def enter():
    """Sets the environment of this process and its children: the table's variables, private homes, and cache folders in the build
    folder."""
    build = build_directory()  # before HOME changes, which it may be in
    os.environ.setdefault(_INSTALLING, json.dumps(_settings(build)))
    for name in [name for name in os.environ if not _KEPT.fullmatch(name)]:
        del os.environ[name]
    if re.search(r"\s", os.environ.get("TMPDIR", "")):  # make and LD_PRELOAD do not support spaces
        del os.environ["TMPDIR"]
        tempfile.tempdir = None
    os.environ.update(_FIXED)
    os.umask(0o022)
    # Bytecode too: a file cut short by a full disk would stay in the environment for good.
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(build / "pycache")
    # Without bytecode, each of the hundreds of processes that tests start compiles all of its modules, which takes seconds.
    sys.dont_write_bytecode = False
    os.environ["NUMBA_CACHE_DIR"] = str(build / "numba")  # not in the source folders
    os.environ["MPLCONFIGDIR"] = str(build / "matplotlib")  # in an empty home, each process searches all fonts, for seconds
    os.environ.setdefault("YOWASP_CACHE_DIR", str(build / "yowasp"))  # takes minutes to compile
    os.environ[_FOLDER] = tempfile.mkdtemp(prefix="tpu-test-homes-", dir=os.environ.get(_FOLDER))
    next_home()


def next_home():
    os.environ["HOME"] = os.path.join(os.environ[_FOLDER], str(next(_numbers)))
    os.mkdir(os.environ["HOME"])


def for_installing():
    """Returns environment variables for tests that install packages: the user's pip settings, and persistent caches."""
    return json.loads(os.environ[_INSTALLING])


def _settings(build):
    found = {name: value for name, value in os.environ.items() if _NETWORK.fullmatch(name)}
    # Of pip, which may name another index; it has them in one of these places.
    folder = Path(platformdirs.user_config_dir("pip", appauthor=False))
    for path in (folder / "pip.conf", Path.home() / ".pip" / "pip.conf"):
        if path.exists():
            found.setdefault("PIP_CONFIG_FILE", str(path))
    # pip asks for the version of a Rust compiler, and rustup answers with a file in the home.
    caches = {"RUSTUP_HOME": str(build / "rustup"), "UV_CACHE_DIR": str(build / "uv"), "PIP_CACHE_DIR": str(build / "pip")}
    return found | caches | {"UV_SYSTEM_CERTS": "true"}


def leave():
    shutil.rmtree(os.environ[_FOLDER], ignore_errors=True)
