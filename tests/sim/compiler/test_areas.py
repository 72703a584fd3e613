"""Tests of areas: transfers carry each vector from its position in host memory to its place in the buffer."""

from dataclasses import replace
from itertools import product

import pytest

from amaranth_tpu.sim.compiler.memory.affine import Axis
from amaranth_tpu.sim.compiler.memory.areas import Area, whole_area
from amaranth_tpu.sim.compiler.memory.layout import PLANES, ROWS, Layout, in_lanes, packed
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
        area = Area(layout, (0, 2), rows, tiles, columns, left)
        _check(area)
        first, *others = (area.place(*at) for at in ((0, 0, 1, 1), (1, 0, 1, 1), (0, 1, 1, 1), (0, 0, 2, 1), (0, 0, 1, 2)))
        assert [place - first for place in others] == [area.sample, area.row, area.plane, area.column]


def _in_pairs(*axes, lead):
    """Returns a layout of two pairs of tiles."""
    return Layout(Tensor("t", 13, 4, 5), 4, (Axis("sample", 3, 144), *axes), lead)


#: Two tiles of a row are adjacent, or two tiles of a position.
PAIRS = {
    "sample, pair, y, tile, x": _in_pairs(
        Axis("tile", 2, 72), Axis("y", 4, 12, 2), Axis("tile", 2, 6), Axis("x", 5, 1, 1), lead=13
    ),
    "sample, y, pair, x, tile": _in_pairs(
        Axis("y", 4, 24, 2), Axis("tile", 2, 12), Axis("x", 5, 2, 1), Axis("tile", 2, 1), lead=26
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("tiles", [(0, 4), (2, 4), (0, 2)])
@pytest.mark.parametrize("columns", [None, (0, 5), (1, 3)])
def test_vectors_of_pairs_of_tiles_are_transferred_to_their_places(name, tiles, columns):
    layout = PAIRS[name]
    for rows, left in product([(0, 4), (-1, 2)], (0, 1)):
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


def _covered(ranges):
    return [place for first, count in ranges for place in range(first, first + count)]


def _check_margins(layout):
    """Checks the margins of all samples in host memory, and around the values of a whole sample in the buffer."""
    vectors = [*product(range(3), range(4), range(layout.tiles), range(5))]
    zeros = [one for sample in range(3) for one in layout.margins(sample, beside=True)]
    assert sorted([*_covered(zeros), *(layout.position(*at) for at in vectors)]) == [*range(layout.size)]
    assert sum(count for _, count in layout.margins(1, beside=False)) == layout.below * layout.tiles * layout.pitch
    area = whole_area(layout, (1, 2))
    values = [area.place(*at) for at in vectors if at[0] == 1]
    assert sorted([*_covered(area.margins()), *values]) == [*range(area.size)]
    assert whole_area(layout, (0, 1)).transfers()[0][0] == 0, "the zeros before the first sample are part of it"


@pytest.mark.parametrize("order", [ROWS, PLANES])
@pytest.mark.parametrize("margins", [{}, {"lead": 13} | _MARGINS, {"below": 2, "lead": 12}, {"beside": 3}])
def test_margins_are_all_positions_without_values(order, margins):
    _check_margins(packed(Tensor("t", 7, 4, 5), 4, 3, order, **margins))


@pytest.mark.parametrize("name", PAIRS)
def test_margins_of_pairs_of_tiles_are_all_positions_without_values(name):
    _check_margins(PAIRS[name])


def test_inner_transfers_leave_out_the_margin_rows():
    planes = packed(Tensor("t", 8, 4, 4), 4, 3, PLANES, below=2, lead=8)
    area = Area(in_lanes(planes, Tensor("t, transposed", 32, 4)), (1, 2), (-1, 5), (0, 8), None, 0)
    carried = {place + index: host + index for host, place, count in area.inner_transfers() for index in range(count)}
    everything = product(range(1, 2), range(4), range(8), range(1))
    assert carried == {area.place(*at): area.layout.position(*at) for at in everything}
    assert replace(area, rows=(-2, 0)).inner_transfers() == replace(area, rows=(4, 6)).inner_transfers() == []


def test_transfers_within_a_sample_are_one_if_host_memory_is_contiguous():
    layout = packed(Tensor("t", 11, 4, 5), 4, 3, ROWS, **_MARGINS, lead=11)
    assert len(Area(layout, (0, 3), (-1, 4), (0, 3), None, 1).transfers()) == 3
    area = whole_area(layout, (0, 1))
    assert area.transfers() == [[0, 0, area.size]] and area.place(0, 0, 0, 0) == layout.lead
