"""A cache on disk for computed function tables, shared by processes. It uses :mod:`sim.data.disk_cache`."""

import functools
import hashlib
import inspect
import platform
import sys

import numpy as np

from ..data.disk_cache import DiskCache

__all__ = ["load", "store"]

_CACHE = DiskCache("tables")
_MOST_BYTES = 32_000_000  # about 2000 tables


@functools.cache
def _version(modules):
    """Returns the version of the tables: the source code of the modules that compute them, numpy's version, and the processor."""
    sources = (inspect.getsource(sys.modules[module]) for module in modules)
    return "\n".join([np.__version__, platform.machine(), *sources]).encode()


def _digest(key, modules):
    return hashlib.sha256(repr(key).encode() + b"\0" + _version(modules)).digest()


def load(key, modules, size):
    """Returns the `size` uint16 numbers stored under `key` by :func:`store`, or None. `modules` are the names of the modules that
    compute the numbers."""
    content = _CACHE.load(_digest(key, modules))
    return np.frombuffer(content, "<u2").astype(np.uint16) if content is not None and len(content) == 2 * size else None


def store(key, modules, words):
    """Stores uint16 numbers under `key`, which is identified by its `repr`. The entry is valid for the current version of
    `modules`, the names of the modules that compute the numbers."""
    _CACHE.store(_digest(key, modules), np.asarray(words).astype("<u2").tobytes(), _MOST_BYTES)
