# amaranth: UnusedElaboratable=no
"""Tests of a SELECT lane, covering every operand against each condition, and the time for which the lane holds its decision."""

import functools
import random

import numpy as np
import pytest

from amaranth_tpu.hw.activation.select_lane import SelectLane
from amaranth_tpu.sim.rtl.streams import StreamedBlock, simulate_columns
from seeds import seed

OPERANDS = np.arange(1 << 16, dtype=np.uint32)


def above_zero(bits):
    """Returns True for each bfloat16 bit pattern that numpy finds above 0. Subnormals count as 0."""
    values = (np.asarray(bits, np.uint32) << np.uint32(16)).view(np.float32)
    return values >= np.float32(2.0**-126)


def test_by_hand():
    above = [0x0080, 0x3F80, 0x7F7F, 0x7F80]  # from the least normal number to infinity
    others = [0x0000, 0x8000, 0x0001, 0x007F, 0x8080, 0xBF80, 0xFF80, 0x7F81, 0x7FC0, 0xFFC0]  # also subnormals and NaNs
    found = simulate_columns(SelectLane(), take=[1] * 14 + [0], operand=[*above, *others, 0])
    assert found["keep"][1:].tolist() == [1] * 4 + [0] * 10


@functools.cache
def block():
    return StreamedBlock(SelectLane())


def kept(operands, *, equal, number):
    """Streams one operand a cycle through a lane. Returns True for each operand for which the lane keeps the value."""
    columns = {"take": 1, "operand": np.append(operands, 0), "equal": equal, "number": number}
    return block().run(**columns)["keep"][1:]


# promise: select-rounds
@pytest.mark.slow
def test_keeps_operands_above_zero():
    """A SELECT lane keeps exactly the operands above 0, for all 65,536 operands and regardless of `number`."""
    for number in (0, 0x80, 0xFF):
        assert (kept(OPERANDS, equal=0, number=number) == above_zero(OPERANDS)).all()


@pytest.mark.parametrize("numbers", [(0, 3, 0x80, 0xFF), pytest.param(range(256), marks=pytest.mark.slow)], ids=len)
def test_keeps_operands_with_equal_index(numbers):
    """With `equal`, a SELECT lane keeps exactly the operands whose low 8 bits equal `number`, for all 65,536 operands including
    NaNs."""
    for number in numbers:
        assert (kept(OPERANDS, equal=1, number=number) == (OPERANDS % 256 == number)).all()


def test_lane_holds_decision():
    """A SELECT lane holds its decision to keep a value or not until it takes the next operand or until `keep_all` is set."""
    rng = random.Random(seed())
    cycles = 3000
    columns = {
        "take": [rng.random() < 0.3 for _ in range(cycles)],
        "keep_all": [rng.random() < 0.3 for _ in range(cycles)],
        "operand": [rng.getrandbits(16) for _ in range(cycles)],
        "equal": [rng.getrandbits(1) for _ in range(cycles)],
        "number": [rng.getrandbits(8) for _ in range(cycles)],
    }
    columns["number"] = [x & 0xFF if rng.random() < 0.5 else y for x, y in zip(columns["operand"], columns["number"])]
    columns["keep_all"][0] = True
    found, expected = simulate_columns(SelectLane(), **columns)["keep"], None
    for cycle, (take, keep_all, x, equal, number) in enumerate(zip(*columns.values())):
        assert expected is None or found[cycle] == expected
        if take:
            expected = x & 0xFF == number if equal else bool(above_zero([x])[0])
        elif keep_all:
            expected = True
