"""Weight tiles whose weights are values of another tensor. They are read from host memory, where an earlier stage has stored the
tensor.

The tensor has one row of positions. n consecutive vectors are n positions of n channels: a weight tile with the positions as its
columns or as its rows. Zeros after the last position pad the tensor to a multiple of n positions.

Every sum has some padding: if its last tile has none, a tile of zeros follows. Otherwise the bits of results would depend on n: a
result below the least normal number may be -0, and padding in the last tile changes it to +0.
"""

from amaranth_tpu.hw.spec.isa import Opcode

__all__ = ["DataTiles", "margins", "ends_with_zeros"]


def ends_with_zeros(stage, n):
    """Returns True if a tile of zeros must follow the tiles of a stage's sums. It is not needed if the last tile has padding
    anyway, or before softmax, which ignores the sign of a zero."""
    term = stage.terms[-1]
    return term.data is not None and term.weights.shape[2] % n == 0 and not stage.softmax


def margins(stages, tensors, n):
    """Returns `{name: number}` for the tensors whose values are weights of these stages: the positions of zeros that follow the
    tensor in memory."""
    found = {}
    for stage in stages:
        for term in stage.terms:
            if term.data is not None:
                margin = -tensors[term.data].width % n + n * ends_with_zeros(stage, n)
                found[term.data] = max(found.get(term.data, 0), margin)
    return found


class DataTiles:
    """Emits the LOAD_WEIGHTS of a stage whose weights are values of a tensor. Tiles are in the order of
    :class:`sim.compiler.codegen.matmuls.Group`: by pass, then by column tile.

    Parameters
    ----------
    emitter : StageEmitter
    term : Term
    layout : Layout
        Layout of the tensor that provides the weights.
    sample : int
        Index of the sample whose values are the weights.
    columns : (int, int)
        First column tile, and number of column tiles.
    passes : int
        Number of passes with tiles of the tensor. The tiles of later passes are zeros.
    """

    def __init__(self, emitter, term, layout, sample, columns, passes):
        self.emitter, self.term, self.layout, self.sample = emitter, term, layout, sample
        self.columns, self.passes, self.done = columns, passes, 0

    def fit(self, passes, count):
        """Returns the number of the next `passes` that one MATMUL may have, for `count` column tiles. All of their tiles are
        requested before the MATMUL, so they must fit the weight FIFO."""
        return min(passes, max(1, self.emitter.config.weight_fifo_depth // 2 // count))

    def bring(self, count):
        """Emits the LOAD_WEIGHTS of the next `count` tiles."""
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
