"""Dense layers, a chunk of samples at a time: forward, the gradient of the logits, and data gradients back to the first layer.

What a chunk's layers leave for its gradients stays in the unified buffer; what weight gradients read goes to SCRATCH on the way.
In the unified buffer a tensor lies as in SCRATCH, `[block of n samples][tile][sample]`.
"""

from dataclasses import dataclass, field

from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.spec.isa import Condition, Format, Function, Opcode, Region

from ..compiler.instructions import Ring
from ..compiler.results import write_rows
from ..compiler.timing import turnaround
from ..ir.tiles import tiles_of
from .step_emitter import FROM_ZERO

__all__ = ["Chunk", "ChunkCode", "kept_vectors"]

_FIRST = (1, 2, 4, 8, 16, 24)  # tiles of the program's first loads


@dataclass
class Chunk:
    """Samples that go through the dense layers together.

    Parameters
    ----------
    samples : (int, int)
    n : int
    place : int
        First vector of the unified buffer for what stays there.
    places : dict of str to int
        Tensors that are there.
    """

    samples: tuple[int, int]
    n: int
    place: int = 0
    places: dict = field(default_factory=dict)

    @property
    def count(self):
        return self.samples[1] - self.samples[0]

    @property
    def blocks(self):
        return -(-self.count // self.n)

    @property
    def rows(self):
        """Samples, up to whole blocks."""
        return self.blocks * self.n

    def take(self, name, vectors):
        """A place for a tensor."""
        self.places[name] = place = self.place
        self.place += vectors
        return place


def kept_vectors(memory, rows):
    """Vectors of the unified buffer that a chunk of so many rows takes."""
    hidden = sum(tiles_of(stage.channels, memory.n) for stage in memory.training.graph.stages[:-1])
    return (hidden + 5 * memory.logits.tiles) * rows


class ChunkCode:
    """Makes the instructions of chunks. Its methods are generators, which yield where other work may have a turn.

    Parameters
    ----------
    emitter : StepEmitter
    memory : StepMemory
    turned : dict of str to Turned
    operands, spare : Ring
        Places in the unified buffer: for samples, and for what is transposed on its way to SCRATCH.

    Members
    -------
    waited : int
        Cycles so far for which the array could only work on something else: results that the next stage reads.
    """

    def __init__(self, emitter, memory, turned, operands, spare):
        self.emitter, self.memory, self.turned, self.n = emitter, memory, turned, emitter.n
        self.operands, self.spare = operands, spare
        self.training = memory.training
        self.graph = self.training.graph
        self.begun, self.waited = False, 0
        self.share(emitter.config.accumulator_depth)

    def share(self, rows):
        """Accumulator rows of the first stage from now on; all that follows has the others."""
        self.first, self.later = Ring(0, rows), Ring(rows, self.emitter.config.accumulator_depth - rows)

    def sums(self, chunk):
        """Accumulator rows that the first stage of a chunk can use."""
        return tiles_of(self.graph.stages[0].channels, self.n) * chunk.rows

    def begin(self, chunk):
        """The first stage."""
        yield from self._stage(chunk, 0, self.first)

    def end(self, chunk):
        """The other stages, and the gradients of the sums of all stages."""
        for number in range(1, len(self.graph.stages)):
            yield from self._stage(chunk, number, self.later)
        for one in self.training.gradients:
            self.emitter.stage = len(self.graph.stages) + one.stage
            yield from self._data_gradient(chunk, one) if one.terms else self._last_gradient(chunk, one)
            yield from self._transposed(chunk, one)

    # Forward

    def _stage(self, chunk, number, acc):
        self.emitter.stage, stage = number, self.graph.stages[number]
        if stage.output == self.graph.output:
            yield from self._logits(chunk, number, stage, acc)
        else:
            yield from self._hidden(chunk, number, stage, acc)

    def _hidden(self, chunk, number, stage, ring):
        tensor = self.memory.tensors[stage.output]
        place = chunk.take(stage.output, tensor.tiles * chunk.rows)
        function = Function[stage.function.name.upper()]
        for column, count in self._groups(tensor.tiles, chunk.rows, ring):
            acc = ring.take(count * chunk.rows)
            yield from self._sums(chunk, number, column, count, acc)
            self._write(chunk, tensor, column, count, acc, place, function)
            self._wait(count * chunk.rows)
            yield
        self._store(chunk, tensor, place)

    def _logits(self, chunk, number, stage, ring):
        logits, rows, emitter = self.memory.logits, chunk.rows, self.emitter
        acc = ring.take(logits.tiles * rows)
        for column, count in self._groups(logits.tiles, rows, ring):
            yield from self._sums(chunk, number, column, count, acc + column * rows)
        place = chunk.take(self.graph.output, 2 * logits.tiles * rows)
        probabilities = chunk.take("P", logits.tiles * rows)
        for tile in range(logits.tiles):
            lanes, at = self._lanes(stage.channels, tile), place + 2 * tile * rows
            emitter.activate(acc + tile * rows, at, chunk.count, Format.BINARY32, lanes=lanes)
            emitter.store(Region.OUTPUT, logits.vector(tile, chunk.samples[0]), 2 * chunk.count, at)
        fields = {
            "format": Format.BFLOAT16,
            "rows": chunk.count,
            "lanes": self._lanes(stage.channels, logits.tiles - 1),
            "acc": acc,
            "buffer": probabilities,
            "tiles": logits.tiles,
            "acc_stride": rows,
            "buffer_stride": rows,
        }
        emitter.emit(Opcode.SOFTMAX, fields)
        self._wait(result_cycles(emitter.config, Opcode.SOFTMAX, fields)[0])
        yield

    def _sums(self, chunk, number, column, count, acc):
        """The sums of `count` column tiles of a stage."""
        stage, emitter = self.graph.stages[number], self.emitter
        planes = [self.memory.planes_of(number, index) for index in range(len(stage.terms))]
        bias = self.memory.planes_of(number, None)
        row = emitter.load_halves([place + column for place in bias.places("master")], count) if bias else None
        tiles = [one.tile(k, column + c) for one in planes for k in range(one.k_tiles) for c in range(count)]
        group = emitter.group(tiles, count, acc, chunk.rows, row)
        for term in stage.terms:
            for places, loops in self._operands(chunk, term.source):
                yield from group.add(places, loops)

    def _operands(self, chunk, name):
        """Of a tensor, in pieces: `(place of each tile, loops over rows)`."""
        tensor = self.memory.tensors[name]
        if name in chunk.places:
            yield self._resident(chunk, tensor.tiles, chunk.places[name])
            return
        most, tile = max(1, self.operands.size // 3 // chunk.rows), 0
        sizes = list(_FIRST) if not self.begun else [-(-tensor.tiles // 8)]
        self.begun = True
        while tile < tensor.tiles:
            count = min(most, tensor.tiles - tile, sizes.pop(0) if len(sizes) > 1 else sizes[0])
            place = self.operands.take(count * chunk.rows)
            self.emitter.load(Region.INPUT, tensor.vector(tile, chunk.samples[0]), count * chunk.rows, place)
            yield [place + index * chunk.rows for index in range(count)], [(1, 0), (chunk.rows, 1)]
            tile += count

    def _resident(self, chunk, tiles, place):
        """What is in the unified buffer by blocks: places of the tiles, and the loops over rows."""
        loops = [(1, 0), (chunk.rows, 1)] if tiles == 1 or chunk.blocks == 1 else [(chunk.blocks, tiles * self.n), (self.n, 1)]
        return [place + tile * self.n for tile in range(tiles)], loops

    # Backward

    def _last_gradient(self, chunk, one):
        """P - T."""
        emitter, tensor, targets = self.emitter, self.memory.tensors[one.name], self.memory.targets
        count = tensor.tiles * chunk.rows
        acc, place = self.later.take(count), chunk.take("T", count)
        emitter.load(Region.INPUT, targets.vector(0, chunk.samples[0]), count, place)
        emitter.add_scaled("identity", chunk.places["P"], count, acc, FROM_ZERO)
        emitter.add_scaled("minus", place, count, acc)
        result = chunk.take(one.name, count)
        self._write(chunk, tensor, 0, tensor.tiles, acc, result, Function.NONE)
        self._store(chunk, tensor, result)
        self._wait(count)
        yield

    def _data_gradient(self, chunk, one):
        """The gradients of a stage's sums, in the place of its results."""
        emitter, stage, tensor = self.emitter, self.graph.stages[one.stage], self.memory.tensors[one.name]
        place = chunk.places[one.name] = chunk.places[stage.output]
        readers = [(self.memory.tensors[part.source], part) for part in one.terms]
        for column, count in self._groups(tensor.tiles, chunk.rows, self.later):
            acc = self.later.take(count * chunk.rows)
            tiles = [
                self.memory.planes_of(part.stage, part.term).tile(column + c, output, transpose=1)
                for source, part in readers
                for output in range(source.tiles)
                for c in range(count)
            ]
            group = emitter.group(tiles, count, acc, chunk.rows)
            for source, part in readers:
                yield from group.add(*self._resident(chunk, source.tiles, chunk.places[part.source]))
            if stage.function.name == "relu":
                self._select(chunk, tensor, column, count, acc, place)
            else:
                self._write(chunk, tensor, column, count, acc, place, Function.NONE)
            self._wait(2 * count * chunk.rows)
            yield
        self._store(chunk, tensor, place)
        self._wait(tensor.tiles * chunk.rows)
        yield

    def _transposed(self, chunk, one):
        """A gradient's blocks, for the gradients of weights."""
        turned, tensor, first = self.turned.get(one.name), self.memory.tensors[one.name], chunk.samples[0] // self.n
        if turned is None:
            return
        together = max(1, min(self.later.size // turned.rows, self.emitter.zero_rows // tensor.tiles))
        for block in range(first, first + chunk.blocks, together):
            count = min(together, first + chunk.blocks - block)
            tiles = [tensor.tile(tile, (block + b) * self.n) for b in range(count) for tile in range(tensor.tiles)]
            turned.write(self.emitter, tiles, block, count, self.later.take(count * turned.rows), self.spare)
            yield

    def _select(self, chunk, tensor, column, count, acc, place):
        """Sums where the results at `place` are above 0, in their place."""
        for c in range(count):
            at = place + (column + c) * self.n
            self.emitter.emit(
                Opcode.SELECT,
                {
                    "condition": Condition.POSITIVE,
                    "rows0": self.n,
                    "rows0_stride": 1,
                    "rows1": chunk.blocks,
                    "rows1_stride": self.n,
                    "acc": acc + c * chunk.rows,
                    "operand": at,
                    "operand_stride": tensor.tiles * self.n,
                    "buffer": at,
                    "buffer_stride": tensor.tiles * self.n,
                    "buffer_step": 1,
                    "number": 0,
                },
            )

    # Both

    def _wait(self, cycles):
        """Notes the cycles of an instruction, on whose results something waits."""
        self.waited += turnaround(self.emitter.config) + cycles

    def _groups(self, tiles, rows, ring):
        """`(first, count)` of the column tiles that are summed together."""
        most = max(1, min(self.emitter.zero_rows, ring.size // rows))
        size = -(-tiles // -(-tiles // most))
        return [(column, min(size, tiles - column)) for column in range(0, tiles, size)]

    def _lanes(self, channels, tile):
        return min(self.n, channels - tile * self.n)

    def _write(self, chunk, tensor, column, count, acc, place, function):
        """Sums of column tiles -> their places of a tensor by blocks."""
        for c in range(count):
            fields = {"function": function, "format": Format.BFLOAT16, "lanes": self._lanes(tensor.channels, column + c)}
            at = place + (column + c) * self.n
            write_rows(self.emitter, fields, acc + c * chunk.rows, chunk.blocks, self.n, tensor.tiles * self.n, at)

    def _store(self, chunk, tensor, place):
        """A tensor by blocks -> SCRATCH, samples alone, as what is beside them there has to stay 0."""
        whole = chunk.count // self.n * self.n
        if whole:
            self.emitter.store(tensor.region, tensor.vector(0, chunk.samples[0]), whole * tensor.tiles, place)
        if whole < chunk.count:
            for tile in range(tensor.tiles):
                at = place + (whole * tensor.tiles + tile * self.n)
                self.emitter.store(tensor.region, tensor.vector(tile, chunk.samples[0] + whole), chunk.count - whole, at)
