"""Copies of results, which a sum stores beside them for gradients of convolutions' weights.

Such a gradient is a product over the positions of all samples. Its operands are the gradient of the convolution's sums,
transposed, and, for each kernel position, n positions of the source as a weight tile. A copy of the source has the columns of the
windows at one kernel column, line after line. So the n positions are consecutive rows, and a kernel row is an offset of whole
lines. A copy of the gradient has whole tiles of rows for each sample, padded with zeros. Values of the source that zeros multiply
must be finite.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ...ir.tiles import tiles_of
from ..memory.matrices import Axis, Geometry, Matrix, matrix_of, stretches
from .convolutions import is_window

__all__ = ["Copy", "GradientCopies", "Layout", "copies_for", "copies_of", "gradient_copies"]


@dataclass(frozen=True)
class Layout:
    """The layout of a copy."""

    geometry: Geometry  # of the copy
    #: First line and first column of the tensor in each block of the copy. Negative: the copy has zeros there.
    corners: tuple[tuple[int, int], ...] = ((0, 0),)
    step: int = 1  # lines of the tensor from one line of the copy to the next

    def is_whole(self, tensor):
        """Returns True if the copy has the lines of a tensor, whose geometry is `tensor`, and no others."""
        sizes = ((one.positions, one.width) for one in (self.geometry, tensor))
        return self.corners == ((0, 0),) and self.step == 1 and len({*sizes}) == 1

    def ranges(self, tensor, first, count):
        """Yields `(block, first row of the copy, first row of the tensor, rows)` of the rows that a copy has of `count` rows of a
        tensor from row `first` on. `tensor` is the tensor's geometry."""
        geometry, rows = self.geometry, np.arange(first, first + count)
        rows = rows[tensor.is_row(rows)]
        sample, position = np.divmod(rows, tensor.period)
        y, x = np.divmod(position, tensor.width)
        for block, (top, left) in enumerate(self.corners):
            line, rest = np.divmod(y - top, self.step)
            column = x - left
            there = (rest == 0) & (line >= 0) & (line * geometry.width < geometry.positions)
            there &= (column >= 0) & (column < geometry.width)
            places = sample * geometry.period + line * geometry.width + column
            yield from ((block, *one) for one in stretches(places[there], rows[there]))


@dataclass(frozen=True)
class Copy:
    """A copy of a tensor's matrix."""

    layout: Layout
    matrix: Matrix  # has a block of channels for each corner of the layout

    def ranges(self, tensor, tile, first, count):
        """Yields `(first vector in the region, first row of the tensor, rows)` of the rows of a tile that a copy has; see
        :meth:`Layout.ranges`."""
        for block, place, row, rows in self.layout.ranges(tensor, first, count):
            yield self.matrix.place(block * self.matrix.each + tile, place), row, rows


@dataclass(frozen=True)
class GradientCopies:
    """The layouts of the copies for a term that sums a gradient of weights."""

    term: Any
    rows: Geometry  # whole tiles of rows for each sample
    source: Layout
    gradient: Layout | None  # none: the gradient has whole tiles without a copy

    def windows(self, source):
        """Returns the windows of a matrix, with a block of channels for each kernel position."""
        copied, (_, width), each = source.copy(self.source), self.term.kernel, source.each
        row, tile, (down, *_) = copied.strides["row"], copied.strides["tile"], self.term.stride
        apart = self.term.dilation[0]
        around = max(1, down // apart)  # kernel rows, after which the lines of the tensor are those of a line of the copy again
        axes = (
            Axis("tile", around * width * each, max(1, apart // down) * self.source.geometry.width * row),
            Axis("tile", each, each * tile),
            Axis("tile", 1, tile),
            Axis("row", self.rows.period, copied.geometry.period * row),
            Axis("row", 1, row),
            *(axis for axis in copied.axes if axis.of in ("half", "lane")),
        )
        fields = {"name": f"windows of {source.name}", "rows": self.rows.rows, "geometry": self.rows, "axes": axes}
        return replace(copied, blocks=prod(self.term.kernel), **fields)


def _corner(term, y, x):
    """Returns `(line, corner)` of a kernel position: its first line in the block with this corner."""
    line, rest = divmod(y * term.dilation[0], term.stride[0])
    return line, (rest - term.padding[0], x * term.dilation[1] - term.padding[1])


def gradient_copies(step, geometries, n):
    """Returns {term: :class:`GradientCopies`} of the terms that sum gradients of weights over windows. Terms are left out if
    copies do not exist, or cost more than the windows as a matrix of their own."""
    made, found = {stage.output for stage in step.stages}, {}
    for stage in step.stages:
        for term in stage.terms if not step.tensors[stage.output].samples else ():
            read = step.tensors[term.source], step.tensors[term.weights]
            size = read[1].height, read[1].width
            plain = all(one.samples and one.name in made and not one.wide for one in read)
            if plain and term.groups == 1 and term.stride[1] == 1 and is_window(step, term, size):
                copies = copies_of(term, geometries[size], tiles_of(read[1].channels, n) * n, n)
                found |= {term: copies} if copies else {}
    return found


def copies_of(term, geometry, outputs, n):
    """Returns the :class:`GradientCopies` of a term, or None. `geometry` is the geometry of the gradient, which has `outputs`
    channels."""
    period, width = -(-geometry.period // n) * n, geometry.width
    down, apart = term.stride[0], term.dilation[0]
    if down % apart and apart % down or geometry.positions == 1 or period * outputs > geometry.positions * (outputs + n):
        return None
    lines = geometry.positions // width + _corner(term, term.kernel[0] - 1, 0)[0]
    rows, whole = lines * width, replace(geometry, period=period)
    copied = replace(geometry, positions=rows, period=rows + period - geometry.positions)
    corners = dict.fromkeys(_corner(term, *one)[1] for one in np.ndindex(term.kernel))
    source = Layout(copied, tuple(corners), term.stride[0])
    return GradientCopies(term, whole, source, Layout(whole) if period > geometry.period else None)


def copies_for(matrix, terms, take):
    """Allocates the copies of a matrix that `terms` read, {term: :class:`GradientCopies`}. Returns them as a tuple of
    :class:`Copy`. `take(region, vectors)` returns the first of some free vectors."""
    layouts, found = [], []
    for term, one in terms.items() if matrix.form == "samples" else ():
        layouts += [one.source] if term.source == matrix.name else []
        layouts += [one.gradient] if term.weights == matrix.name and one.gradient else []
    for layout in dict.fromkeys(layouts):
        geometry, name = layout.geometry, f"{matrix.name}, copy {len(found)}"
        sizes = geometry.batch * geometry.period, matrix.channels, geometry
        made = matrix_of(name, "samples", *sizes, blocks=len(layout.corners))
        found.append(Copy(layout, replace(made, vector=take(Region.SCRATCH, made.size))))
    return tuple(found)
