"""Tests of the definition of NORMALIZE, covering its error, special values, and independence of the order of elements and of
other rows."""

import numpy as np
import pytest

from amaranth_tpu.hw.spec.normalization import upper_bits
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.golden.normalization import error, exact, normalize
from onnx_models import Builder
from suites import slow

ONE, NAN, INFINITY = 0x3F800000, 0x7FC00000, 0x7F800000


# promise: softmax-error
@pytest.mark.parametrize(
    "size, mean, centred",
    [
        (1, 8, True),
        (1e12, 0, False),
        *slow((1, 0, True), (1e-12, 0, True), (1e12, 0, True), (1e12, 100, True), (1e-12, 0, False)),
    ],
)
def test_error_is_below_a_normalization_by_the_array(rng, tmp_path, size, mean, centred):
    """The error is the rounding of results to bfloat16, below the error of the same normalization in products and sums."""
    x = (size * rng.normal(mean, 1, (300, 64))).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    epsilon, x = 1e-5 * min(1, size) ** 2, x.view(np.float32)
    b = Builder(["n", 64], opset=23)
    parameters = [np.ones(64, np.float32), *([np.zeros(64, np.float32)] if centred else [])]
    b("LayerNormalization" if centred else "RMSNormalization", *parameters, epsilon=epsilon)
    by_array, want = tpu.load(b.save(tmp_path)).predict(x), exact(x, centred, epsilon)
    other = np.sqrt(np.square(by_array - want).mean() / np.square(want).mean())
    found = error(x, centred, epsilon)
    print(f"size {size:g}, mean {mean}: {found:.3%}, by the array {other:.3%}")
    assert found < 0.0019 and found < other
    fields = {"centred": centred, "factor": upper_bits(64**0.5), "epsilon": upper_bits(64 * epsilon), "root": True}
    roots = (normalize(x.view(np.uint32), **fields).astype(np.uint32) << 16).view(np.float32)
    numerators = x.astype(float) - (x.astype(float).mean(1, keepdims=True) if centred else 0)
    products = roots * np.sqrt(np.square(numerators).mean(1, keepdims=True) + epsilon)
    assert np.abs(products - 1).max() < 2.0**-8 * 1.1  # rounding to bfloat16 alone: 2^-8


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_error_at_the_ends_of_the_range(rng, size):
    """The squares of such numbers are not binary32 numbers."""
    for centred in (True, False):
        assert error((size * rng.normal(8, 1, (500, 24))).astype(np.float32), centred, 0) < 0.0019
        assert error((size * rng.normal(8, 1, (500, 24))).astype(np.float32), centred, 1e-5) < 0.0019 or size < 1


def test_hand_computed_rows():
    """Rows of equal numbers, infinities, NaN, zeros, and results out of range have hand-computed results."""
    two, minus = upper_bits(2), ONE | 1 << 31
    for row, fields, results in (
        ([ONE, minus], dict(centred=True, factor=two, epsilon=0), [0x3FB5, 0xBFB5]),  # 2 / sqrt(2)
        ([ONE, ONE], dict(centred=False, factor=two, epsilon=two), [0x3F80, 0x3F80]),  # 2 / sqrt(4)
        ([ONE, ONE], dict(centred=True, factor=two, epsilon=two), [0, 0]),
        ([ONE, ONE], dict(centred=True, factor=two, epsilon=0), [0x7FC0, 0x7FC0]),
        ([0, 1 << 31], dict(centred=False, factor=two, epsilon=0xFFFF), [0x7FC0, 0x7FC0]),
        ([0, 0x80000001], dict(centred=False, factor=two, epsilon=two), [0, 0]),
        ([ONE, NAN, 0], dict(centred=False, factor=two, epsilon=two), [0x7FC0] * 3),
        ([ONE, INFINITY], dict(centred=True, factor=two, epsilon=two), [0x7FC0] * 2),
        ([ONE, minus], dict(centred=True, factor=1 << 16, epsilon=two), [0, 0x8000]),
        ([0x7F000000, 0xFF000000], dict(centred=True, factor=0xFE0000, epsilon=1 << 16), [0x7EB5, 0xFEB5]),
        ([minus], dict(centred=False, factor=0xFEFFFF, epsilon=1 << 16), [0xFF80]),
    ):
        assert [hex(bits) for bits in normalize(np.array([row], np.uint32), **fields)[0]] == [hex(bits) for bits in results], row


# promise: normalize-exact-sum
def test_results_do_not_depend_on_order(rng):
    """Results do not depend on the order of a row's elements or on other rows."""
    x = rng.normal(3, 2, (20, 150)).astype(np.float32).view(np.uint32)
    fields, order = dict(centred=True, factor=upper_bits(150**0.5), epsilon=upper_bits(1e-3)), rng.permutation(150)
    results = normalize(x, **fields)
    assert (normalize(x[:, order], **fields) == results[:, order]).all()
    assert (normalize(x[3:4], **fields) == results[3:4]).all()


def test_upper_bits():
    """The form of the instruction's fields rounds to 17 significant bits, and keeps numbers in range."""
    for number, bits in ((1, 0x7F0000), (0, 0), (1.5, 0x7F8000), (2 - 2.0**-18, 0x800000), (1e-45, 1 << 16), (1e40, 0xFEFFFF)):
        assert upper_bits(number) == bits, number
