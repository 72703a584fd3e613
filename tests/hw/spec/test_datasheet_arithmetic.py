"""Checks the datasheet's definitions of TABLE, SOFTMAX and NORMALIZE: an implementation from its text alone must give the golden
model's bits."""

import numpy as np

from amaranth_tpu.sim.golden.normalization import normalize
from amaranth_tpu.sim.golden.softmax import softmax
from amaranth_tpu.sim.golden.table_lookup import Table, lookup
from text_arithmetic import normalize_of_text, softmax_of_text, table_of_text


def random_table(rng):
    """Draws a table. Half of the values have few exponents, among them 0 and 255, and half of the slopes are extreme."""
    values, slopes = rng.integers(0, 1 << 16, (2, 4096))
    values = np.where(rng.random(4096) < 0.5, values & 0x807F | rng.choice([0, 1, 2, 127, 253, 254, 255], 4096) << 7, values)
    extreme = rng.choice([0x000, 0x7FF, 0x800, 0xFFF], 4096) | rng.choice([0, 7, 8, 15], 4096) << 12
    slopes = np.where(rng.random(4096) < 0.5, extreme, slopes)
    settings = {name: int(rng.integers(4)) for name in ("linear_low", "linear_high", "scale")}
    places = dict(first=int(rng.choice([0, 1, 2, 100, 127, 128, 240, 253, 254, 255])), base=int(rng.integers(16)))
    return Table(
        words=np.stack([values, slopes], axis=1).ravel().astype(np.uint16), spare=int(rng.integers(16)), **places, **settings
    )


def operands(rng, table, count):
    """Draws binary32 bits: around the ends of the binades, zeros, subnormals, infinities, NaN, and any others."""
    last = table.first + 15 - table.spare
    exponents = rng.choice([0, 1, 254, 255, *np.clip(np.arange(table.first - 3, last + 4), 0, 255)], count)
    bits = rng.integers(0, 1 << 32, count)
    bits = np.where(rng.random(count) < 0.8, bits & 0x807FFFFF | exponents << 23, bits)
    bits = np.where(rng.random(count) < 0.2, bits & 0xFF800000, bits)
    return np.where((bits & 0x7F800000 == 0x7F800000) & (bits & 0x7FFFFF != 0), 0x7FC00000, bits).astype(np.uint32)


# promise: table-rounds-once
def test_table(rng):
    for _ in range(100):
        table = random_table(rng)
        bits = operands(rng, table, 150)
        for x, found in zip(bits, lookup(bits, table)):
            assert table_of_text(table, int(x)) == found, f"{x:08x} in {table}"


def rows(rng):
    """Yields rows of binary32 bits: differences of all sizes, large and negative maxima, ties, special values, small addends."""
    for scale in (0.01, 1, 10, 100, 1e4, 2.0**44, 2.0**50, 1e30, 3e38):
        for centre in (0, scale, -scale):
            yield rng.uniform(-1, 1, (4, 9)) * scale / 2 + centre / 2
    for exponent in (13, 14, 20, 44, 45, 60, 126):  # neighbours of a maximum: differences of few last places, and of halves
        top = np.float32(2.0**exponent * rng.uniform(1, 2)) * rng.choice([1, -1])
        yield np.array([[top, *(top - top.dtype.type(2.0 ** (exponent - 24) * i) for i in range(8))]])
    ties = (rng.integers(-40, 40, (8, 9)) * 2 + 1) * 2.0**-13  # halves of the common place
    yield from (ties, ties + 4096)
    yield -rng.uniform(20, 30, (4, 9)) * [0] + np.concatenate([[0], -rng.uniform(21, 24, 8)])  # addends near 2^-32
    special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1.0, -1.0, 3e38, -3e38], (60, 3))
    yield from (special, np.full((1, 4), -np.inf), rng.normal(size=(2, 300)))


# promise: softmax-nan
def test_softmax(rng):
    with np.errstate(over="ignore"):
        groups = [np.asarray(group, np.float32) for group in rows(rng)]
    for group in groups:
        bits = np.where(np.isnan(group), np.uint32(0x7FC00000), group.view(np.uint32))
        for row, found in zip(bits, softmax(bits)):
            assert softmax_of_text([int(x) for x in row]) == found.tolist(), row.view(np.float32)


# promise: normalize-nan
def test_normalize(rng):
    with np.errstate(over="ignore"):
        groups = [np.asarray(group, np.float32) for group in rows(rng)]
    for group in [*groups, np.float32(rng.normal(8, 1, (4, 40))), np.float32(1e-37 * rng.normal(size=(6, 5)))]:
        bits = np.where(np.isnan(group), np.uint32(0x7FC00000), group.view(np.uint32))
        fields = {
            "centred": bool(rng.integers(2)),
            "root": bool(rng.random() < 0.3),
            "factor": int(rng.choice([0x828000, 0x010000, 0xFEFFFF, rng.integers(1 << 16, 0xFF0000)])),
            "epsilon": int(rng.choice([0, 5, 0x6E4F8B, 0x7F0000, rng.integers(1 << 24)])),
        }
        for row, found in zip(bits, normalize(bits, **fields)):
            assert normalize_of_text([int(x) for x in row], **fields) == found.tolist(), (row.view(np.float32), fields)
