"""A cache of compiled programs on disk (:mod:`sim.data.disk_cache`), so that all commands share the result of one search.

A file has the choices of the search and the encoded instructions, as JSON and arrays in an .npz file. It has no weights: their
images are built each time a program is loaded.
"""

import hashlib
import io
import json
import os
from dataclasses import asdict, astuple, fields, is_dataclass

import numpy as np

from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.verilog.header import package_version

from ..data.disk_cache import DiskCache
from ..data.printable import printable
from ..data.source_digest import source_digest
from .image import Code
from .program import Cost

__all__ = ["content_of", "digest_of", "key_of", "load", "most_bytes", "store"]

_CACHE = DiskCache("programs")
_VARIABLE, _MOST_MB = "TPU_PROGRAMS_MB", 256

_FOREIGN = "name", "origin", "preprocess", "rounded"  # fields of a graph that do not affect the program


def most_bytes():
    """Returns the size limit of the cache in bytes, from `TPU_PROGRAMS_MB`; 0 disables the cache."""
    text = os.environ.get(_VARIABLE, str(_MOST_MB))
    if not (text.isascii() and text.isdecimal()):
        raise ToolError(
            f"{_VARIABLE}={printable(text, 40)} is not a whole number of megabytes; 0 disables the cache of compiled programs"
        )
    return int(text) * 1_000_000


def key_of(graph, config, *options):
    """Returns the cache key of a program: the digest of the graph's content and the options."""
    return digest_of(astuple(config), *options, content_of(graph))


def digest_of(*values):
    """Returns the SHA-256 of values and of the version of the code."""
    digest = hashlib.sha256()
    _add(digest, [package_version(), source_digest(), *values])
    return digest.digest()


def content_of(graph):
    """Returns the fields of a graph that determine its results, by name."""
    return {one.name: getattr(graph, one.name) for one in fields(graph) if one.name not in _FOREIGN}


def _add(digest, value):
    """Adds a value to a digest, recursively. Different values, or the same values at different positions, give different
    digests."""
    if isinstance(value, (bytes, np.ndarray)):
        array = value if isinstance(value, np.ndarray) else np.frombuffer(value, np.uint8)
        digest.update(f"array {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    elif is_dataclass(value):
        _add(digest, [type(value).__name__, *(getattr(value, one.name) for one in fields(value))])
    elif isinstance(value, dict):
        _add(digest, [part for entry in value.items() for part in entry])
    elif isinstance(value, (list, tuple)):
        digest.update(f"sequence {len(value)} ".encode())
        for part in value:
            _add(digest, part)
    else:
        text = repr(value)
        digest.update(f"{len(text)} {text}".encode())


def load(key):
    """Returns the number of the variant and the :class:`Code` stored under a key. Returns None if nothing is stored under the
    key."""
    content = _CACHE.load(key)
    if content is None:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        plain, words = json.loads(arrays["plain"].tobytes()), arrays["words"].tobytes()
        others = {"image": tuple(arrays["image"].tolist()), "places": arrays["places"]}
    number, cost, blocks, plans = (plain.pop(name) for name in ("variant", "cost", "blocks", "plans"))
    others |= {"cost": Cost(**cost), "blocks": tuple(map(tuple, blocks)), "plans": tuple(plans)}
    return number, Code(words=words, **others, **plain)


def store(key, variant, code):
    """Stores a program under a key. Deletes the oldest files beyond `TPU_PROGRAMS_MB`."""
    plain, file = {"variant": variant, **vars(code), "cost": asdict(code.cost)}, io.BytesIO()
    words, image, places = (plain.pop(name) for name in ("words", "image", "places"))
    text = json.dumps(plain, default=int).encode()  # converts numpy's integers
    first, second = (np.frombuffer(data, np.uint8) for data in (text, words))
    np.savez_compressed(file, plain=first, words=second, places=places, image=np.array(image, np.int64))
    _CACHE.store(key, file.getvalue(), most_bytes())
