# amaranth: UnusedElaboratable=no
"""Tests of the arithmetic of one lane: results of an exponential and a quotient, or of a difference and a factor, at all places
of rounding; and of the factor of a normalization."""

import numpy as np

from amaranth_tpu.hw.softmax.aligner import Aligner
from amaranth_tpu.hw.softmax.inverse_root import InverseRoot
from amaranth_tpu.hw.softmax.result_lane import ResultLane
from amaranth_tpu.hw.spec.softmax import RESULT_EXPONENT
from amaranth_tpu.sim.golden.arithmetic import NAN_BFLOAT16
from amaranth_tpu.sim.golden.normalization import aligned, inverse_root
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


def test_normalized_results_at_both_ends_of_the_range(rng):
    """A normalized result is the rounded product of difference and factor: a zero of the same sign below the least normal number,
    an infinity above the largest number."""
    count = 4000
    power, quotient = rng.choice([0x8000, 0x8080, 0xB504, 0xFF00, 0xFF7F, 0xFF80, 0xFFFF, 0], (2, count))
    quotient |= 0x8000
    halvings, negative, keep = rng.integers(0, 26, count), rng.integers(0, 2, count), rng.integers(0, 8, count) > 0
    exponent = halvings + np.where(rng.random(count) < 0.5, rng.integers(-2, 3, count), rng.integers(252, 257, count))
    infinite = rng.random(count) < 0.02
    by = quotient | (exponent & 0x7FF) << 16 | infinite.astype(int) << 27
    columns = {"power": power, "halvings": halvings, "negative": negative, "by": by, "keep": np.roll(keep, 1)}
    lane = ResultLane(normalize=True)
    found = simulate_columns(lane, **{name: values.astype(np.uint32) for name, values in columns.items()})["result"]
    product = power * quotient
    upper = product >> 31
    result = (exponent - halvings + upper << 7) + (np.where(upper, product, product << 1) + 0x800000 >> 24) - 128
    result = np.where((result < 128) | (power == 0), 0, np.minimum(result, 0x7F80)) | negative << 15
    expected = np.where(keep, np.where(infinite, NAN_BFLOAT16, result), 0)
    assert (found[1:] == expected[:-1]).all()
    assert {0x80, 0x7F80, 0xFF80, 0x7F7F, 0, 0x8000} <= {*expected.tolist()}


def test_factors_of_rows(rng):
    """A factor is the constant times the inverse root of squares and epsilon, for summands of all relative sizes."""
    width, count = 32, 700
    bits = rng.integers(0, width + 1, count)
    squares = [int(rng.integers(0, 1 << 32)) % (1 << size) | 1 << size >> 1 for size in bits.tolist()]
    squares = np.array([size and (one if rng.random() < 0.8 else (1 << size) - 1) for one, size in zip(squares, bits.tolist())])
    for epsilon_exponent in (0, 1, 100, 127, 254):
        epsilon = int(epsilon_exponent << 16 | rng.choice([0, 0xFFFF, rng.integers(1 << 16)]))
        factor = int(rng.integers(1 << 16, 0xFF0000))
        near = (epsilon_exponent + 154 - np.maximum(bits, 1) + rng.integers(-22, 23, count)) // 2
        common = np.where(rng.random(count) < 0.8, np.clip(near, 0, 253), rng.integers(0, 254, count))
        columns = {"valid": np.ones(count), "infinite": rng.integers(0, 2, count), "squares": squares, "common": common}
        columns |= {"factor": np.full(count, factor), "epsilon": np.full(count, epsilon)}
        found = simulate_columns(InverseRoot(width=width), **{name: values.astype(np.uint32) for name, values in columns.items()})
        root, halved = inverse_root(squares, common - 140, epsilon)
        product = root * (factor & 0xFFFF | 0x10000)
        carry = product >> 34
        exponent = common + 1 + carry + (factor >> 16) - halved - 127
        undefined = (columns["infinite"] == 1) | (root == 0)
        expected = (product >> 18 + carry) | (exponent & 0x7FF) << 16 | undefined.astype(int) << 27
        late = InverseRoot.latency
        defined = ~(root == 0)[:-late]
        assert (found["result"][late:] == expected[:-late])[defined].all()
        assert (found["result"][late:] >> 27 == undefined[:-late]).all()


def test_aligned_numbers_near_the_least_normal_number(rng):
    """Numbers are aligned to half the last place of the largest one. Zeros stay 0 if the largest number is small, too."""
    exponent, top = rng.integers(0, 40, 2000), rng.integers(1, 40, 2000)
    exponent = np.where(rng.random(2000) < 0.3, 0, np.minimum(exponent, top))
    bits = np.where(exponent, exponent << 23 | rng.integers(0, 1 << 23, 2000), 0)
    found = simulate_columns(Aligner(low=True), key=(bits | 1 << 31).astype(np.uint32), common=(top - 1).astype(np.uint32))
    values, _ = aligned(np.stack([bits, top << 23], axis=1))
    assert ((found["magnitude"][2:] + 1) >> 1 == values[:-2, 0]).all()
