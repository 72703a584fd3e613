"""Tests of the definition of softmax, covering its error, special values, and independence of the order of elements and of other
rows."""

import numpy as np
import pytest

from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.golden.softmax import errors, softmax
from seeds import seed
from suites import slow

NAN, INFINITY, MINUS_INFINITY = golden.NAN, 0x7F800000, 0xFF800000


def rows(rng, width, spread, offset, count=200_000):
    values = rng.normal(offset, spread, (max(2, count // width), width))
    return golden.add(values.astype(np.float32).view(np.uint32), np.uint32(0x80000000))


# promise: softmax-error
@pytest.mark.parametrize("width", [*slow(2, 3, 10, 100, 1000), 8000])
def test_error(width):
    rng = np.random.default_rng([seed(), width])
    worst = max(
        errors(rows(rng, width, spread, offset)).max()
        for spread in (0.03, 0.3, 1, 3, 10, 30, 100)
        for offset in (0, -3, 50, -8190, 1e4, -1e5)
    )
    print(f"rows of {width}: largest error {worst:.3f} units in the last place")
    assert worst < 0.6


@pytest.mark.parametrize("exponent", [0, 12, 13, 14, 20, 30, 31, 60, 127])
def test_error_far_from_zero(exponent):
    """The error of softmax is below 0.6 units in the last place for elements close to each other, at and below powers of two from
    2^0 to 2^127."""
    rng = np.random.default_rng([seed(), exponent])
    steps = np.minimum(1 << 22, np.ceil(rng.uniform(0, 128, (20_000, 1)) * 2.0 ** (23 - exponent)).astype(np.int64))
    power = exponent + 127 << 23
    magnitudes = power + rng.integers(-steps, steps + 1, (20_000, 8))
    magnitudes = np.minimum(magnitudes, 0x7F7FFFFF).astype(np.uint32)
    for sign in (0, 1 << 31):
        worst = errors(magnitudes | np.uint32(sign)).max()
        print(f"around {'-' if sign else ''}2**{exponent}: largest error {worst:.3f} units in the last place")
        assert worst < 0.6


def test_hand_computed_softmax():
    """Softmax gives hand-computed results for halves, thirds, e : 1, vanishing elements, infinities, NaN, signed zeros and
    subnormals."""
    one, least = 0x3F800000, 0x00800000
    for row, results in (
        ([one], [0x3F80]),
        ([one, one], [0x3F00, 0x3F00]),
        ([one, one, one], [0x3EAB, 0x3EAB, 0x3EAB]),
        ([one, 0], [0x3F3B, 0x3E8A]),  # 0.73106, 0.26894
        ([0x42AE0000, 0], [0x3F80, 0x00B3]),  # 87: 1.6e-38
        ([0x42B00000, 0], [0x3F80, 0x0000]),  # 88
        ([0xFF7FFFFF, 0x7F7FFFFF], [0x0000, 0x3F80]),
        ([0x7F7FFFFF, 0x7F7FFFFF], [0x3F00, 0x3F00]),
        ([0xFF7FFFFF, 0xFF7FFFFF], [0x3F00, 0x3F00]),
        ([MINUS_INFINITY, 0], [0x0000, 0x3F80]),
        ([0, 0x80000000, least, 0x00000001], [0x3E80] * 4),
        ([MINUS_INFINITY, MINUS_INFINITY], [0x7FC0, 0x7FC0]),
        ([INFINITY, 0], [0x7FC0, 0x7FC0]),
        ([INFINITY, MINUS_INFINITY, one], [0x7FC0] * 3),
        ([one, NAN, 0], [0x7FC0] * 3),
        ([one, 0xFF800001], [0x7FC0] * 2),
        ([0x46000000, 0x45FFFFFF], [0x3F00, 0x3F00]),  # 8192 and its neighbours
        ([0x4B800000, 0x4B7FFFFF], [0x3F3B, 0x3E8A]),  # 2**24 and 2**24 - 1
        ([0xCB7FFFFF, 0xCB800000], [0x3F3B, 0x3E8A]),
    ):
        assert [hex(bits) for bits in softmax(np.array([row], np.uint32))[0]] == [hex(bits) for bits in results], row


# promise: softmax-exact-sum
def test_softmax_does_not_depend_on_order():
    """Softmax of a row does not depend on the order of its elements, on elements whose result is 0, or on other rows."""
    rng = np.random.default_rng(seed())
    bits = rows(rng, 300, 4, 0, 30_000)
    results, order = softmax(bits), rng.permutation(300)
    assert (softmax(bits[:, order]) == results[:, order]).all()
    assert (softmax(bits[:1]) == results[:1]).all()
    wider = np.concatenate([bits, np.full((len(bits), 5), MINUS_INFINITY, np.uint32)], axis=1)
    assert (softmax(wider) == np.pad(results, ((0, 0), (0, 5)))).all()
