# amaranth: UnusedElaboratable=no
"""Tests of the arithmetic of one softmax lane: an exponential, and its result with a quotient, at all places of rounding."""

import numpy as np

from amaranth_tpu.hw.softmax.result_lane import ResultLane
from amaranth_tpu.hw.spec.softmax import RESULT_EXPONENT
from amaranth_tpu.sim.golden.arithmetic import NAN_BFLOAT16
from amaranth_tpu.sim.rtl.streams import simulate_columns


def test_results_about_the_least_normal_number(rng):
    """A result is the rounded product of power and quotient, or 0 below the least normal number. A rounding carry counts."""
    count = 4000
    ends = [0x8000, 0x8080, 0xB504, 0xFF00, 0xFF7F, 0xFF80, 0xFF81, 0xFFFF]
    power, quotient = np.where(
        rng.random((2, count)) < 0.6, rng.choice(ends, (2, count)), rng.integers(0x8000, 1 << 16, (2, count))
    )
    halvings = rng.integers(60, 140, count)
    near = RESULT_EXPONENT - halvings + rng.integers(-3, 4, count)
    places = np.where((near >= 16) & (near < 64), near, rng.integers(16, 64, count))
    infinite, keep = rng.random((2, count)) < [[0.02], [0.98]]
    by = quotient | places << 16 | infinite.astype(int) << 23
    columns = {"power": power, "halvings": halvings, "by": by, "keep": np.roll(keep, 1)}
    found = simulate_columns(ResultLane(), **{name: values.astype(np.uint32) for name, values in columns.items()})["result"]
    product = power * quotient
    upper = product >> 31
    result = (RESULT_EXPONENT - halvings - places + upper << 7) + (np.where(upper, product, product << 1) + 0x800000 >> 24) - 128
    expected = np.where(keep, np.where(infinite, NAN_BFLOAT16, np.where(result < 128, 0, result)), 0)
    assert (found[1:] == expected[:-1]).all()
    assert (result[(result < 256) & (result >= 128)] == 128).any(), "no result is the least normal number"
