"""Function tables that were computed once, kept on disk for other processes.

A file holds a digest and a table. It is written whole or not at all; what is cut, changed, of another version or not readable
counts as absent, and so does all of the cache where its folder can't be written. Nothing in a file is ever executed.
"""

import contextlib
import functools
import hashlib
import inspect
import os
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np

__all__ = ["load", "store"]

_DIGEST = 32  # bytes of a SHA-256
_MOST_FILES = 2000  # 16 KiB each; when there are more, the older half goes


@functools.cache
def _version(modules):
    """What tables depend on besides the function: the text of the modules that compute them, numpy, the processor."""
    sources = (inspect.getsource(sys.modules[module]) for module in modules)
    return "\n".join([np.__version__, platform.machine(), *sources]).encode()


def _place(key, modules):
    from amaranth_tpu.hw.tools.process import build_directory

    digest = hashlib.sha256(repr(key).encode() + b"\0" + _version(modules)).digest()
    return build_directory() / "tables" / f"{digest.hex()[:40]}.table", digest


def load(key, modules, size):
    """The `size` uint16 that :func:`store` wrote, or None."""
    with contextlib.suppress(OSError, RuntimeError):
        path, digest = _place(key, modules)
        with open(path, "rb") as file:
            content = file.read(_DIGEST + 2 * size + 1)  # a longer file is not one of these
        if len(content) == _DIGEST + 2 * size and content[:_DIGEST] == _seal(digest, content[_DIGEST:]):
            return np.frombuffer(content, "<u2", offset=_DIGEST).astype(np.uint16)
    return None


def store(key, modules, words):
    """Keeps uint16 numbers under a key, whose `repr` tells it from others, for this version of some modules (their names)."""
    with contextlib.suppress(OSError, RuntimeError):
        path, digest = _place(key, modules)
        path.parent.mkdir(exist_ok=True)
        content = np.asarray(words).astype("<u2").tobytes()
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
            try:
                file.write(_seal(digest, content) + content)
                file.close()
                os.replace(file.name, path)
            except OSError:
                Path(file.name).unlink(missing_ok=True)
                raise
        _forget(path.parent)


def _seal(digest, content):
    return hashlib.sha256(digest + content).digest()


def _forget(folder):
    """Deletes the older half of the files, if there are too many."""
    if len(os.listdir(folder)) > _MOST_FILES:
        files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in files[: len(files) // 2]:
            path.unlink(missing_ok=True)
