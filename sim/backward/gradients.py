"""Code for the gradients of parameters. A gradient is a sum over the batch. It is computed for one block of a parameter after
the other.

The operands are transposed gradients D: each row belongs to an output, and its lanes are n samples or positions. The weight tiles
are the stage's operands at these n samples or positions, one per row of the tile. The sums then have the same layout as the
parameter. The sums stay in the accumulators until the update of the block has begun.
"""

from dataclasses import dataclass

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.codegen.tile_emitter import NOTHING, Tile
from ..compiler.program import CompileError
from ..compiler.timing.model import turnaround
from .memory import blocks_of, trained_terms
from .parameters import Planes, Stacked, StackedBias
from .transposed_gradients import transposing

__all__ = ["GradientBlock", "GradientCode"]

_HALVES = 2  # number of times that the last block is halved


@dataclass
class GradientBlock:
    """Consecutive rows of a parameter whose gradients have been summed, and are in the accumulators.

    Parameters
    ----------
    planes : Planes
    first, rows : int
        First vector and number of vectors, relative to the start of a plane.
    acc : int
    decays : bool
        True if weight decay applies to the rows.
    """

    planes: Planes
    first: int
    rows: int
    acc: int
    decays: bool = True


class GradientCode:
    """The code generator for the gradients of parameters.

    Parameters
    ----------
    emitter : StepEmitter
    memory : StepMemory
    terms : dict of int to list of FlatTerm
        Terms of the dense stages, by stage number.
    transposed : dict of str to TransposedGradient
        Transposed gradients of the dense stages, by the gradient's name.
    sums, acc : Ring
        Circular buffers of accumulator rows: `sums` for sums of gradients, `acc` for vectors to be transposed.
    ring : Ring
        Circular buffer in the unified buffer for transposed vectors.
    most : int
        Largest number of rows in a block.
    """

    def __init__(self, emitter, memory, terms, transposed, sums, acc, ring, most):
        self.emitter, self.memory, self.terms, self.transposed, self.n = emitter, memory, terms, transposed, emitter.n
        self.sums, self.acc, self.ring, self.most = sums, acc, ring, most // emitter.n * emitter.n
        self.kept = set()  # gradients whose transposed samples are stored in SCRATCH
        self.turn = 0  # which half of the ring has the operands that were transposed last
        self.last = min((one for one in memory.planes if not one.is_bias), key=lambda one: one.parameter.stage)

    def flat_parts(self):
        """Yields the :class:`GradientBlock` objects of all parameters of dense stages. Each is yielded as soon as the
        instructions for its sums have been emitted."""
        for planes, one in self._parameters(True):
            yield from self._flat(planes, one)

    def spatial_parts(self):
        """Yields the :class:`GradientBlock` objects of all parameters of spatial stages. Each is yielded as soon as the
        instructions for its sums have been emitted."""
        for planes, one in self._parameters(False):
            yield from self._spatial(planes, one)

    def _parameters(self, flat):
        """Yields `(planes, gradient)` for each parameter: the planes of the parameter, and the gradient of the sums of its
        stage. The stages are in order from last to first. In each stage the bias precedes the weights."""
        stages = len(self.memory.training.graph.stages)
        for one in self.memory.training.gradients:
            if (one.stage in self.memory.lowered.flat) == flat:
                self.emitter.stage = self.emitter.flat_stages + 2 * stages + one.stage
                mine = [planes for planes in self.memory.planes if planes.parameter.stage == one.stage]
                yield from ((planes, one) for planes in reversed(mine))

    def _flat(self, planes, one):
        """Yields the blocks of a parameter of a dense stage. Its gradient is summed over blocks of n samples."""
        emitter, gradient, n = self.emitter, self.memory.flat[one.name], self.n
        samples = range(0, self.memory.batch, n)
        if planes.is_bias:
            tiles = [[gradient.tile(tile, sample, 1) for sample in samples] for tile in range(gradient.tiles)]
            yield from self._bias(planes, tiles)
            return
        term, transposed = self.terms[one.stage][planes.parameter.term], self.transposed[one.name]
        _, _, inputs, _ = planes.shape or planes.parameter.initial.shape
        source = self.memory.flat[term.source]
        read = {term.tiles.number(*place): tile for tile, *place in term.passes}
        for k, count, first, size in self._cuts(planes):
            acc = self.sums.take(count * size)
            columns = [read.get(k + c) for c in range(count)]
            tiles = [NOTHING if tile is None else source.tile(tile, s, 1) for s in samples for tile in columns]
            group = emitter.group(tiles, count, acc, size)
            for places in transposed.read(emitter, first, size, self.ring):
                for _ in group.add(places, [(1, 0), (size, 1)]):
                    pass
            yield GradientBlock(planes, k * planes.rows + first, count * size, acc)

    def _bias(self, planes, tiles):
        """Yields the blocks of a bias. `tiles` has, for each tile of outputs, the gradient's tiles in the order of the sum."""
        emitter, most = self.emitter, min(self.emitter.zero_rows, self.most)
        for first in range(0, planes.rows, most):
            some = tiles[first : first + most]
            acc = self.sums.take(len(some))
            ones = [emitter.rows["ones"]] * len(some[0])
            emitter.add_up([tile for block in zip(*some) for tile in block], len(some), ones, [(1, 0), (1, 1)], acc, 1)
            yield GradientBlock(planes, first, len(some), acc, False)

    def _cuts(self, planes):
        """Divides a parameter of a dense stage into blocks. A block has some rows of one k tile, or all rows of several k tiles.
        Returns `(first k tile, k tiles, first row, rows)` of each block. The last blocks of a program are smaller, because
        nothing overlaps with their update."""
        rows, together = min(planes.rows, self.most), min(max(1, self.most // planes.rows), self.emitter.zero_rows)
        cuts = [
            (k, min(together, planes.k_tiles - k), first, min(rows, planes.rows - first))
            for k in range(0, planes.k_tiles, together)
            for first in range(0, planes.rows, rows)
        ]
        for _ in range(_HALVES if planes is self.last else 0):
            k, count, first, size = cuts.pop()
            half = count // 2 if count > 1 else -(-size // 2 // self.n) * self.n
            if count > 1:
                cuts += [(k, half, first, size), (k + half, count - half, first, size)]
            elif half < size:
                cuts += [(k, 1, first, half), (k, 1, first + half, size - half)]
            else:
                cuts.append((k, count, first, size))
        return cuts

    # Sample by sample

    def _spatial(self, planes, one):
        """Yields the blocks of a parameter of a spatial stage. Its gradient is summed over blocks of n positions of each sample.
        Positions are counted with the row length (pitch) of the stage's source."""
        if isinstance(planes, StackedBias):
            return
        if planes.is_bias or isinstance(planes, Stacked):
            layout, (region, first) = self.memory.layouts[one.name], self.memory.regions[one.name]
            tiles = [
                [
                    Tile(region, first + layout.position(sample, 0, tile) + block * self.n, 1)
                    for sample in range(self.memory.batch)
                    for block in range(blocks_of(layout))
                ]
                for tile in range(layout.tiles)
            ]
            yield from self._bias(planes, tiles) if planes.is_bias else self._stacked(planes, one.name, tiles)
            return
        trained = trained_terms(self.memory.lowered)
        source, gradient = next(names for *names, parameter in trained if parameter is planes.parameter)
        rows, blocks = planes.rows, blocks_of(self.memory.layouts[gradient])
        if rows > self.sums.size:
            raise CompileError(f"{planes.parameter.name}: accumulator_depth: gradients of its {rows} outputs do not fit")
        together = self.sums.size // rows
        for k in range(0, planes.k_tiles, together):
            count = min(together, planes.k_tiles - k)
            acc = self.sums.take(count * rows)
            self._sweep(gradient, self._groups(planes, source, k, count, acc, blocks), blocks, rows)
            each = max(1, self.most // rows)
            for c in range(0, count, each):
                size = min(each, count - c) * rows
                for low in range(0, size, self.most):
                    part = min(self.most, size - low)
                    yield GradientBlock(planes, (k + c) * rows + low, part, acc + c * rows + low)

    def _sweep(self, name, groups, blocks, rows):
        """Emits all passes of a gradient over the batch, for several blocks of a sample at a time. Meanwhile the next blocks are
        transposed."""
        size = min(blocks, self.ring.size // 2 // rows)
        pieces = [
            (sample, first, min(size, blocks - first)) for sample in range(self.memory.batch) for first in range(0, blocks, size)
        ]
        place, steps = self._transposed(name, blocks, rows, *pieces[0])
        for number, (_, _, count) in enumerate(pieces):
            for _ in steps:
                pass
            places = [place + block * rows for block in range(count)]
            if number + 1 < len(pieces):
                place, steps = self._transposed(name, blocks, rows, *pieces[number + 1])
            for group in groups:
                for _ in group.add(places, [(1, 0), (rows, 1)]):
                    pass
                next(steps, None)
        if name in self.memory.kept:
            self.kept.add(name)

    def _stacked(self, planes, name, tiles):
        """Yields the blocks of stacked weights and bias. `tiles` has, for each tile of outputs, the gradient's tiles in the order
        of the sum."""
        emitter, each, (_, vector) = self.emitter, planes.each, self.memory.transposed_inputs[name]
        blocks, count = len(tiles[0]), len(tiles)
        if count * each > self.sums.size or count > emitter.zero_rows:
            raise CompileError(f"{planes.parameter.name}: accumulator_depth: gradients of its {count} tiles do not fit")
        acc = self.sums.take(count * each)
        group = emitter.group([tile for block in zip(*tiles) for tile in block], count, acc, each)
        step = max(1, self.ring.size // 4 // each)
        for block in range(0, blocks, step):
            size = min(step, blocks - block)
            place = self.ring.take(size * each)
            emitter.load(Region.INPUT, vector + block * each, size * each, place)
            for _ in group.add([place + index * each for index in range(size)], [(1, 0), (each, 1)]):
                pass
        for first in range(0, planes.rows, each):
            for low in range(0, each - 1, self.most):
                yield GradientBlock(planes, first + low, min(self.most, each - 1 - low), acc + first + low)
            yield GradientBlock(planes, first + each - 1, 1, acc + first + each - 1, False)

    def _groups(self, planes, name, k, count, acc, blocks):
        """Returns the :class:`.Group` objects of a gradient, whose passes continue from sample to sample. A group usually has
        one column tile. It has several if consecutive passes over the same sums would have to wait for each other."""
        layout, (region, first) = self.memory.layouts[name], self.memory.regions[name]
        term = self.memory.lowered.terms[planes.parameter.stage][planes.parameter.term]
        together, groups = -(-turnaround(self.emitter.config) // max(planes.rows, self.n)), []
        together = min(together, self.emitter.zero_rows)
        for c in range(0, count, together):
            size, tiles = min(together, count - c), []
            places = [divmod(k + c + index, layout.tiles) for index in range(size)]
            for sample in range(self.memory.batch):
                for block in range(blocks):
                    for position, tile in places:
                        axes = zip(divmod(position, term.kernel[1]), term.dilation, term.padding)
                        y, x = (at * apart - before for at, apart, before in axes)
                        at = first + layout.position(sample, y, tile, x) + block * self.n
                        tiles.append(Tile(region, at, 1))
            groups.append(self.emitter.group(tiles, size, acc + c * planes.rows, planes.rows))
        return groups

    def _transposed(self, name, blocks, rows, sample, first, count):
        """Returns `(address, generator)` for `count` transposed blocks of a sample's gradient, `[block][output]`. The generator
        emits the transposition step by step. If transposed gradients are kept in SCRATCH, later calls load them instead."""
        self.turn, kept = 1 - self.turn, self.memory.kept.get(name)
        place = self.ring.base + self.turn * (self.ring.size // 2)
        vector = None if kept is None else kept + (sample * blocks + first) * rows
        if name in self.kept:
            self.emitter.load(Region.SCRATCH, vector, count * rows, place)
            return place, iter(())
        layout, (region, start) = self.memory.layouts[name], self.memory.regions[name]
        start += layout.position(sample, 0) + first * self.n
        tiles = [[Tile(region, start + tile * layout.plane + b * self.n) for tile in range(layout.tiles)] for b in range(count)]
        return place, self._transposing(tiles, place, vector)

    def _transposing(self, tiles, place, vector):
        yield from transposing(self.emitter, tiles, place, self.acc)
        if vector is not None:
            self.emitter.store(Region.SCRATCH, vector, len(tiles) * len(tiles[0]) * self.n, place)
