"""Code of the dense stages, for one chunk of the batch at a time. Dense stages have one position per sample, and are also called
flat. The code contains the forward pass, the gradient of the logits, and the data gradients back to the first dense stage.

Results needed for the gradients of the same chunk stay in the unified buffer. Operands of weight gradients are stored to SCRATCH.
In the unified buffer, tensors have the same layout as in SCRATCH: `[block of n samples][tile][sample]`.
"""

from dataclasses import dataclass, field
from itertools import groupby

from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.spec.isa import Condition, Format, Opcode, Region

from ..compiler.codegen.instructions import Ring
from ..compiler.codegen.results import function_code, write_rows
from ..compiler.codegen.tile_emitter import NOTHING, Tile
from ..compiler.timing.model import turnaround
from ..functions.derivatives import Derivative
from ..functions.functions import NONE
from ..ir.tiles import tiles_of
from .flat_terms import flat_terms
from .lowering import back_name, flat_name, slope_name
from .parameters import MASTER
from .step_emitter import FROM_ZERO

__all__ = ["Chunk", "ChunkCode", "kept_vectors"]

_FIRST = (1, 2, 4, 8, 16, 24)  # sizes in tiles of the program's first loads


@dataclass
class Chunk:
    """A chunk (micro-batch): consecutive samples that go through the dense stages together.

    Parameters
    ----------
    samples : (int, int)
    n : int
    place : int
        First free vector of the chunk's memory in the unified buffer.
    places : dict of str to int
        Address in the unified buffer of each tensor that is kept there.
    begun : bool
        True after the first stage of the chunk.
    """

    samples: tuple[int, int]
    n: int
    place: int = 0
    places: dict = field(default_factory=dict)
    begun: bool = False

    @property
    def count(self):
        return self.samples[1] - self.samples[0]

    @property
    def blocks(self):
        return -(-self.count // self.n)

    @property
    def rows(self):
        """Returns the number of samples, rounded up to whole blocks of n."""
        return self.blocks * self.n

    def take(self, name, vectors):
        """Allocates `vectors` vectors of the unified buffer for the tensor `name`. Returns their address."""
        self.places[name] = place = self.place
        self.place += vectors
        return place


def kept_vectors(memory, rows):
    """Returns the number of unified-buffer vectors for the tensors that a chunk of `rows` rows keeps."""
    stages = memory.training.graph.stages
    hidden = sum(
        memory.flat[stages[number].output].tiles * (1 + stages[number].function.is_table) for number in memory.lowered.flat[:-1]
    )
    return (hidden + 5 * memory.logits.tiles) * rows


class ChunkCode:
    """The code generator of the dense stages. Its methods are generators: they yield where other instructions may be interleaved.

    Parameters
    ----------
    emitter : StepEmitter
    memory : StepMemory
    transposed : dict of str to TransposedGradient
    operands, others, spare : Ring
        Circular buffers in the unified buffer: `operands` for operands that the first stage loads, `others` for operands of later
        stages, `spare` for gradients that are transposed before they are stored to SCRATCH.
    prepare : callable
        Called once, before the first sums are read.

    Members
    -------
    waited : int
        Cycles so far in which the next stage must wait for results, so that the array can only do other work.
    """

    def __init__(self, emitter, memory, transposed, operands, others, spare, prepare):
        self.emitter, self.memory, self.transposed, self.n = emitter, memory, transposed, emitter.n
        self.operands, self.others, self.spare = operands, others, spare
        self.training, self.flat = memory.training, memory.lowered.flat
        self.stages = self.training.graph.stages
        self.terms = {number: flat_terms(memory.lowered, memory, emitter.constants, number) for number in self.flat}
        self.begun, self.waited, self.prepare = False, 0, prepare
        self.share(emitter.config.accumulator_depth)

    def share(self, rows):
        """Divides the accumulators from now on: the first `rows` rows for the first stage, the rest for later stages."""
        self.first, self.later = Ring(0, rows), Ring(rows, self.emitter.config.accumulator_depth - rows)

    def sums(self, chunk):
        """Returns the largest number of accumulator rows that the first stage of a chunk can use."""
        return tiles_of(self.stages[self.flat[0]].channels, self.n) * chunk.rows

    def least(self, chunk):
        """Returns the smallest number of accumulator rows with which the first stage of a chunk can be computed."""
        return self.memory.logits.tiles * chunk.rows if len(self.flat) == 1 else chunk.rows

    def begin(self, chunk):
        """Emits the first stage of a chunk."""
        yield from self._stage(chunk, self.flat[0], self.first)
        chunk.begun = True

    def end(self, chunk):
        """Emits the remaining stages of a chunk, the gradients of all dense stages' sums, and the gradients of their flattened
        inputs."""
        for number in self.flat[1:]:
            yield from self._stage(chunk, number, self.later)
        for one in self.training.gradients:
            stage = self.stages[one.stage]
            if one.stage in self.flat:
                tensor, at = self.memory.flat[one.name], chunk.places.get(stage.output)
                yield from self._data_gradient(chunk, one.terms, tensor, stage, at) if one.terms else self._last(chunk, one)
                chunk.places.setdefault(one.name, at)
                yield from self._transposed(chunk, one)
            elif stage.output in self.memory.lowered.returned:
                tensor = self.memory.flat[flat_name(back_name(stage.output))]
                yield from self._data_gradient(chunk, one.terms, tensor, stage, None)

    # Forward

    def _stage(self, chunk, number, acc):
        stage, self.emitter.stage = self.stages[number], self.emitter.flat_stages + number
        yield from self._logits(chunk, number, stage, acc) if number == self.flat[-1] else self._hidden(chunk, number, stage, acc)

    def _hidden(self, chunk, number, stage, ring):
        tensor = self.memory.flat[stage.output]
        place = chunk.take(stage.output, tensor.tiles * chunk.rows)
        made = [(stage.function, place)]
        if stage.function.is_table:
            made.append((Derivative(stage.function), chunk.take(slope_name(stage.output), tensor.tiles * chunk.rows)))
        for column, count in self._groups(tensor.tiles, chunk.rows, ring):
            acc = ring.take(count * chunk.rows)
            yield from self._sums(chunk, number, column, count, acc)
            for function, at in sorted(made, key=lambda one: self.emitter.lacks(one[0])):
                self._write(chunk, tensor, column, count, acc, (at, tensor.tiles, column), function)
            if stage.output in self.memory.masks:
                self._drop(chunk, tensor, stage.output, column, count, acc, place)
            self._wait(count * chunk.rows)
            yield
        self._store(chunk, tensor, place)

    def _logits(self, chunk, number, stage, ring):
        logits, rows, emitter = self.memory.logits, chunk.rows, self.emitter
        acc = ring.take(logits.tiles * rows)
        for column, count in self._groups(logits.tiles, rows, ring):
            yield from self._sums(chunk, number, column, count, acc + column * rows)
        place = chunk.take(stage.output, 2 * logits.tiles * rows)
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
        """Emits the computation of a stage's sums, for `count` column tiles starting at `column`. The sums are stored in the
        accumulators, starting at row `acc`."""
        bias = self.memory.planes_of(number, None)
        row = self.emitter.load_halves(bias.places(MASTER), bias.stretches(column, count)) if bias else None
        columns = range(column, column + count)
        found = [
            (term.source, place[0], [term.tile(place, c) for c in columns])
            for term in self.terms[number]
            for place in term.passes
        ]
        yield from self._add(chunk, found, count, acc, row)
        if self.prepare:
            self.prepare()
            self.prepare = None

    def _add(self, chunk, found, count, acc, row=None):
        """Emits passes over tiles of operands. `found` has, for each pass, the tensor, the tile of the tensor, and the weight
        tile for each column, or None. Passes with only zero weights are omitted. `row` is the first bias row, or None."""
        found = [one for one in found if any(one[2])] or found[:1]
        tiles = [tile or NOTHING for _, _, tiles in found for tile in tiles]
        group = self.emitter.group(tiles, count, acc, chunk.rows, row)
        for source, some in groupby(found, key=lambda one: one[0]):
            for places, loops in self._operands(chunk, source, [tile for _, tile, _ in some]):
                yield from group.add(places, loops)

    def _operands(self, chunk, name, wanted):
        """Yields `(addresses, loops)` for the wanted tiles of a tensor. `loops` are the `(count, stride)` of MATMUL's two row
        loops. If the tensor is not in the unified buffer, its tiles are loaded from host memory in several portions."""
        tensor = self.memory.flat[name]
        if name in chunk.places:
            yield self._blocks(chunk, tensor.tiles, chunk.places[name], wanted)
            return
        ring = self.others if chunk.begun else self.operands
        most = max(1, ring.size // 3 // chunk.rows)
        sizes = list(_FIRST) if not self.begun else [-(-tensor.tiles // 8)]
        self.begun = True
        while wanted:
            reach = wanted[0] + min(most, sizes.pop(0) if len(sizes) > 1 else sizes[0])
            count = next((at for at, tile in enumerate(wanted) if not wanted[0] <= tile < reach), len(wanted))
            yield self._loaded(chunk, tensor, wanted[:count], ring)
            wanted = wanted[count:]

    def _loaded(self, chunk, tensor, wanted, ring):
        """Loads the wanted tiles of a tensor from host memory into the circular buffer `ring`. Returns `(addresses, loops)` as
        :meth:`_operands` does."""
        count, (low, high) = max(wanted) + 1 - wanted[0], chunk.samples
        place = ring.take(count * chunk.rows)
        if low in tensor.starts and tensor.starts[tensor.starts.index(low) + 1] == high:
            self.emitter.load(tensor.region, tensor.vector(wanted[0], low), count * chunk.rows, place)
            return [place + (tile - wanted[0]) * chunk.rows for tile in wanted], [(1, 0), (chunk.rows, 1)]
        for block in range(chunk.blocks):
            vector = tensor.vector(wanted[0], low + block * self.n)
            self.emitter.load(tensor.region, vector, count * self.n, place + block * count * self.n)
        return self._blocks(chunk, count, place, [tile - wanted[0] for tile in wanted])

    def _blocks(self, chunk, tiles, place, wanted):
        """Returns `(addresses, loops)`, as :meth:`_operands` does, for tiles of a tensor that is stored block by block at `place`
        in the unified buffer."""
        loops = [(1, 0), (chunk.rows, 1)] if tiles == 1 or chunk.blocks == 1 else [(chunk.blocks, tiles * self.n), (self.n, 1)]
        return [place + tile * self.n for tile in wanted], loops

    # Backward

    def _last(self, chunk, one):
        """Emits the gradient of the last stage's sums, P - T."""
        emitter, tensor, targets = self.emitter, self.memory.flat[one.name], self.memory.targets
        count = tensor.tiles * chunk.rows
        acc, place = self.later.take(count), chunk.take("T", count)
        emitter.load(Region.INPUT, targets.vector(0, chunk.samples[0]), count, place)
        emitter.add_scaled("identity", chunk.places["P"], count, acc, FROM_ZERO)
        emitter.add_scaled("minus", place, count, acc)
        result = chunk.take(one.name, count)
        self._write(chunk, tensor, 0, tensor.tiles, acc, (result, tensor.tiles, 0), NONE)
        self._store(chunk, tensor, result)
        self._wait(count)
        yield

    def _data_gradient(self, chunk, parts, tensor, stage, place):
        """Emits the gradient of a stage's sums. The gradient overwrites the stage's results at `place` in the unified buffer. If
        `place` is None, the gradient of the results is stored to SCRATCH instead."""
        self.emitter.stage = self.emitter.flat_stages + len(self.stages) + self.stages.index(stage)
        for column, count in self._groups(tensor.tiles, chunk.rows, self.later):
            acc, columns, found = self.later.take(count * chunk.rows), range(column, column + count), []
            for part in parts:
                term = self.terms[part.stage][part.term]
                for output in range(self.memory.flat[part.source].tiles):
                    found.append((part.source, output, [term.transposed(c, output) for c in columns]))
            yield from self._add(chunk, found, count, acc)
            self._keep(chunk, tensor, stage, column, count, acc, place)
            self._wait(2 * count * chunk.rows)
            yield
        if place is not None:
            self._store(chunk, tensor, place)
            self._wait(tensor.tiles * chunk.rows)
            yield

    def _keep(self, chunk, tensor, stage, column, count, acc, place):
        """Multiplies a gradient's sums by the derivative of the activation function, and writes the products to `place`, or to
        SCRATCH if `place` is None. The derivative is a tensor of slopes for table functions, and a mask for ReLU. The dropout
        mask is applied too."""
        masked = flat_name(stage.output) if place is None else stage.output
        if place is not None and stage.function.is_table:
            if masked in self.memory.masks:
                self._scale_kept(chunk, masked, column, count, acc)
            self._multiply(chunk, tensor, column, count, acc, chunk.places[slope_name(stage.output)], place)
            return
        if masked in self.memory.masks:
            self._scale(count * chunk.rows, acc)
        result, kept = (place, tensor.tiles, column), None
        if place is None:
            result = self.others.take(count * chunk.rows), count, 0
        elif stage.function.name == "relu":
            kept = result
        if masked in self.memory.masks and not kept:
            kept = self._mask(chunk, masked, column, count), count, 0
        if kept:
            self._select(chunk, count, acc, kept, result)
        else:
            self._write(chunk, tensor, column, count, acc, result, NONE)
        if place is None:
            self._store(chunk, tensor, result[0], range(column, column + count))

    def _multiply(self, chunk, tensor, column, count, acc, slopes, place):
        """Rounds the sums of column tiles, multiplies them by the slopes, and writes the products. Slopes, and results at
        `place`, are stored block by block."""
        runs = 1 if tensor.tiles == 1 else chunk.blocks
        rows = chunk.rows // runs
        for tile in range(column, column + count):
            for run in range(runs):
                at = run * tensor.tiles * self.n + tile * self.n
                fields = {"rows": rows, "lanes": self._lanes(tensor.channels, tile), "acc": acc + run * rows}
                self.emitter.emit(Opcode.MULTIPLY, {**fields, "operand": slopes + at, "buffer": place + at})
            acc += chunk.rows

    def _transposed(self, chunk, one):
        """Emits the transposition of a gradient. The transposed gradient is the operand of weight gradients."""
        transposed, tensor, first = self.transposed.get(one.name), self.memory.flat[one.name], chunk.samples[0] // self.n
        if transposed is None:
            return
        together = max(1, min(self.later.size // transposed.rows, self.emitter.zero_rows // tensor.tiles))
        for block in range(first, first + chunk.blocks, together):
            count = min(together, first + chunk.blocks - block)
            tiles = [[tensor.tile(tile, (block + b) * self.n) for tile in range(tensor.tiles)] for b in range(count)]
            transposed.write(self.emitter, tiles, block, self.later, self.spare)
            yield

    def _select(self, chunk, count, acc, kept, result):
        """Writes the sums of column tiles where `kept` is above 0, and +0 elsewhere. `kept` and `result` are stored block by
        block; each is `(address, tiles, first tile)`."""
        for c in range(count):
            (operand, operands, first), (buffer, tiles, column) = kept, result
            fields = {
                "condition": Condition.POSITIVE,
                "rows0": self.n,
                "rows0_stride": 1,
                "rows1": chunk.blocks,
                "rows1_stride": self.n,
                "acc": acc + c * chunk.rows,
                "operand": operand + (first + c) * self.n,
                "operand_stride": operands * self.n,
                "buffer": buffer + (column + c) * self.n,
                "buffer_stride": tiles * self.n,
            }
            self.emitter.emit(Opcode.SELECT, fields)

    # Dropout

    def _drop(self, chunk, tensor, name, column, count, acc, place):
        """Applies dropout to the results of column tiles at `place`: multiplies them by the factor where the mask is above 0, and
        replaces them by +0 elsewhere."""
        keep = Tile(Region.MODEL, self.emitter.constants.vector("keep"))
        for c in range(count):
            places, loops = self._blocks(chunk, tensor.tiles, place, [column + c])
            self.emitter.add_up([keep], 1, places, loops, acc + c * chunk.rows, chunk.rows)
        kept = self._mask(chunk, name, column, count), count, 0
        self._select(chunk, count, acc, kept, (place, tensor.tiles, column))

    def _scale(self, rows, acc):
        """Rounds `rows` rows of sums, and multiplies them by the dropout factor."""
        place = self.others.take(rows)
        self.emitter.activate(acc, place, rows)
        self.emitter.add_scaled("keep", place, rows, acc, FROM_ZERO)

    def _scale_kept(self, chunk, name, column, count, acc):
        """Rounds the sums of column tiles, and multiplies them by the dropout mask."""
        mask, place = self._mask(chunk, name, column, count), self.others.take(count * chunk.rows)
        for first in range(0, count * chunk.rows, chunk.rows):
            self._select(chunk, 1, acc + first, (mask, count, first // chunk.rows), (place + first, 1, 0))
        self.emitter.add_scaled("keep", place, count * chunk.rows, acc, FROM_ZERO)

    def _mask(self, chunk, name, column, count):
        """Loads tiles of a dropout mask, block by block. Returns their address."""
        mask, ring = self.memory.masks[name], self.others if chunk.begun else self.operands
        place = ring.take(count * chunk.rows)
        for block in range(chunk.blocks):
            vector = mask.vector(column, chunk.samples[0] + block * self.n)
            self.emitter.load(mask.region, vector, count * self.n, place + block * count * self.n)
        return place

    # Both

    def _wait(self, cycles):
        """Adds to `waited` the latency of an instruction whose results the chunk must wait for."""
        self.waited += turnaround(self.emitter.config) + cycles

    def _groups(self, tiles, rows, ring):
        """Divides `tiles` column tiles into groups that are computed together. Returns `(first tile, count)` of each group."""
        most = max(1, min(self.emitter.zero_rows, ring.size // rows, self._most // rows))
        size = -(-tiles // -(-tiles // most))
        return [(column, min(size, tiles - column)) for column in range(0, tiles, size)]

    @property
    def _most(self):
        """Returns the largest number of vectors that one transfer from or to host memory may have."""
        return min(ring.size // 3 for ring in (self.operands, self.others) if ring.size)

    def _lanes(self, channels, tile):
        return min(self.n, channels - tile * self.n)

    def _write(self, chunk, tensor, column, count, acc, result, function):
        """Applies a function to the sums of column tiles, and writes the results block by block. `result` is `(address, tiles,
        first tile)`."""
        (place, tiles, first), code = result, function_code(function)
        self.emitter.load_table(function)
        for c in range(count):
            fields = {"function": code, "format": Format.BFLOAT16, "lanes": self._lanes(tensor.channels, column + c)}
            at = place + (first + c) * self.n
            write_rows(self.emitter, fields, acc + c * chunk.rows, chunk.blocks, self.n, tiles * self.n, at)

    def _store(self, chunk, tensor, place, columns=None):
        """Stores tiles of a tensor from the unified buffer to SCRATCH. Rows beyond the last sample are not stored, because they
        must stay 0 in SCRATCH."""
        columns = columns or range(tensor.tiles)
        (whole, rest), each, first = divmod(chunk.count, self.n), len(columns) * self.n, chunk.samples[0]
        together = whole if len(columns) == tensor.tiles else 1
        for block in range(0, whole, together or 1):
            vector = tensor.vector(columns[0], first + block * self.n)
            self.emitter.store(tensor.region, vector, together * each, place + block * each)
        for index, tile in enumerate(columns if rest else ()):
            vector = tensor.vector(tile, first + whole * self.n)
            self.emitter.store(tensor.region, vector, rest, place + whole * each + index * self.n)
