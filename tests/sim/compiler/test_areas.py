"""Tests of areas: transfers carry each vector from its position in host memory to its place in the buffer."""

from itertools import product

import pytest

from amaranth_tpu.sim.compiler.memory.areas import Area, whole_area
from amaranth_tpu.sim.compiler.memory.layout import PLANES, ROWS, in_lanes, packed
from amaranth_tpu.sim.ir.graph import Tensor

_MARGINS = {"below": 2, "beside": 1}


def _carried(area):
    """Returns {place in the area: position in host memory}."""
    found = {}
    for host, place, count in area.transfers():
        found |= {place + index: host + index for index in range(count)}
    assert sorted(found) == list(range(area.size))
    return found


def _check(area):
    carried = _carried(area)
    width = range(*area.columns) if area.columns else range(-area.left, area.layout.pitch)
    for at in product(*(range(*ends) for ends in (area.samples, area.rows, area.tiles)), width):
        assert carried[area.place(*at)] == area.layout.position(*at), at


@pytest.mark.parametrize("order", [ROWS, PLANES])
@pytest.mark.parametrize("tiles", [(0, 3), (1, 3), (2, 3)])
@pytest.mark.parametrize("columns", [None, (0, 5), (-1, 3)])
def test_every_vector_is_transferred_to_its_place(order, tiles, columns):
    layout = packed(Tensor("t", 11, 4, 5), 4, 3, order, **_MARGINS, lead=9)
    for rows, left in product([(0, 4), (-1, 2), (2, 6)], (0, 1)):
        _check(Area(layout, (0, 2), rows, tiles, columns, left))


@pytest.mark.parametrize("blocks,step,before", [(1, 4, 0), (2, 3, 1), (2, 4, 0)])
@pytest.mark.parametrize("tiles", [(0, 8), (4, 8)])
def test_every_transposed_vector_is_transferred_to_its_place(blocks, step, before, tiles):
    planes = packed(Tensor("t", 8, 4, 7), 4, 3, PLANES, below=1, beside=2, lead=9 + before)
    layout = in_lanes(planes, Tensor("t, transposed", 32, 4 * blocks), blocks, step, before)
    for rows in [(0, 4 * blocks), (-1, 2), (3, 4 * blocks + 1)]:
        _check(Area(layout, (1, 3), rows, tiles, None, 0))


@pytest.mark.parametrize("blocks,step,before", [(1, 4, 0), (2, 3, 1), (2, 4, 0)])
def test_tiles_of_a_transposed_tensor_are_positions_of_its_source(blocks, step, before):
    planes = packed(Tensor("t", 8, 4, 7), 4, 3, PLANES, below=1, beside=2, lead=9 + before)
    layout = in_lanes(planes, Tensor("t, transposed", 32, 4 * blocks), blocks, step, before)
    for sample, y, block, tile, x in product(range(3), range(-1, 5), range(blocks), range(2), range(4)):
        expected = planes.position(sample, y, tile, block * step - before + x)
        assert layout.position(sample, y * blocks + block, tile * 4 + x) == expected


def test_transfers_within_a_sample_are_one_if_host_memory_is_contiguous():
    layout = packed(Tensor("t", 11, 4, 5), 4, 3, ROWS, **_MARGINS, lead=11)
    assert len(Area(layout, (0, 3), (-1, 4), (0, 3), None, 1).transfers()) == 3
    area = whole_area(layout, (0, 1))
    assert area.transfers() == [[0, 0, area.size]] and area.place(0, 0, 0, 0) == layout.lead
