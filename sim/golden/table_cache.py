"""A cache of computed function tables on disk, shared by processes (:mod:`sim.data.disk_cache`)."""

import functools
import hashlib
import inspect
import platform
import sys

import numpy as np

from ..data.disk_cache import DiskCache

__all__ = ["load", "store"]

_CACHE = DiskCache("tables")
_MOST_BYTES = 32_000_000  # 2000 tables


@functools.cache
def _version(modules):
    """Returns the other data that tables depend on, besides the function: the source of the modules that compute them, numpy's
    version, the processor."""
    sources = (inspect.getsource(sys.modules[module]) for module in modules)
    return "\n".join([np.__version__, platform.machine(), *sources]).encode()


def _digest(key, modules):
    return hashlib.sha256(repr(key).encode() + b"\0" + _version(modules)).digest()


def load(key, modules, size):
    """Returns the `size` uint16 numbers that :func:`store` wrote, or None."""
    content = _CACHE.load(_digest(key, modules))
    return np.frombuffer(content, "<u2").astype(np.uint16) if content is not None and len(content) == 2 * size else None


def store(key, modules, words):
    """Stores uint16 numbers under a key, identified by its `repr`, for this version of some modules (their names)."""
    _CACHE.store(_digest(key, modules), np.asarray(words).astype("<u2").tobytes(), _MOST_BYTES)
