"""The version of this package, given as a digest of its source code."""

import functools
import hashlib
from pathlib import Path

import amaranth_tpu.hw as hw
import amaranth_tpu.sim as sim

__all__ = ["source_digest"]


_KINDS = (".py", ".c", ".cpp", ".h", ".sv", ".v")  # the models of the core are written in several languages


@functools.cache
def source_digest():
    """Returns a digest that changes with every change of the hardware or the models."""
    digest = hashlib.sha256()
    for folder in (hw, sim):
        for path in sorted(one for one in Path(folder.__file__).parent.rglob("*") if one.suffix in _KINDS):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
