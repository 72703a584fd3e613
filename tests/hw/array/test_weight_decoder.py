# amaranth: UnusedElaboratable=no
"""Tests of the weight decoder: every element with every scale."""

import numpy as np
import pytest

from amaranth_tpu.hw.array.weight_decoder import WeightDecoder
from amaranth_tpu.hw.spec.codes import WeightFormat
from amaranth_tpu.sim.golden.weight_formats import decode
from amaranth_tpu.sim.rtl.streams import StreamedBlock, simulate_columns

FORMATS = [one for one in WeightFormat if one is not WeightFormat.BFLOAT16]


def columns(rng, scales):
    """Returns the inputs for every element with each of `scales`, and the expected results. Bits above the element are random."""
    inputs, expected = {"format": [], "code": [], "scale": []}, []
    for one in FORMATS:
        codes, factors = (part.ravel() for part in np.meshgrid(np.arange(1 << one.bits), scales))
        expected.append(decode(one, codes, factors))
        inputs["format"].append(np.full(len(codes), one.value))
        inputs["code"].append((codes | rng.integers(0, 256, len(codes)) << one.bits) & 0xFF)
        inputs["scale"].append(factors)
    return {name: np.concatenate(parts) for name, parts in inputs.items()}, np.concatenate(expected)


def check(run, rng, scales):
    inputs, expected = columns(rng, scales)
    flush = {name: np.append(values, [0] * WeightDecoder.latency) for name, values in inputs.items()}
    found = run(**flush)["o"][WeightDecoder.latency :]
    wrong = np.flatnonzero(found != expected)
    assert not len(wrong), [(name, int(values[wrong[0]])) for name, values in inputs.items()]


# promise: weights-beyond-range, scale-nan
def test_scales_at_the_ends_of_bfloat16(rng):
    check(lambda **inputs: simulate_columns(WeightDecoder(), **inputs), rng, [0, 7, 120, 247, 255])


# promise: exact-formats
@pytest.mark.slow
def test_every_element_with_every_scale(rng):
    """The proof: all 151,552 inputs, in compiled simulation."""
    check(StreamedBlock(WeightDecoder()).run, rng, np.arange(256))
