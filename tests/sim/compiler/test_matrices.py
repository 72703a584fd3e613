"""Tests of matrices in host memory: their layouts, views and parts."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.compiler.memory.matrices import LAYOUTS, Geometry, matrix_of
from amaranth_tpu.sim.golden.arithmetic import bfloat16


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [6, 14, 22])  # fewer and more than n tiles, too
def test_pack_writes_each_number_to_its_place(layout, channels, rng):
    n, (height, width), wide, tiles = 4, (2, 3), layout in ("planes", "numbers"), -(-channels // 4)
    geometry = Geometry(n, 2, height * width, 8, width)
    matrix = matrix_of("x", "samples", geometry.rows, channels, geometry, layout=layout, wide=wide)
    values = rng.integers(1, 1 << 20, (2, height, width, channels)).astype(np.float32 if wide else bfloat16)
    packed, bits = np.frombuffer(matrix.pack(values), "<u2"), np.zeros(matrix.size * n, np.uint16)
    bits.reshape(-1, n)[matrix.vectors] = packed.reshape(-1, n)  # without the vectors after the last tile of a set
    for sample, y, x, channel in np.ndindex(values.shape):
        (tile, lane), row = divmod(channel, n), sample * 8 + y * width + x
        planes, each = [(half * tiles + tile) * 16 + row for half in (0, 1)], lane
        places = {
            "planes": [plane * n + each for plane in planes],
            "numbers": [((tile * 16 + row) * n + lane) * 2 + 1 - half for half in (0, 1)],
            "groups": [((row // n * tiles + tile) * n + row % n) * n + lane],
            "sets": [((tile // n * 16 + row) * n + tile % n) * n + lane],
        }[layout]
        whole = int(values[sample, y, x, channel].view(np.uint32 if wide else np.uint16))
        assert [int(bits[place]) for place in places] == ([whole >> 16, whole & 0xFFFF] if wide else [whole])
    assert np.array_equal(matrix.unpack(packed.tobytes(), values.shape[1:]), values)


@pytest.mark.parametrize("form, rows, channels", [("diagonal", 1 << 18, 16), ("turned", 1 << 9, 1 << 13)])
def test_packing_takes_four_copies_at_most(form, rows, channels):
    values = np.ones((1, 1, rows) if form == "diagonal" else (1, channels, rows), bfloat16)
    matrix = matrix_of("w", form, rows, channels, Geometry(16, 1, 1, 1), Region.MODEL)
    tracemalloc.start()
    try:
        size = len(matrix.pack(values))
        assert tracemalloc.get_traced_memory()[1] < 4 * size == 8 * rows * channels
    finally:
        tracemalloc.stop()


def test_view_has_own_rows_of_each_tile(rng):
    geometry = Geometry(4, 1, 1, 1)
    whole = replace(matrix_of("both", "positions", 7, 6, geometry, pitch=9, wide=True), vector=100)
    views = whole.view("bias", 1, 0), whole.view("weights", 6, 1)
    image = np.zeros((whole.size, 4), np.uint16)
    values = [rng.standard_normal((1, view.rows, 6)).astype(np.float32) for view in views]
    for view, some in zip(views, values):
        image[view.vectors - 100] = np.frombuffer(view.pack(some), "<u2").reshape(-1, 4)
    assert [whole.place(1, 2, 1), views[1].place(1, 1, 1)] == [100 + 3 * 9 + 2] * 2
    expected = np.concatenate(values, axis=1)
    assert np.array_equal(whole.unpack(image[whole.vectors - 100].tobytes(), (1, 7, 6)), expected)


def test_part_has_positions_of_the_whole_matrix():
    whole = matrix_of("whole", "samples", 2 * 24, 4, Geometry(4, 2, 20, 24, 5))
    part = whole.part("part", Geometry(4, 2, 6, 8, 3), (1, 2))  # its period is no multiple of its width
    places = [part.place(0, sample * 8 + y * 3 + x) for sample, y, x in np.ndindex(2, 2, 3)]
    assert places == [sample * 24 + (1 + y) * 5 + 2 + x for sample, y, x in np.ndindex(2, 2, 3)]
