# amaranth: UnusedElaboratable=no
"""Tests of a lane of the format INDEX, which outputs the index of the row that holds a window's maximum."""

import random

from amaranth_tpu.hw.activation.index_lane import IndexLane
from amaranth_tpu.sim.benches.activation_model import sums
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl.streams import simulate_columns
from seeds import seed


def test_relu_hides_index_of_nonpositive_sums():
    """An INDEX lane outputs the given index (7) for every hand-picked sum; with ReLU it outputs 255 if the sum is at most 0."""
    table = [
        (0x00000000, 255),
        (0x80000000, 255),
        (0x00800000, 7),  # the least number above 0
        (0x80800000, 255),
        (0x7F800000, 7),
        (0xFF800000, 255),
        (golden.NAN, 7),  # a NaN counts as above 0
    ]
    for relu in (0, 1):
        columns = {"take": [1] * len(table), "number": [7] * len(table), "relu": [relu] * len(table)}
        found = simulate_columns(IndexLane(), value=[value for value, _ in table], **columns)["o"]
        assert found[1:].tolist() == [expected if relu else 7 for _, expected in table][:-1]


def test_lane_keeps_last_taken_index():
    """An INDEX lane outputs the 16-bit index that it took last, or 255 for a value that ReLU sets to 0. The output does not
    change until the lane takes the next index."""
    rng = random.Random(seed())
    cycles = 3000
    values = sums(rng, cycles).tolist()
    columns = {
        "take": [rng.random() < 0.5 for _ in range(cycles)],
        "number": [rng.getrandbits(16) for _ in range(cycles)],
        "value": values,
        "relu": [rng.getrandbits(1) for _ in range(cycles)],
    }
    found, expected = simulate_columns(IndexLane(), **columns)["o"], None
    for cycle, (take, count, value, relu) in enumerate(zip(*columns.values())):
        assert expected is None or found[cycle] == expected
        if take:
            expected = 255 if relu and not int(golden.relu(value)) else count
