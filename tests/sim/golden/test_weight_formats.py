"""Tests of weights in OCP MX formats, against exact fractions and the types of ml_dtypes."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from amaranth_tpu.hw.spec.codes import WeightFormat
from amaranth_tpu.sim.golden.weight_formats import BLOCK, decode, packed, quantize, unpacked

FORMATS = [one for one in WeightFormat if one is not WeightFormat.BFLOAT16]
TYPES = {
    WeightFormat.MXFP8: ml_dtypes.float8_e4m3fn,
    WeightFormat.MXFP6: ml_dtypes.float6_e2m3fn,
    WeightFormat.MXFP4: ml_dtypes.float4_e2m1fn,
}


def elements(format_):
    """Returns the value of each code, by ml_dtypes and by two's complement."""
    codes = np.arange(1 << format_.bits, dtype=np.uint8)
    if format_ is WeightFormat.MXINT8:
        return [Fraction(int(code) - 256 * int(code > 127), 64) for code in codes]
    return [float(value) for value in codes.view(TYPES[format_])]


def exact(element, scale):
    """Returns the bfloat16 bits of an element times a scale by exact arithmetic."""
    if element != element or scale == 255:
        return 0x7FC0
    sign = 0x8000 if str(float(element)).startswith("-") else 0
    size = abs(Fraction(element)) * Fraction(2) ** (scale - 127)
    if size < Fraction(2) ** -126:
        return sign
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    fraction = (size / Fraction(2) ** exponent - 1) * 128
    assert fraction.denominator == 1  # exact in bfloat16
    return sign | (0x7F80 if exponent > 127 else exponent + 127 << 7 | int(fraction))


@pytest.mark.parametrize("format_", FORMATS)
def test_every_element_with_scales_of_all_kinds(format_):
    scales = [0, 1, 2, 3, 7, 8, 9, 100, 126, 127, 128, 200, 245, 246, 247, 248, 252, 253, 254, 255]
    codes = np.arange(1 << format_.bits)
    found = decode(format_, codes[:, None], scales)
    expected = [[exact(element, scale) for scale in scales] for element in elements(format_)]
    assert found.dtype == np.uint16 and np.array_equal(found, expected)


@pytest.mark.parametrize("format_", FORMATS)
def test_quantized_weights_are_the_nearest(format_, rng):
    """Each weight rounds to the nearest element, as ml_dtypes does, and the scale is the one of the OCP specification."""
    weights = rng.normal(size=(2 * BLOCK + 5, 6)) * np.exp2(rng.integers(-40, 40, 6))
    weights[:BLOCK, 1], weights[3, 2] = 0, -0.0
    codes, scales = quantize(format_, weights)
    for block in range(3):
        part = weights[block * BLOCK : (block + 1) * BLOCK]
        for column, largest in enumerate(np.abs(part).max(axis=0)):
            top = {WeightFormat.MXFP8: 8, WeightFormat.MXINT8: 0}.get(format_, 2)
            scale = int(np.floor(np.log2(largest))) - top + 127 if largest else 0
            assert scales[block, column] == scale
            scaled = part[:, column] / 2.0 ** (scale - 127)
            if format_ is WeightFormat.MXINT8:
                nearest = np.clip(np.rint(scaled * 64), -127, 127) / 64
            else:
                most = float(ml_dtypes.finfo(TYPES[format_]).max)
                nearest = np.clip(scaled, -most, most).astype(TYPES[format_]).astype(float)
            found = np.array([float(elements(format_)[code]) for code in codes[block * BLOCK :][: len(part), column]])
            assert np.array_equal(found, nearest)


def test_halves_round_to_even():
    """The largest weight sets the scale 2**-2 of MXFP4. Weights in the middle of two elements round to the even code."""
    weights = np.array([[6, 0.25, 0.75, 1.25, -1.75, 2.5, 3.5, -5, 7]]).T
    codes, scales = quantize(WeightFormat.MXFP4, weights)
    assert scales[0, 0] == 127
    assert codes[:, 0].tolist() == [7, 0, 2, 2, 8 | 4, 4, 6, 8 | 6, 7]


@pytest.mark.parametrize("tiles", [1, 2, 5])
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("n", [8, 32])
def test_packed_tiles(n, format_, tiles, rng):
    codes = rng.integers(0, 1 << format_.bits, (tiles, n, n)).astype(np.uint8)
    scales = rng.integers(0, 256, (tiles, n)).astype(np.uint8)
    vectors = packed(format_, codes, scales)
    assert vectors.shape == (format_.vectors(n, tiles), n)
    weights = unpacked(format_, vectors, tiles)
    assert np.array_equal(weights.swapaxes(1, 2), decode(format_, codes, scales[:, None]))


def test_layout_by_hand():
    """Two tiles of 8 x 8 in MXFP6: a vector of scales, and three vectors of codes for each tile."""
    codes = np.zeros((2, 8, 8), np.uint8)
    codes[0, 3] = [0b100001, 0b110010, 0, 0, 0b010100, 0, 0, 0b001000]  # row 3, columns 0 to 7
    scales = np.zeros((2, 8), np.uint8)
    scales[0, 0], scales[0, 1], scales[1, 7] = 0x12, 0x34, 0x56
    vectors = packed(WeightFormat.MXFP6, codes, scales)
    assert vectors.shape == (7, 8)
    assert vectors[0].tolist() == [0x3412, 0, 0, 0, 0, 0, 0, 0x5600]
    assert vectors[1:4, 3].tolist() == [0b0000_0001_0000_1110, 0x0021, 0x8004] and not vectors[4:].any()
