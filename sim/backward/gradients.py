"""Gradients of parameters: sums over the batch, a part of a parameter after the other.

The operands are D transposed, rows of outputs whose lanes are n samples; the tiles are n samples of what the layer read, a sample
a row. So sums lie as the parameter does, and a part's sums stay in the accumulators until its update has begun.
"""

from dataclasses import dataclass

from .parameters import Planes

__all__ = ["Part", "GradientCode"]


@dataclass
class Part:
    """Of a parameter: vectors whose sums are in the accumulators.

    Parameters
    ----------
    planes : Planes
    first, rows : int
        Vectors within a plane.
    acc : int
    step : int
        Place in the unified buffer of what the master moves by, once it is known.
    """

    planes: Planes
    first: int
    rows: int
    acc: int
    step: int = 0


class GradientCode:
    """
    Parameters
    ----------
    emitter : StepEmitter
    memory : StepMemory
    ring : Ring
        Places in the unified buffer for gradients transposed.
    most : int
        Rows of a part.
    ones : int
        Place of a vector of ones.
    identity : int
        Place of the rows of the identity.
    """

    def __init__(self, emitter, memory, ring, most, ones, identity):
        self.emitter, self.memory, self.ring, self.most, self.n = emitter, memory, ring, most, emitter.n
        self.ones, self.identity = ones, identity
        self.blocks = -(-memory.batch // self.n)

    def parts(self):
        """All parts, one after the other, each when its sums are complete."""
        training = self.memory.training
        for one in training.gradients:
            mine = [planes for planes in self.memory.planes if planes.parameter.stage == one.stage]
            if not mine:
                continue
            self.emitter.stage = one.stage
            gradient = self.memory.tensors[one.name]
            turned = self._transposed(gradient)
            for planes in reversed(mine):  # the bias first, while the transposed gradient is on its way
                if planes.is_bias:
                    yield from self._bias(planes, gradient)
                else:
                    source = training.graph.stages[one.stage].terms[planes.parameter.term].source
                    yield from self._weights(planes, turned, self.memory.tensors[source])

    def _transposed(self, gradient):
        """D transposed, in the unified buffer, `[block][output]`: its place."""
        rows, emitter = gradient.tiles * self.n, self.emitter
        together = max(1, min(self.most // rows, emitter.zero_rows // gradient.tiles))
        place = self.ring.take(self.blocks * rows)
        for block in range(0, self.blocks, together):
            count = min(together, self.blocks - block)
            acc = emitter.acc.take(count * rows)
            tiles = [gradient.tile(t, (block + b) * self.n) for b in range(count) for t in range(gradient.tiles)]
            emitter.add_up(tiles, count * gradient.tiles, [self.identity], [(1, 0), (self.n, 1)], acc, self.n)
            emitter.activate(acc, place + block * rows, count * rows)
        return place

    def _bias(self, planes, gradient):
        emitter = self.emitter
        for first in range(0, planes.rows, emitter.zero_rows):
            count = min(emitter.zero_rows, planes.rows - first)
            acc = emitter.acc.take(count)
            tiles = [gradient.tile(first + c, b * self.n, transpose=1) for b in range(self.blocks) for c in range(count)]
            emitter.add_up(tiles, count, [self.ones] * self.blocks, [(1, 0), (1, 1)], acc, 1)
            yield Part(planes, first, count, acc)

    def _weights(self, planes, turned, source):
        emitter, rows = self.emitter, min(planes.rows, self.most // self.n * self.n)
        together = min(max(1, self.most // planes.rows), emitter.zero_rows)
        for k in range(0, planes.k_tiles, together):
            count = min(together, planes.k_tiles - k)
            for first in range(0, planes.rows, rows):
                size = min(rows, planes.rows - first)
                acc = emitter.acc.take(count * size)
                tiles = [source.tile(k + c, b * self.n, transpose=1) for b in range(self.blocks) for c in range(count)]
                places = [turned + b * planes.rows + first for b in range(self.blocks)]
                emitter.add_up(tiles, count, places, [(1, 0), (size, 1)], acc, size)
                yield Part(planes, k * planes.rows + first, count * size, acc)
