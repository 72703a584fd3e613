"""Gradients of parameters: sums over the batch, a part of a parameter after the other.

The operands are D transposed, rows of outputs whose lanes are n samples; the tiles are n samples of what the layer read, a sample
a row. So sums lie as the parameter does, and a part's sums stay in the accumulators until its update has begun.
"""

from dataclasses import dataclass

from .parameters import Planes

__all__ = ["Part", "GradientCode"]

_HALVES = 2  # times that the last part is cut in two


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
    turned : dict of str to Turned
        Gradients transposed.
    acc, ring : Ring
        Accumulator rows, and places in the unified buffer for what is transposed in SCRATCH.
    most : int
        Rows of a part.
    """

    def __init__(self, emitter, memory, turned, acc, ring, most):
        self.emitter, self.memory, self.turned, self.acc, self.ring, self.n = emitter, memory, turned, acc, ring, emitter.n
        self.most = most
        self.blocks = -(-memory.batch // self.n)

    def parts(self):
        """All parts, one after the other, each when its sums are complete."""
        training = self.memory.training
        for one in training.gradients:
            mine = [planes for planes in self.memory.planes if planes.parameter.stage == one.stage]
            self.emitter.stage = one.stage
            for planes in reversed(mine):
                if planes.is_bias:
                    yield from self._bias(planes, self.memory.tensors[one.name])
                else:
                    source = training.graph.stages[one.stage].terms[planes.parameter.term].source
                    yield from self._weights(planes, self.turned[one.name], self.memory.tensors[source])

    def _bias(self, planes, gradient):
        emitter = self.emitter
        for first in range(0, planes.rows, emitter.zero_rows):
            count = min(emitter.zero_rows, planes.rows - first)
            acc = self.acc.take(count)
            tiles = [gradient.tile(first + c, b * self.n, transpose=1) for b in range(self.blocks) for c in range(count)]
            emitter.add_up(tiles, count, [emitter.rows["ones"]] * self.blocks, [(1, 0), (1, 1)], acc, 1)
            yield Part(planes, first, count, acc)

    def _weights(self, planes, turned, source):
        emitter = self.emitter
        for k, count, first, size in self._cuts(planes):
            acc = self.acc.take(count * size)
            tiles = [source.tile(k + c, b * self.n, transpose=1) for b in range(self.blocks) for c in range(count)]
            group = emitter.group(tiles, count, acc, size)
            for places in turned.read(emitter, first, size, self.ring):
                for _ in group.add(places, [(1, 0), (size, 1)]):
                    pass
            yield Part(planes, k * planes.rows + first, count * size, acc)

    def _cuts(self, planes):
        """`(first k tile, k tiles, first row, rows)` of the parts: one k tile's rows, or all of those of several. The very last
        ones are smaller, as nothing hides their update."""
        most = self.most // self.n * self.n
        rows, together = min(planes.rows, most), min(max(1, most // planes.rows), self.emitter.zero_rows)
        cuts = [
            (k, min(together, planes.k_tiles - k), first, min(rows, planes.rows - first))
            for k in range(0, planes.k_tiles, together)
            for first in range(0, planes.rows, rows)
        ]
        weights = [one for one in self.memory.planes if not one.is_bias]
        for _ in range(_HALVES if planes is min(weights, key=lambda one: one.parameter.stage) else 0):
            k, count, first, size = cuts.pop()
            half = count // 2 if count > 1 else -(-size // 2 // self.n) * self.n
            if count > 1:
                cuts += [(k, half, first, size), (k + half, count - half, first, size)]
            elif half < size:
                cuts += [(k, 1, first, half), (k, 1, first + half, size - half)]
            else:
                cuts.append((k, count, first, size))
        return cuts
