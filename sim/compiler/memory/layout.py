"""Layouts of tensors in host memory, and their conversion from and to numpy arrays.

A vector is `n` channels of one position. A tensor is stored as `[sample][y][tile][x]`, in tiles of `n` channels, with shared
margins of zeros. The margin columns after a row are also the margin before the next row. The margin rows below a sample are also
the margin above the next sample. The operands of a padded convolution, for any range of rows, are therefore contiguous.

Tensors of a training step are stored in planes, `[sample][tile][y][x]`, so that n consecutive vectors are n positions.
"""

from dataclasses import dataclass, replace

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ...golden.arithmetic import bfloat16
from ...ir.graph import Tensor, span
from ...ir.tiles import tiles_of
from ..program import CompileError
from .batching import reads
from .data_tiles import margins

__all__ = ["ZEROS", "Layout", "HostLayout", "layout_of", "lay_out"]

#: Vectors of zeros in region MODEL, from which zero margins are loaded.
ZEROS = 64


@dataclass(frozen=True)
class Layout:
    """The layout of one tensor for a batch. All distances and offsets are in positions.

    Parameters
    ----------
    tensor : Tensor
    n, batch : int
    below, beside : int
        Rows of zeros below every sample, and columns of zeros after every row.
    lead : int
        Zeros before the first sample.
    along_x : bool
        True if samples are stored along x. The sample axis then has chunks; see :mod:`sim.compiler.memory.batching`.
    planar : bool
        True for the order `[sample][tile][y][x]`.
    behind : int
        Zeros after every plane of a planar layout.
    grouped : bool
        True for a tensor of one column that is stored at the addresses of a planar tensor, of which it is the transpose (or which
        is its transpose). n consecutive tiles of this tensor are n positions of the planar one.
    base : Layout or None
        For a tensor that is transposed in blocks of positions: the layout of the tensor from which it is transposed. Each of the
        source's rows has several blocks.
    """

    tensor: Tensor
    n: int
    batch: int
    below: int = 0
    beside: int = 0
    lead: int = 0
    along_x: bool = False
    planar: bool = False
    behind: int = 0
    grouped: bool = False
    base: "Layout | None" = None

    @property
    def tiles(self):
        return tiles_of(self.tensor.channels, self.n)

    @property
    def pitch(self):
        """Returns the positions per row of one tile, including margin columns."""
        return self.tensor.width + self.beside

    @property
    def row(self):
        """Returns the distance from a row y to the next row, in positions."""
        return self.n if self.grouped else self.pitch if self.planar else self.tiles * self.pitch

    @property
    def plane(self):
        """Returns the distance from a tile to the next tile, in positions."""
        return (self.tensor.height + self.below) * self.pitch + self.behind if self.planar else self.pitch

    @property
    def sample(self):
        """Returns the distance from a sample to the next sample, in positions."""
        if self.grouped:
            return self.tiles * (self.tensor.height + self.below)
        return self.tiles * self.plane if self.planar else (self.tensor.height + self.below) * self.row

    @property
    def size(self):
        """Returns the size of the tensor with all samples and margins, in positions."""
        return self.lead + self.batch * self.sample

    def position(self, sample, y, tile=0, x=0):
        """Returns the offset of a position from the start of the tensor, in positions. y and x may be in the margins."""
        if self.base and self.tensor.block:
            step, before = self.tensor.block
            row, block = divmod(y, self.tensor.height // self.base.tensor.height)
            return self.base.position(sample, row, tile // self.n, block * step - before) + tile % self.n
        if self.grouped:
            group, place = divmod(tile, self.n)
            return self.lead + sample * self.sample + (group * (self.tensor.height + self.below) + y) * self.n + place
        return self.lead + sample * self.sample + y * self.row + tile * self.plane + x

    def _view(self, vectors):
        """Returns the tensor's vectors, (positions without the lead, n), as a view of shape (batch, height, tiles, width, n)
        without margins."""
        height, width = self.tensor.height, self.tensor.width
        if self.planar:
            planes = vectors.reshape(self.batch, self.tiles, self.plane, self.n)[:, :, : height * self.pitch]
            return planes.reshape(self.batch, self.tiles, height, self.pitch, self.n)[..., :width, :].swapaxes(1, 2)
        return vectors.reshape(self.batch, height + self.below, self.tiles, self.pitch, self.n)[:, :height, :, :width]

    def pack(self, values):
        """Returns the bytes of bfloat16 values of shape (up to batch, height, width, channels). Missing samples are zeros."""
        values = np.asarray(values)
        if values.dtype != bfloat16:
            raise TypeError(f"samples must be bfloat16, not {values.dtype}")
        if values.shape[1:] != self.tensor.shape or len(values) > self.batch:
            raise ValueError(f"samples must be of shape (up to {self.batch}, {self.tensor.shape}), not {values.shape}")
        padded = np.zeros((self.batch, *self.tensor.shape[:2], self.tiles * self.n), "<u2")
        padded[: len(values), ..., : self.tensor.channels] = values.view(np.uint16)
        whole = np.zeros((self.batch * self.sample, self.n), "<u2")
        self._view(whole)[:] = padded.reshape(*padded.shape[:3], self.tiles, self.n).transpose(0, 1, 3, 2, 4)
        return bytes(2 * self.n * self.lead) + whole.tobytes()

    def unpack(self, data, dtype="<f4"):
        """Returns float32 (batch, height, width, channels) from the bytes of a tensor. `dtype` is the format in memory: binary32
        or bfloat16."""
        dtype = np.dtype(dtype)
        values = np.frombuffer(bytes(data[: dtype.itemsize * self.n * self.size]), dtype).astype(np.float32)[self.lead * self.n :]
        values = self._view(values).transpose(0, 1, 3, 2, 4)
        return np.ascontiguousarray(values.reshape(*values.shape[:3], -1)[..., : self.tensor.channels])


def layout_of(tensor, n, batch, terms, along_x=False, planar=False):
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
    layout = Layout(tensor, n, batch, below, beside, along_x=along_x, planar=planar)
    return replace(layout, lead=top * layout.row + left)


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
        return min(ZEROS, max(max(one.below * one.row, one.lead, one.beside) for one in written))


def _transposed(tensor, base, terms):
    """Returns the layouts of the transposed tensor `tensor` and of its source, which is stored with the layout `base`. Both have
    the same addresses. Rows of the source are padded to tiles of n positions."""
    transposed = layout_of(tensor, base.n, base.batch, terms)
    if tensor.width > 1:
        return replace(transposed, planar=True), replace(base, grouped=True)
    if tensor.block:
        (step, before), blocks = tensor.block, tensor.height // base.tensor.height
        beside = max(before, (blocks - 1) * step + base.n - base.tensor.width)  # up to the end of the last block
        base = replace(base, beside=beside, below=-(-transposed.below // blocks), planar=True)
        base = replace(base, lead=base.below * base.row + before)
        return replace(transposed, grouped=True, base=base), base
    lead = transposed.lead // transposed.row * base.n
    base = replace(base, beside=base.n - base.tensor.width, below=transposed.below, lead=lead, planar=True)
    return replace(transposed, lead=lead, grouped=True), base


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
    transposed = {tensor.transpose_of: name for name, tensor in batched.tensors.items() if tensor.transpose_of}
    for name in dict.fromkeys([*inputs, *(stage.output for stage in batched.stages)]):
        layouts[name] = layout = layout_of(
            batched.tensors[name], n, batched.count(name), readers.get(name, ()), name in batched.along_x
        )
        if name in transposed:
            layouts[transposed[name]], layout = _transposed(batched.tensors[transposed[name]], layout, readers[transposed[name]])
        layouts[name] = layout = replace(layout, beside=max(layout.beside, margin.get(name, 0)))
        region = Region.INPUT if name in inputs else Region.OUTPUT if name == output else Region.SCRATCH
        if region is Region.OUTPUT and name in used:
            raise CompileError(
                f"{batched.graph.name}: its output {name!r} is also read inside the network, which is not supported"
            )
        if name not in homes:
            regions[name] = region, sizes[region]
            sizes[region] += layout.size * (2 if region is Region.OUTPUT and batched.wide else 1)
            if name in transposed:
                regions[transposed[name]] = regions[name]
    return HostLayout(layouts, regions, sizes, n)
