"""Layouts of tensors in host memory, and their conversion from and to numpy arrays.

A vector is `n` channels of one position. A layout maps a vector's sample, row y, tile and column x to a position in memory, by
an affine map; see :mod:`sim.compiler.memory.affine`.

A tensor is stored as `[sample][y][tile][x]`, with shared margins of zeros. The margin columns after a row are also the margin
before the next row. The margin rows below a sample are also the margin above the next sample. The operands of a padded
convolution, for any range of rows, are therefore contiguous.

Tensors that are read transposed are stored in planes, `[sample][tile][y][x]`, so that n consecutive vectors are n positions.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ...golden.arithmetic import bfloat16
from ...ir.graph import Tensor, span
from ...ir.tiles import tiles_of
from ..program import CompileError
from .affine import Axis, affine_map
from .batching import reads
from .data_tiles import margins

__all__ = ["ZEROS", "ROWS", "PLANES", "Layout", "HostLayout", "packed", "in_lanes", "layout_of", "lay_out"]

#: Vectors of zeros in region MODEL, from which zero margins are loaded.
ZEROS = 64

#: Orders of the axes, from the outermost to the innermost.
ROWS = ("sample", "y", "tile", "x")
PLANES = ("sample", "tile", "y", "x")


@dataclass(frozen=True)
class Layout:
    """The layout of one tensor for a batch. All distances and offsets are in positions.

    Parameters
    ----------
    tensor : Tensor
        If a view stores several rows as one row, the tensor with these rows.
    n : int
    axes : tuple of Axis
        From the outermost to the innermost.
    lead : int
        Zeros before the first sample.
    along_x : bool
        True if samples are stored along x. The sample axis then has chunks; see :mod:`sim.compiler.memory.batching`.
    missing : int
        Number of positions at the end of a sample's last row that hold zeros, as a view stores several rows as one.
    """

    tensor: Tensor
    n: int
    axes: tuple[Axis, ...]
    lead: int = 0
    along_x: bool = False
    missing: int = 0

    @cached_property
    def order(self):
        """Returns the names of the axes."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def _inner(self):
        return {axis.name: axis for axis in self.axes}

    def axis(self, name):
        """Returns the axis of an index; if the index is split, its inner axis."""
        return self._inner.get(name) or Axis(name, 1, 0)

    @cached_property
    def splits(self):
        """Returns the indices that two axes count."""
        return frozenset(name for name in self.order if self.order.count(name) > 1)

    @property
    def groups(self):
        """Returns the first tile of each group of tiles. The rows of a group are stored together, in front of the next group."""
        return range(0, self.tiles, self._together("y"))

    def _together(self, name):
        """Returns the number of tiles that are stored together at each index `name`."""
        return prod(axis.size for axis in self.axes[self.order.index(name) :] if axis.name == "tile")

    @property
    def batch(self):
        return self.axis("sample").size

    @property
    def tiles(self):
        return tiles_of(self.tensor.channels, self.n)

    @property
    def below(self):
        """Returns the number of rows of zeros below every sample."""
        return self.axis("y").margin

    @property
    def beside(self):
        """Returns the number of columns of zeros after every row."""
        return self.axis("x").margin

    @property
    def pitch(self):
        """Returns the positions per row of one tile, including margin columns."""
        return self.tensor.width + self.beside

    @property
    def row(self):
        """Returns the distance from a row y to the next row, in positions."""
        return self.axis("y").stride

    @property
    def column(self):
        """Returns the distance from a column x to the next column, in positions."""
        return self.axis("x").stride

    @property
    def sample(self):
        """Returns the distance from a sample to the next sample, in positions."""
        return self.axis("sample").stride

    @property
    def size(self):
        """Returns the size of the tensor with all samples and margins, in positions."""
        return self.lead + self.batch * self.sample

    @cached_property
    def position(self):
        """Returns the :class:`.AffineMap` from (sample, y, tile, x) to the offset from the start of the tensor, in positions."""
        return affine_map(self.axes, self.lead)

    def ends(self, sample):
        """Returns the margins after the rows of a sample, as a list of (indices of the first vector, number of vectors)."""
        rows, count = range(self.tensor.height if self.beside else 0), self.beside * self.column
        return [((sample, y, tile, self.tensor.width), count) for y in rows for tile in range(0, self.tiles, self._together("x"))]

    def margins(self, sample, beside):
        """Returns the zeros of a sample in host memory, as a list of (position, count): for sample 0 the zeros before it, then
        the rows below, and the columns after its rows if `beside` is True."""
        lead = [(0, self.lead)] if sample == 0 else []
        below = [(self.position(sample, self.tensor.height, tile), self.below * self.row) for tile in self.groups]
        return lead + below + [(self.position(*at), count) for at, count in self.ends(sample) if beside]

    def repacked(self, **changes):
        """Returns the layout with changed arguments of :func:`packed`. No index of the layout may be split."""
        same = {name: getattr(self, name) for name in ("tensor", "n", "batch", "order", "below", "beside", "lead", "along_x")}
        return packed(**same | changes)

    @property
    def samples(self):
        """Returns `(samples per index of the sample axis, distance between these samples)`."""
        return (self.tensor.width, self.axis("x").stride) if self.along_x else (1, 0)

    @property
    def _shape(self):
        """Returns the (height, width) of a sample's values."""
        return (1, 1) if self.along_x else self.tensor.shape[:2]

    def vector(self, sample, y, tile, x):
        """Returns the position of a vector, given the index of its sample in the batch."""
        rows, step = self.samples
        return self.position(sample // rows, y, tile, x) + sample % rows * step

    def element(self, sample, y, x, channel):
        """Returns the offset of a value from the start of the tensor, in values. The indices are integers or integer arrays."""
        return self.vector(sample, y, channel // self.n, x) * self.n + channel % self.n

    @cached_property
    def _vectors(self):
        """Returns the positions of all vectors, (samples, height, tiles, width)."""
        counts = self.batch * self.samples[0], self._shape[0], self.tiles, self._shape[1]
        return self.vector(*np.ix_(*map(np.arange, counts)))

    def pack(self, values):
        """Returns the bytes of bfloat16 values of shape (up to batch, height, width, channels). Missing samples are zeros."""
        values, places = np.asarray(values), self._vectors
        if values.dtype != bfloat16:
            raise TypeError(f"samples must be bfloat16, not {values.dtype}")
        shape = (*self._shape, self.tensor.channels)
        if values.shape[1:] != shape or len(values) > len(places):
            raise ValueError(f"samples must be of shape (up to {len(places)}, {shape}), not {values.shape}")
        padded = np.zeros((*values.shape[:3], self.tiles * self.n), "<u2")
        padded[..., : self.tensor.channels] = values.view(np.uint16)
        whole = np.zeros((self.size, self.n), "<u2")
        whole[places[: len(values)]] = padded.reshape(*values.shape[:3], self.tiles, self.n).swapaxes(2, 3)
        return whole.tobytes()

    def unpack(self, data, dtype="<f4"):
        """Returns float32 (batch, height, width, channels) from the bytes of a tensor. `dtype` is the format in memory: binary32
        or bfloat16."""
        dtype = np.dtype(dtype)
        values = np.frombuffer(bytes(data[: dtype.itemsize * self.n * self.size]), dtype).astype(np.float32).reshape(-1, self.n)
        values = values[self._vectors].swapaxes(2, 3)
        return np.ascontiguousarray(values.reshape(*values.shape[:3], -1)[..., : self.tensor.channels])


def packed(tensor, n, batch, order=ROWS, below=0, beside=0, lead=0, along_x=False):
    """Returns the layout whose axes have the order `order` and follow each other without gaps.

    Parameters
    ----------
    below, beside : int
        Margin rows below every sample, and margin columns after every row.
    """
    sizes = {"sample": (batch, 0), "y": (tensor.height, below), "tile": (tiles_of(tensor.channels, n), 0)}
    sizes["x"], axes, stride = (tensor.width, beside), [], 1
    for name in reversed(order):
        size, margin = sizes[name]
        axes.append(Axis(name, size, stride, margin))
        stride *= size + margin
    return Layout(tensor, n, tuple(reversed(axes)), lead, along_x)


def layout_of(tensor, n, batch, terms, along_x=False):
    """Returns the layout of a tensor. Its margins contain all positions outside the tensor that the readers `terms` access; each
    is (term, size of its sums)."""
    below = beside = top = left = 0
    for term, size in terms:
        before = [max(0, padding) for padding in term.padding]
        after = [
            max(0, span(count, stride, kernel, dilation) - padding - have)
            for count, stride, kernel, dilation, padding, have in zip(
                size, term.stride, term.kernel, term.dilation, term.padding, (tensor.height, tensor.width)
            )
        ]
        top, left = max(top, before[0]), max(left, before[1])
        below, beside = max(below, before[0], after[0]), max(beside, before[1], after[1])
    layout = packed(tensor, n, batch, below=below, beside=beside, along_x=along_x)
    return replace(layout, lead=top * layout.row + left * layout.column)


@dataclass(frozen=True)
class HostLayout:
    """The layouts and addresses of all tensors in host memory.

    Parameters
    ----------
    layouts : dict of tensor name to Layout
    regions : dict of tensor name to `(Region, first vector)`
        Addresses of the tensors that are in host memory.
    sizes : dict of Region to vectors
        Size of each region.
    n : int
    """

    layouts: dict
    regions: dict
    sizes: dict
    n: int

    @property
    def zeros(self):
        """Returns the number of zero vectors at the start of the unified buffer, from which margins in host memory are
        written."""
        written = [self.layouts[name] for name, (region, _) in self.regions.items() if region is not Region.INPUT]
        return min(ZEROS, max(max(one.lead, one.missing, *(axis.margin * axis.stride for axis in one.axes)) for one in written))


def in_lanes(planes, tensor, blocks=1, step=0, before=0):
    """Returns the layout of `tensor`, the transpose of a tensor that is stored in `planes`, at the same addresses. n consecutive
    tiles of `tensor` are n positions of `planes`.

    Each row of `planes` has `blocks` rows of `tensor`. The first block begins `before` positions before the row, and the distance
    between blocks is `step`.
    """
    sample, tile, y, _ = planes.axes
    rows = [y] if blocks == 1 else [y, Axis("y", blocks, step)]
    return Layout(tensor, planes.n, (sample, tile, *rows, Axis("tile", planes.n, 1)), planes.lead - before)


def _viewed(tensor, base, terms):
    """Returns the layouts of `tensor`, which is a view, and of its source, which had the layout `base`. Both have the same
    addresses. Rows of the source are stored together as the view says, and padded to tiles of n positions."""
    viewed, source, view = layout_of(tensor, base.n, base.batch, terms), base.tensor, tensor.view
    if tensor.width > 1:
        planes = viewed.repacked(order=PLANES)
        return planes, in_lanes(planes, source)
    positions = source.height * source.width
    source = replace(source, height=-(-source.height // view.rows), width=source.width * view.rows)
    blocks = tensor.height // source.height
    beside = max(view.before, (blocks - 1) * view.step + base.n - source.width)  # up to the end of the last block
    top, pitch = -(-(viewed.lead // viewed.row) // blocks), source.width + beside
    below = -(-viewed.below // blocks)
    planes = base.repacked(tensor=source, order=PLANES, beside=beside, below=below, lead=top * pitch + view.before)
    missing = source.height * source.width - positions
    return in_lanes(planes, tensor, blocks, view.step, view.before), replace(planes, missing=missing)


def lay_out(batched, n, homes=()):
    """Returns the :class:`HostLayout` of a :class:`sim.compiler.memory.batching.Batched`. `homes` are the names of resident
    tensors, which get no address in host memory."""
    inputs = [gather.tensor.name for gather in batched.gathers]
    used = {name for stage in batched.stages for name in reads(stage)}
    readers = {}
    for stage in batched.stages:
        for term in stage.terms:
            alike = (stage.output in batched.along_x) == (term.source in batched.along_x)
            readers.setdefault(term.source, []).append((term, stage.sums_size if alike else (1, 1)))
    layouts, regions = {}, {}
    sizes = {Region.INPUT: 0, Region.SCRATCH: 0, Region.OUTPUT: 0}
    output, margin = batched.graph.output, margins(batched.stages, batched.tensors, n)
    views = {tensor.view.of: tensor for tensor in batched.tensors.values() if tensor.view}
    for name in dict.fromkeys([*inputs, *(stage.output for stage in batched.stages)]):
        layouts[name] = layout = layout_of(
            batched.tensors[name], n, batched.count(name), readers.get(name, ()), name in batched.along_x
        )
        if name in views:
            layouts[views[name].name], layout = _viewed(views[name], layout, readers[views[name].name])
        if layout.beside < margin.get(name, 0):
            layout = layout.repacked(beside=margin[name])
        layouts[name] = layout
        region = Region.INPUT if name in inputs else Region.OUTPUT if name == output else Region.SCRATCH
        if region is Region.OUTPUT and name in used:
            raise CompileError(
                f"{batched.graph.name}: its output {name!r} is also read inside the network, which is not supported"
            )
        if name not in homes:
            regions[name] = region, sizes[region]
            sizes[region] += layout.size * batched.vectors(name)
            if name in views:
                regions[views[name].name] = regions[name]
    return HostLayout(layouts, regions, sizes, n)
