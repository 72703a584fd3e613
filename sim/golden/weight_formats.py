"""Weights in OCP MX formats: the value of each code, rounding of weights to a format, and the layout of tiles in host memory.

A block is the 32 weights of one output that share a scale, along the sum. A tile of n x n has one scale a column if n is at most
32, so several tiles may share a block.
"""

from functools import cache

import numpy as np

from amaranth_tpu.hw.spec.codes import WeightFormat

from .arithmetic import NAN_BFLOAT16

__all__ = [
    "BLOCK",
    "FORMATS",
    "decode",
    "exact_codes",
    "packed",
    "quantize",
    "round_weights",
    "rounded_matrix",
    "rounded_network",
    "unpacked",
]

#: The formats with scales, the smallest first.
FORMATS = (WeightFormat.MXFP4, WeightFormat.MXFP6, WeightFormat.MXFP8, WeightFormat.MXINT8)

#: Weights of one block.
BLOCK = 32
#: The formats by the name of an option.
FORMAT_NAMES = {one.name.lower(): one for one in FORMATS}

_BIAS = 127  # of a scale: its factor is 2 ** (scale - 127)
_MINIFLOATS = {WeightFormat.MXFP8: (4, 3, 7), WeightFormat.MXFP6: (2, 3, 1), WeightFormat.MXFP4: (2, 1, 1)}


@cache
def _values(format_):
    """Returns the value of each code of a format as a float64 array."""
    codes = np.arange(1 << format_.bits)
    if format_ is WeightFormat.MXINT8:
        return codes.astype(np.uint8).view(np.int8) / 64
    exponent_bits, fraction_bits, bias = _MINIFLOATS[format_]
    fraction, exponent = codes & (1 << fraction_bits) - 1, codes >> fraction_bits & (1 << exponent_bits) - 1
    significand = fraction + np.where(exponent > 0, 1 << fraction_bits, 0)
    values = np.ldexp(significand.astype(float), np.maximum(exponent, 1) - bias - fraction_bits)
    if format_ is WeightFormat.MXFP8:
        values[codes & 0x7F == 0x7F] = np.nan
    return np.where(codes >> format_.bits - 1, -values, values)


def decode(format_, codes, scales):
    """Returns the bfloat16 bits of weights in an MX format: each value is the element times 2 ** (scale - 127).

    `codes` and `scales` are arrays of integers of shapes that broadcast. A product is exact, except that it overflows to
    infinity, and that subnormal results are zeros of the same sign. A scale of 255 gives NaN.
    """
    scales = np.asarray(scales, np.int64)
    values = np.ldexp(_values(format_)[codes], scales - _BIAS)
    with np.errstate(over="ignore"):
        bits = np.where(np.abs(values) < 2.0**-126, values * 0, values).astype(np.float32).view(np.uint32) >> np.uint32(16)
    return np.where(np.isnan(values) | (scales == 255), NAN_BFLOAT16, bits).astype(np.uint16)


def quantize(format_, weights):
    """Rounds finite weights to a format. Returns `(codes, scales)`: uint8 arrays of the shapes (inputs, outputs) and
    (blocks of inputs, outputs).

    The scale of a block is the power of two that brings its largest weight into the format's highest binade. Each weight rounds
    to the nearest element, ties to the even code, and at most to the largest element.

    Parameters
    ----------
    weights : float array (inputs, outputs)
    """
    inputs, outputs = weights.shape
    blocks = np.zeros((-(-inputs // BLOCK) * BLOCK, outputs))
    blocks[:inputs] = weights
    blocks = blocks.reshape(-1, BLOCK, outputs)
    exponents = _exponents(format_, blocks)
    return _nearest(format_, blocks, exponents).reshape(-1, outputs)[:inputs], (exponents + _BIAS).astype(np.uint8)


def _positive(format_):
    """Returns the finite values that are not negative, in the order of their codes."""
    positive = _values(format_)[: 1 << format_.bits - 1]
    return positive[np.isfinite(positive)]


def _exponents(format_, blocks):
    """Returns the exponents of the scales of blocks, (blocks, weights, outputs)."""
    largest = np.abs(blocks).max(axis=1)
    exponents = np.frexp(largest)[1] - np.frexp(_positive(format_)[-1])[1]
    return np.where(largest > 0, np.clip(exponents, -_BIAS, _BIAS), -_BIAS)


def _nearest(format_, blocks, exponents):
    """Returns the codes of the nearest elements; among two at the same distance, of the one with the even code."""
    positive, scaled = _positive(format_), np.ldexp(blocks, -exponents[:, None])
    middles = (positive[1:] + positive[:-1]) / 2
    size = np.abs(scaled)
    below, upto = np.searchsorted(middles, size, side="left"), np.searchsorted(middles, size, side="right")
    codes = np.where(below % 2, upto, below)
    if format_ is WeightFormat.MXINT8:
        return (np.where(scaled < 0, -codes, codes) & 0xFF).astype(np.uint8)
    return (codes | np.where(np.signbit(scaled), 1 << format_.bits - 1, 0)).astype(np.uint8)


def exact_codes(format_, tiles):
    """Returns the codes (tiles, n, n) and the scales (tiles, n) of tiles of weights, or None if the format cannot hold each
    weight exactly.

    Parameters
    ----------
    tiles : uint16 array (tiles, n, n)
        bfloat16 bits, by tile, row and column.
    """
    values = (tiles.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(float)
    if not np.isfinite(values).all():
        return None
    exponents = _exponents(format_, values)
    # The largest binade lacks some elements, which the format holds with the next scale.
    for _ in range(2):
        codes = _nearest(format_, values, exponents)
        same = decode(format_, codes, exponents[:, None] + _BIAS) == tiles
        if same.all():
            return codes, (exponents + _BIAS).astype(np.uint8)
        exponents = np.minimum(exponents + ~same.all(axis=1), _BIAS)
    return None


def round_weights(graph, format_):
    """Returns a graph whose weights are rounded to a format, once for all sizes of the array. Its field `rounded` tells the
    error. Weights of fixed operations, and structural zeros, keep their values."""
    terms = [term for stage in graph.stages for term in stage.terms if term.weights in graph.constants]
    names = dict.fromkeys(term.weights for term in terms if not term.fixed)
    for term in terms:
        if term.fixed:
            names.pop(term.weights, None)
    rounded, errors, squares = graph.copied(), 0.0, 0.0
    for name in names:
        weights = graph.constants[name]
        rounded.constants[name] = np.stack([rounded_matrix(format_, part) for part in weights])
        before, after = weights.astype(float), rounded.constants[name].astype(float)
        errors, squares = errors + np.square(after - before).sum(), squares + np.square(before).sum()
    error = np.sqrt(errors / squares) if squares else 0
    rounded.rounded = f"weights are rounded to {format_.name.lower()}, with a relative root-mean-square error of {error:.2%}"
    return rounded


def rounded_network(graph, name):
    """Returns a graph with weights rounded to the format of this name, one of `FORMAT_NAMES`; with None, the graph itself."""
    return round_weights(graph, FORMAT_NAMES[name]) if name else graph


def rounded_matrix(format_, weights):
    """Returns bfloat16 weights (inputs, outputs) in a format. The structural zeros, -0, stay -0; no other weight becomes -0."""
    codes, scales = quantize(format_, weights.astype(float))
    bits = decode(format_, codes, np.repeat(scales, BLOCK, axis=0)[: len(weights)])
    bits = np.where(bits == 0x8000, 0, bits)
    return np.where(weights.view(np.uint16) == 0x8000, 0x8000, bits).astype(np.uint16).view(weights.dtype)


# --- Tiles in host memory


def packed(format_, codes, scales):
    """Returns the vectors of some tiles in host memory, as a uint16 array (vectors, n).

    A vector with the scales of two tiles precedes the codes of each two tiles: the scales of the columns of the first tile, then
    of the second, one byte each. Word r of a vector of codes has the codes of row r, for consecutive columns, the first one
    lowest: two columns of 8 bits, or four of 4 bits. MXFP6 has three vectors for eight columns: the upper two bits of each code,
    then the lower four bits of columns 0 to 3 and 4 to 7.

    Parameters
    ----------
    codes : uint8 array (tiles, n, n)
        By tile, row and column.
    scales : uint8 array (tiles, n)
        By tile and column.
    """
    tiles, n = scales.shape
    pairs = np.zeros((tiles + tiles % 2, n), np.uint8)
    pairs[:tiles] = scales
    pairs = np.ascontiguousarray(pairs).view("<u2").reshape(-1, n)
    columns = codes.astype(np.uint16).swapaxes(1, 2)  # by tile, column and row
    vectors = []
    for tile in range(tiles):
        vectors += [pairs[tile // 2 : tile // 2 + 1]] * (tile % 2 == 0) + [_code_vectors(format_, columns[tile])]
    return np.concatenate(vectors)


def _joined(columns, bits):
    """Returns vectors with `16 / bits` consecutive columns each."""
    parts = columns.reshape(-1, 16 // bits, columns.shape[1])
    return np.bitwise_or.reduce(parts << (bits * np.arange(16 // bits, dtype=np.uint16))[:, None], axis=1)


def _code_vectors(format_, columns):
    if format_ is not WeightFormat.MXFP6:
        return _joined(columns, format_.bits)
    upper, lower = _joined(columns >> 4, 2), _joined(columns & 15, 4)
    return np.concatenate([upper[:, None], lower.reshape(len(upper), 2, -1)], axis=1).reshape(-1, columns.shape[1])


def _split(vectors, bits):
    """Returns the columns of vectors: the inverse of `_joined`."""
    parts = vectors[:, None] >> (bits * np.arange(16 // bits, dtype=np.uint16))[:, None] & ((1 << bits) - 1)
    return parts.reshape(-1, vectors.shape[1])


def unpacked(format_, vectors, tiles):
    """Returns the bfloat16 bits of tiles in host memory, as a uint16 array (tiles, n, n) by tile, column and row.

    `vectors` is a uint16 array (vectors, n) in the layout of :func:`packed`.
    """
    n, found, place = vectors.shape[1], [], 0
    size = n * format_.bits // 16
    for tile in range(tiles):
        if tile % 2 == 0:
            scales, place = np.ascontiguousarray(vectors[place]).view(np.uint8).reshape(2, n), place + 1
        part, place = vectors[place : place + size], place + size
        if format_ is WeightFormat.MXFP6:
            groups = part.reshape(-1, 3, n)
            columns = _split(groups[:, 0], 2) << 4 | _split(groups[:, 1:].reshape(-1, n), 4)
        else:
            columns = _split(part, format_.bits)
        found.append(decode(format_, columns, scales[tile % 2][:, None]))
    return np.stack(found)
