"""Tiles of weights that are values of another tensor, in host memory as a stage before has stored them.

The tensor has one row of positions. n vectors in a row there are n positions of n channels: a tile whose columns, or whose rows,
are the positions. Behind the last position come zeros up to a multiple of n.

Sums end with a tile of zeros. A result that is less than the least number may be -0, which only the padding of the last tile
would make +0; so that the bits do not depend on n, there always is padding.
"""

from amaranth_tpu.hw.spec.isa import Opcode

__all__ = ["DataTiles", "margins", "ends_with_zeros"]


def ends_with_zeros(stage, n):
    """Whether a tile of zeros comes behind those of the sums. Shares of a softmax do not depend on the sign of a zero."""
    term = stage.terms[-1]
    return term.data is not None and term.weights.shape[2] % n == 0 and not stage.softmax


def margins(stages, tensors, n):
    """{name: zeros behind the positions} of the tensors whose values are weights of these stages."""
    found = {}
    for stage in stages:
        for term in stage.terms:
            if term.data is not None:
                margin = -tensors[term.data].width % n + n * ends_with_zeros(stage, n)
                found[term.data] = max(found.get(term.data, 0), margin)
    return found


class DataTiles:
    """What a :class:`sim.compiler.codegen.matmuls.Group` takes of a stage's tiles, in the order of its passes, then columns.

    Parameters
    ----------
    emitter : StageEmitter
    term : Term
    layout : Layout
        Of the tensor that is read.
    sample : int
    columns : (int, int)
        First column tile, and how many.
    passes : int
        That take tiles of the tensor; what comes behind is zeros.
    """

    def __init__(self, emitter, term, layout, sample, columns, passes):
        self.emitter, self.term, self.layout, self.sample = emitter, term, layout, sample
        self.columns, self.passes, self.done = columns, passes, 0

    def fit(self, passes, count):
        """How many of the next passes may be one MATMUL, whose tiles are all asked for before it."""
        return min(passes, max(1, self.emitter.config.weight_fifo_depth // 2 // count))

    def bring(self, count):
        """LOAD_WEIGHTS of the next tiles."""
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
