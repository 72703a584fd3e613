"""Tests of blocks of weights in GGUF files, against the package gguf and the formats of the core."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from amaranth_tpu.hw.spec.codes import WeightFormat
from amaranth_tpu.sim.data.errors import DataError
from amaranth_tpu.sim.data.gguf_blocks import BYTES, decode
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.weight_formats import exact_codes

OUTPUTS, INPUTS = 16, 96
COUNT = OUTPUTS * INPUTS // 32


def random_blocks(rng, kind, scales=None):
    """Returns blocks with random codes and finite scales of both signs."""
    data = rng.integers(0, 256, (COUNT, BYTES[kind]), dtype=np.uint8)
    halves = rng.integers(0, 0x7C00, (COUNT, 2), dtype=np.uint16) | rng.integers(0, 2, (COUNT, 2), dtype=np.uint16) << 15
    halves = halves if scales is None else scales.astype("<f2").view(np.uint16)
    data[:, : 4 if kind == "Q4_1" else 2] = halves.view(np.uint8)[:, : 4 if kind == "Q4_1" else 2]
    return data


@pytest.mark.parametrize("kind", BYTES)
def test_weights_are_those_of_the_package_gguf(kind, rng):
    data = random_blocks(rng, kind)
    found = decode(kind, data.tobytes(), INPUTS)
    expected = dequantize(data.reshape(OUTPUTS, -1), GGMLQuantizationType[kind])
    assert found.shape == (OUTPUTS, INPUTS) and found.dtype == np.float32 and np.array_equal(found, expected)


@pytest.mark.parametrize("kind, format_", [("Q8_0", WeightFormat.MXINT8), ("Q4_0", WeightFormat.MXFP6)])
def test_scales_that_are_powers_of_two_give_exact_weights(kind, format_, rng):
    """Then bfloat16 is exact, and so is a format of the core, whose tiles have one scale for each column."""
    data = random_blocks(rng, kind, np.exp2(rng.integers(-14, 14, (COUNT, 2))))
    data[:, 2:][data[:, 2:] == 0x80] = 0x81  # -128 of a row of Q8_0, which quantization to 127 does not make
    weights = decode(kind, data, INPUTS)
    rounded = round_bfloat16(weights)
    assert np.array_equal(rounded.astype(np.float32), weights)
    tiles = rounded.view(np.uint16).reshape(OUTPUTS, -1, OUTPUTS).transpose(1, 2, 0)
    assert exact_codes(format_, tiles) is not None


@pytest.mark.parametrize(
    "kind, size, inputs, said",
    [("Q5_K", 34, 32, "Q5_K"), ("Q8_0", 35, 32, "damaged"), ("Q8_0", 34, 64, "damaged"), ("Q8_0", 34, 33, "damaged")],
)
def test_other_types_and_sizes_are_refused(kind, size, inputs, said):
    with pytest.raises(DataError, match=said):
        decode(kind, bytes(size), inputs)


def test_scales_that_are_not_finite_are_refused():
    with pytest.raises(DataError, match="not finite"):
        decode("Q4_0", b"\x00\x7c" + bytes(16), 32)
