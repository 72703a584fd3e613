"""A cache of compiled programs on disk (:mod:`sim.data.disk_cache`), so that all commands share the result of one search.

A file has the choices of the search and the encoded instructions, as JSON and arrays in an .npz file. It has no weights: their
images are built each time a program is loaded.

A second cache has an empty file for each program that a model of the core has checked (:mod:`sim.host.program_check`).
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

__all__ = ["content_of", "key_of", "load", "note_checked", "store", "was_checked"]

_CACHE, _CHECKS = DiskCache("programs"), DiskCache("checks")
_CHECK_BYTES = 1 << 18  # of all files of `_CHECKS`
_VARIABLE, _MOST_MB = "TPU_PROGRAMS_MB", 256

_FOREIGN = "name", "origin", "preprocess", "rounded"  # fields of a graph that do not affect the program


def _most():
    """Returns the size limit of the cache in bytes, from `TPU_PROGRAMS_MB`; 0 disables the cache."""
    text = os.environ.get(_VARIABLE, str(_MOST_MB))
    if not (text.isascii() and text.isdecimal()):
        raise ToolError(
            f"{_VARIABLE}={printable(text, 40)} is not a whole number of megabytes; 0 disables the cache of compiled programs"
        )
    return int(text) * 1_000_000


def key_of(graph, config, *options):
    """Returns the cache key of a program: the SHA-256 of the graph's content, the options, and the version of the code."""
    digest = hashlib.sha256()
    _add(digest, [package_version(), source_digest(), astuple(config), *options])
    _add(digest, content_of(graph))
    return digest.digest()


def content_of(graph):
    """Returns the fields of a graph that determine its results, by name."""
    return {one.name: getattr(graph, one.name) for one in fields(graph) if one.name not in _FOREIGN}


def _add(digest, value):
    """Adds a value to a digest, recursively. Different values, or the same values at different positions, give different
    digests."""
    if isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape}".encode())
        digest.update(value.tobytes())
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
    content = _CACHE.load(key) if _most() else None
    if content is None:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        plain, places = json.loads(arrays["plain"].tobytes()), arrays["places"]
        words, image = arrays["words"].tobytes(), tuple(arrays["image"].tolist())
    cost, plans = Cost(**plain["cost"]), tuple(plain["plans"])
    blocks = tuple(map(tuple, plain["blocks"]))
    return plain["variant"], Code(words, image, blocks, places, plain["order"], plans, cost, plain["scratch"])


def store(key, variant, code):
    """Stores a program under a key. Deletes the oldest files beyond `TPU_PROGRAMS_MB`."""
    most = _most()
    if not most:
        return
    plain = {
        "variant": variant,
        "blocks": code.blocks,
        "order": code.order,
        "plans": code.plans,
        "cost": asdict(code.cost),
        "scratch": code.scratch,
    }
    text = json.dumps(plain, default=int)  # converts numpy's integers
    file = io.BytesIO()
    plain_bytes, words = (np.frombuffer(data, np.uint8) for data in (text.encode(), code.words))
    np.savez_compressed(file, plain=plain_bytes, words=words, places=code.places, image=np.array(code.image, np.int64))
    _CACHE.store(key, file.getvalue(), most)


def _key_of_check(program, *meaning):
    """Returns the key of a check: a digest of a program's bytes and places, and of `meaning`, the values that say what it should
    compute."""
    digest = hashlib.sha256(program.model)
    places = [(name, one.region, one.rows, one.divided) for name, one in program.tensors.items()]
    sizes = sorted((region.name, size) for region, size in program.sizes.items())
    _add(digest, [source_digest(), astuple(program.config), program.cores, program.batch, places, sizes, *meaning])
    return digest.digest()


def was_checked(program, *meaning):
    """Returns True if :func:`note_checked` was called for this program, by any process, with this meaning."""
    return bool(_most()) and _CHECKS.load(_key_of_check(program, *meaning)) is not None


def note_checked(program, *meaning):
    """Notes that a program computes what `meaning` says."""
    if _most():
        _CHECKS.store(_key_of_check(program, *meaning), b"", _CHECK_BYTES)
