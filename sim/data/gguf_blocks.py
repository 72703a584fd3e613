"""Blocks of weights in GGUF files, of the types Q8_0, Q4_0 and Q4_1, and their numbers.

A block holds 32 weights of one output, along the sum. It starts with a scale in binary16. In Q4_1, an offset in binary16 follows.
Then come 32 signed bytes, or 16 bytes with weight i in the lower half of byte i and weight i + 16 in its upper half.
"""

import numpy as np

from .errors import DataError

__all__ = ["BYTES", "decode"]

_WEIGHTS = 32
#: Bytes of a block, by type.
BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}


def decode(kind, data, inputs):
    """Returns the weights of a tensor, float32 (outputs, inputs). Q8_0 and Q4_0 are exact. Q4_1 is rounded once, by its sum.

    Parameters
    ----------
    kind : str
        A key of `BYTES`.
    data : bytes or uint8 array
        All blocks of some outputs, output by output. Large tensors may be decoded in parts.
    inputs : int
        Weights of an output, a multiple of 32.

    Raises
    ------
    DataError
        For other types, for a size that is not a multiple of an output's blocks, and for scales that are not finite.
    """
    if kind not in BYTES:
        raise DataError(f"weights of type {kind} are not supported; convert the file to {', '.join(BYTES)}")
    data = np.frombuffer(data, np.uint8)
    if inputs < 1 or inputs % _WEIGHTS or data.size % (BYTES[kind] * inputs // _WEIGHTS):
        raise DataError(f"{data.size:,} bytes of {kind} are not outputs of {inputs} weights; the file is damaged, copy it again")
    blocks = data.reshape(-1, BYTES[kind])
    first = 4 if kind == "Q4_1" else 2
    halves, codes = np.ascontiguousarray(blocks[:, :first]).view("<f2").astype(np.float32), blocks[:, first:]
    if not np.isfinite(halves).all():
        raise DataError(f"a scale of {kind} is not finite; the file is damaged, copy it again")
    if kind == "Q8_0":
        values = codes.view(np.int8) * halves[:, :1]
    else:
        values = (np.concatenate([codes & 15, codes >> 4], axis=1).view(np.int8) - np.int8(8 * (kind == "Q4_0"))) * halves[:, :1]
    if kind == "Q4_1":
        values += halves[:, 1:]
    return values.reshape(-1, inputs)
