"""Tiles of weights that are values of another tensor, read from host memory as an earlier stage stored them.

The tensor has one row of positions. n consecutive vectors are n positions of n channels: a tile with the positions as its columns
or as its rows. Zeros after the last position pad it to a multiple of n.

Sums end with a tile of zeros. A result below the least normal number may be -0; the padding of the last tile would make it +0.
Padding is therefore always present, so that the bits do not depend on n.
"""

from amaranth_tpu.hw.spec.isa import Opcode

__all__ = ["DataTiles", "margins", "ends_with_zeros"]


def ends_with_zeros(stage, n):
    """Checks whether a tile of zeros follows the tiles of the sums. The results of softmax do not depend on the sign of a
    zero."""
    term = stage.terms[-1]
    return term.data is not None and term.weights.shape[2] % n == 0 and not stage.softmax


def margins(stages, tensors, n):
    """Returns `{name: zeros after the positions}` of the tensors whose values are weights of these stages."""
    found = {}
    for stage in stages:
        for term in stage.terms:
            if term.data is not None:
                margin = -tensors[term.data].width % n + n * ends_with_zeros(stage, n)
                found[term.data] = max(found.get(term.data, 0), margin)
    return found


class DataTiles:
    """The tiles of a stage whose weights are data, for a :class:`sim.compiler.codegen.matmuls.Group`; in the order of its passes,
    then columns.

    Parameters
    ----------
    emitter : StageEmitter
    term : Term
    layout : Layout
        Layout of the tensor that provides the weights.
    sample : int
    columns : (int, int)
        First column tile, and number of column tiles.
    passes : int
        Passes with tiles of the tensor; the passes after them have zeros.
    """

    def __init__(self, emitter, term, layout, sample, columns, passes):
        self.emitter, self.term, self.layout, self.sample = emitter, term, layout, sample
        self.columns, self.passes, self.done = columns, passes, 0

    def fit(self, passes, count):
        """Returns how many of the next passes can be one MATMUL, whose tiles are all requested before it."""
        return min(passes, max(1, self.emitter.config.weight_fifo_depth // 2 // count))

    def bring(self, count):
        """Emits LOAD_WEIGHTS of the next tiles."""
        first = self.columns[0]
        runs = []
        for number in range(self.done, self.done + count):
            k, column = number // self.columns[1], first + number % self.columns[1]
            vector = self._vector(k, column)
            if runs and runs[-1][0] + runs[-1][1] * self.emitter.n == vector:
                runs[-1][1] += 1
            else:
                runs.append([vector, 1])
        self.done += count
        region, base = self.emitter.regions[self.term.data]
        for vector, tiles in runs:
            self.emitter.transfer(Opcode.LOAD_WEIGHTS, region, base + vector, tiles, transpose=int(self.term.rows))
            op = self.emitter.ops[-1]
            op.parts = [(op.stage, tiles)]

    def _vector(self, k, column):
        layout, n = self.layout, self.emitter.n
        if k == self.passes:
            return layout.position(self.sample, 0, 0, -(-layout.tensor.width // n) * n)
        tile, x = (column, k) if self.term.rows else (k, column)
        return layout.position(self.sample, 0, tile, x * n)
