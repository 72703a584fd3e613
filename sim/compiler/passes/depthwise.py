"""A mapping of depthwise convolutions with positions, not channels, in the lanes.

With channels in the lanes, a depthwise convolution uses n of the n x n cells: each weight takes a pass for n results. With
positions in the lanes, a vector holds as many rows of a channel's image as fit. Each channel then has its own weight tiles, which
are band matrices: a column of a tile has a result's weights in the lanes of the result's window. A pass computes as many results
as a vector has positions, from the part of the window that is in one vector.

The layout in host memory is unchanged. There, n consecutive vectors hold n channels of n positions. Loads transpose them into n
vectors that hold n positions of one channel each. The depthwise convolution thus reads its source *transposed*, and the pointwise
convolution after it reads the depthwise result transposed. Rows longer than a vector are read in blocks, which overlap by the
size of the window minus one. Sums keep their order, and all other entries of the tiles are structural zeros (-0), so no bit of a
result changes.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from ...golden.arithmetic import bfloat16
from ...ir.stage import Term
from ...ir.tiles import tiles_of

__all__ = ["map_depthwise"]

_ZERO = 0x8000  # adding x * -0 changes at most the sign of a zero, which the accumulators do not keep


@dataclass(frozen=True, eq=False)
class _Band:
    """A depthwise term, mapped to vectors with `rows` rows of the source and `made` rows of the result.

    If a row of the source is longer than a vector, `rows` and `made` are 1, and a vector of the result has a block of a row. The
    source's vector then holds all positions in the windows of this block, so neighbouring vectors overlap.
    """

    term: Term
    kernel: np.ndarray  # weights (kernel height, kernel width, 1, channels)
    #: source, result: Height and width.
    source: tuple[int, int]
    result: tuple[int, int]
    rows: int
    made: int
    columns: int  # columns of the result in a vector

    @property
    def lanes(self):
        return self.made * self.columns

    @property
    def size(self):
        """Vectors of the result along y and x."""
        return tiles_of(self.result[0], self.made), self.result[1] // self.columns

    @cached_property
    def step(self):
        """Returns the distance, in source vectors, between the windows of two consecutive result vectors."""
        if self.size[0] == 1:
            return 1
        step, rest = divmod(self.term.stride[0] * self.made, self.rows)
        return None if rest else step

    def _seen(self, left):
        """Yields `(result row, column, kernel row, kernel column, source row, column)` for each product of the first result
        vector at column `left`."""
        (sy, sx), (dy, dx), (py, px) = self.term.stride, self.term.dilation, self.term.padding
        for y, x, ky, kx in product(range(self.made), range(self.columns), *map(range, self.term.kernel)):
            row, column = y * sy + ky * dy - py, (left + x) * sx + kx * dx - px
            if 0 <= column < self.source[1] and (self.size[0] > 1 or 0 <= row < self.source[0] and y < self.result[0]):
                yield y, x, ky, kx, row, column

    @cached_property
    def reach(self):
        """Returns the indices of the first and the last source vector in the windows of the first result vector. Windows that
        see only padding read the first vector."""
        rows = [row // self.rows for *_, row, _ in self._seen(0)] or [0]
        return min(rows), max(rows)

    @property
    def passes(self):
        return self.reach[1] - self.reach[0] + 1

    def with_positions_in_lanes(self, n):
        """Returns the weights of band matrices, and the fields of a term that reads vectors of positions."""
        made = [self._weights(n, block * self.columns) for block in range(self.size[1])]
        kinds = {one.tobytes(): one for _, one in made}
        blocks = tuple((first, [*kinds].index(one.tobytes())) for first, one in made)
        windows = {"stride": (self.step, 1), "dilation": (1, 1), "padding": (-self.reach[0], 0)}
        return np.concatenate([*kinds.values()]), windows | {"lanes": self.rows * self.source[1], "blocks": blocks}

    def _weights(self, n, left):
        """Returns `(first column of the source's vectors, weights)` of result vectors at column `left`. The weights of positions
        outside the source are -0."""
        kernel, channels = self.kernel.view(np.uint16), self.kernel.shape[3]
        start = min(max(left * self.term.stride[1] - self.term.padding[1], 0), max(0, self.source[1] - n))
        band = np.full((self.passes, n, channels, n), _ZERO, np.uint16)
        for y, x, ky, kx, row, column in self._seen(left):
            block, place = divmod(row, self.rows)
            band[block - self.reach[0], place * self.source[1] + column - start, :, y * self.columns + x] = kernel[ky, kx, 0]
        return start, band.reshape(self.passes, n, channels * n).view(bfloat16)


def _is_depthwise(graph, stage):
    term, channels = stage.terms[0], graph.channels(stage)
    alone = len(stage.terms) == 1 and not graph.is_product(term) and 0 not in term.stride
    return alone and 1 < term.groups == channels and graph.tensors[term.weights].width == 1


def _is_pointwise(graph, stage):
    term = stage.terms[0]
    return (
        len(stage.terms) == 1
        and not (graph.is_product(term) or term.sparse or term.copies or any(term.padding))
        and (term.groups == 1 and term.kernel == term.stride == (1, 1))
    )


def _is_plain(graph, stage):
    beyond = stage.pool or stage.softmax or stage.times or graph.has_bias_rows(stage)
    return not (beyond or stage.origin != (0, 0))


class _DepthwiseMapping:
    """Chooses the depthwise stages to map with positions in the lanes. In all methods, `number` is the index of such a stage."""

    def __init__(self, graph, n, batch):
        self.graph, self.n, self.batch = graph, n, batch
        self.readers, self.writers = {}, {}
        for number, stage in enumerate(graph.stages):
            self.writers.setdefault(stage.output, []).append(number)
            for name in {*stage.operands}:
                self.readers.setdefault(name, []).append(number)

    def pair(self, number):
        """Returns the index of the pointwise stage that reads depthwise stage `number`, if both stages can be mapped."""
        graph, stage = self.graph, self.graph.stages[number]
        whole, channels = graph.tensors[stage.output].shape[:2], graph.channels(stage)
        if not (_is_depthwise(graph, stage) and _is_plain(graph, stage)) or channels % self.n or stage.output in graph.outputs:
            return None
        source, behind = stage.terms[0].source, self.readers.get(stage.output, ())
        if len(self.writers.get(source, ())) != 1 or self.readers[source] != [number]:
            return None
        if len(behind) != 1 or len(self.writers[stage.output]) != 1:
            return None
        reader = graph.stages[behind[0]]
        if not (_is_pointwise(graph, reader) and _is_plain(graph, reader)) or reader.output in graph.outputs:
            return None
        return behind[0] if reader.size == stage.size == whole and self._begins_whole(source) else None

    def _begins_whole(self, name):
        writer = self.graph.stages[self.writers[name][0]]
        beyond = writer.softmax or writer.times or self.graph.has_bias_rows(writer)
        return not beyond and writer.result_size == self.graph.tensors[name].shape[:2]

    def _block(self, stage):
        """Returns the largest possible number of results per vector if rows of the source are split into blocks. Returns 0 if
        the rows cannot be split."""
        term, width = stage.terms[0], stage.size[1]
        most = self.n - (term.kernel[1] - 1) * term.dilation[1]
        if term.stride != (1, 1) or min(term.padding) < 0:
            return 0
        return max((step for step in range(1, most + 1) if width % step == 0), default=0)

    def _bands(self, stage):
        term, (height, width) = stage.terms[0], stage.size
        kernel, source = self.graph.kernel(term), self.graph.tensors[term.source].shape[:2]
        if source[1] > self.n:
            columns = self._block(stage)
            return [_Band(term, kernel, source, stage.size, 1, 1, columns)] if columns else []
        rows, made = (range(1, min(one, self.n // across) + 1) for one, across in (source, (height, width)))
        bands = (_Band(term, kernel, source, stage.size, *one, width) for one in product(rows, made))
        return [band for band in bands if band.step is not None]

    def best(self, number):
        """Returns the :class:`_Band` that saves the most cycles of the array. Returns None if none saves any."""
        if self.pair(number) is None:
            return None
        stage, channels = self.graph.stages[number], self.graph.channels(self.graph.stages[number])
        before = prod(stage.terms[0].kernel) * tiles_of(channels, self.n) * max(self.n, prod(stage.size)) * self.batch
        saved = {band: before - band.passes * channels * max(self.n, prod(band.size) * self.batch) for band in self._bands(stage)}
        band = max(saved, key=lambda one: saved[one], default=None)
        return band if band and worth(saved[band]) else None


def worth(saved):
    """Returns True if a mapping is used that saves `saved` cycles of the array."""
    return saved > 0


def map_depthwise(graph, config, batch):
    """Returns the graph in which depthwise convolutions are mapped with positions in the lanes where this saves cycles of the
    array. The core must have `transpose`."""
    mapping = _DepthwiseMapping(graph, config.n, batch)
    bands = {number: band for number in range(len(graph.stages) * config.transpose) if (band := mapping.best(number))}
    made = graph.copied()
    made.stages = [*graph.stages]
    for number, band in bands.items():
        _replace(mapping, made, number, band, config.n)
    return made if bands else graph


def _replace(mapping, made, number, band, n):
    stage, behind = made.stages[number], mapping.pair(number)
    weights, fields = band.with_positions_in_lanes(n)
    term, tensor = stage.terms[0], made.tensors[stage.output]
    name = made.constant(f"{term.weights}, as bands", weights)
    term = replace(term, weights=name, kernel=(band.passes, 1), **fields)
    channels = tensor.channels * n
    start = stage.start and made.constant(f"{stage.start}, in lanes", np.repeat(made.constants[stage.start], n, axis=2))
    made.tensors[stage.output] = replace(tensor, channels=channels, height=band.size[0], width=band.size[1])
    made.stages[number] = replace(stage, terms=(term,), size=band.size, start=start)
    term = replace(made.stages[behind].terms[0], lanes=band.lanes)
    made.stages[behind] = replace(made.stages[behind], terms=(term,))
