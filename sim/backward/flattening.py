"""Layout changes between tensors of several positions, stored sample by sample, and flat tensors, in which corresponding vectors
of different samples are adjacent.

The vectors are permuted by passes over an identity tile, which can read their operands in any order. One block of n samples is
processed at a time.
"""

from amaranth_tpu.hw.spec.isa import Condition, Format, FunctionCode, Opcode, Region

from ..compiler.codegen.results import write_rows
from ..compiler.codegen.tile_emitter import Tile
from ..compiler.program import CompileError
from .lowering import back_name, flat_name

__all__ = ["Mover"]

_FIELDS = {"function": FunctionCode.NONE, "format": Format.BFLOAT16}


class Mover:
    """The code generator of layout changes.

    Parameters
    ----------
    emitter : StepEmitter
    memory : StepMemory
    ring, acc : Ring
        Circular buffers: vectors of the unified buffer, and accumulator rows.
    """

    def __init__(self, emitter, memory, ring, acc):
        self.emitter, self.memory, self.ring, self.acc, self.n = emitter, memory, ring, acc, emitter.n
        self.fields = {**_FIELDS, "lanes": self.n}

    def _tile(self, name):
        return Tile(Region.MODEL, self.emitter.constants.vector(name))

    def _select(self, acc, outer, inner, step, operand, buffer):
        """Writes `outer` * `inner` consecutive sums where the operands are above 0, and +0 elsewhere. Both operands and results
        have groups of `inner` adjacent vectors; `step` is the distance between groups."""
        fields = {
            "condition": Condition.POSITIVE,
            "rows0": inner,
            "rows0_stride": 1,
            "rows1": outer,
            "rows1_stride": inner,
            "acc": acc,
            "operand": operand,
            "operand_stride": step,
            "buffer": buffer,
            "buffer_stride": step,
        }
        self.emitter.emit(Opcode.SELECT, fields)

    def flatten(self, name):
        """Emits instructions that copy the tensor `name` from its layout with several positions to its flat layout. If the
        tensor has a dropout mask, the instructions also apply it."""
        layout, (region, first) = self.memory.layouts[name], self.memory.regions[name]
        flat, tensor = self.memory.flat[flat_name(name)], layout.tensor
        mask = self.memory.masks.get(flat_name(name))
        for samples, y, rows in self._parts(layout, 3 if mask else 2):
            count, vectors = samples[1] - samples[0], rows * tensor.width * layout.tiles * self.n
            operands = count * layout.tiles * rows * layout.pitch
            place = self.ring.take(operands + (2 if mask else 1) * vectors)
            made, kept = place + operands, place + operands + vectors
            sample, plane = self._load(layout, region, first, samples, (y, rows), place)
            if mask:
                self.emitter.load(mask.region, mask.vector(y * tensor.width * layout.tiles, samples[0]), vectors, kept)
            joined = rows if layout.pitch == tensor.width else 1
            for tile in range(layout.tiles):
                for row, size in self._rows(rows, min(joined, rows), tensor.width * count):
                    at, positions = place + tile * plane + row * layout.pitch, size * tensor.width
                    acc = self.acc.take(positions * count)
                    factor = self._tile("keep" if mask else "identity")
                    self.emitter.add_up([factor], 1, [at], [(positions, 1), (count, sample)], acc, positions * count)
                    to = (row * tensor.width * layout.tiles + tile) * self.n
                    if mask:
                        self._select(acc, positions, count, layout.tiles * self.n, kept + to, made + to)
                    else:
                        write_rows(self.emitter, self.fields, acc, positions, count, layout.tiles * self.n, made + to)
            self._store_flat(flat, samples, y * tensor.width * layout.tiles, vectors // self.n, made)

    def put_back(self, name):
        """Emits instructions that copy the gradient of the tensor `name` from its flat layout back to the layout with several
        positions."""
        name = back_name(name)
        layout, flat = self.memory.layouts[name], self.memory.flat[flat_name(name)]
        width, (region, first) = layout.tensor.width, self.memory.regions[name]
        assert layout.plane == layout.tensor.height * width
        for samples, y, rows in self._parts(layout):
            count, tiles = samples[1] - samples[0], rows * width * layout.tiles
            place, plane = self.ring.take(tiles * (self.n + count)), rows * width
            made = place + tiles * self.n
            self.emitter.load(flat.region, flat.vector(y * width * layout.tiles, samples[0]), tiles * self.n, place)
            for tile in range(layout.tiles):
                for row, size in self._rows(rows, rows, width * count):
                    at, positions = place + (row * width * layout.tiles + tile) * self.n, size * width
                    acc, loops = self.acc.take(positions * count), [(count, 1), (positions, layout.tiles * self.n)]
                    self.emitter.add_up([self._tile("identity")], 1, [at], loops, acc, positions * count)
                    to = made + tile * plane + row * width
                    write_rows(self.emitter, self.fields, acc, count, positions, layout.tiles * plane, to)
            for sample in range(*samples):
                at = made + (sample - samples[0]) * layout.tiles * plane
                for tile in range(layout.tiles) if rows < layout.tensor.height else [0]:
                    size = plane if rows < layout.tensor.height else layout.tiles * plane
                    self.emitter.store(region, first + layout.position(sample, y, tile), size, at + tile * plane)

    def _parts(self, layout, count=2):
        """Divides a tensor into portions small enough that `count` copies of a portion (operands, results, masks) fit the
        unified buffer together. Yields `(samples, first row y, rows)`."""
        tensor, batch = layout.tensor, self.memory.batch
        each = layout.tiles * self.n * (layout.pitch + (count - 1) * tensor.width)
        rows = min(tensor.height, self.ring.size // each)
        if not rows or tensor.width * self.n > self.acc.size:
            name = "accumulator_depth" if rows else "unified_buffer_depth"
            raise CompileError(f"{tensor.name}: {name}: {self.n} samples of a row of it do not fit")
        for first in range(0, batch, self.n):
            for y in range(0, tensor.height, rows):
                yield (first, min(batch, first + self.n)), y, min(rows, tensor.height - y)

    def _rows(self, rows, most, each):
        """Divides `rows` rows into groups that are permuted together, with at most `most` rows. A row has `each` sums. Returns
        `(first row, rows)` of each group."""
        size = max(1, min(most, self.acc.size // 2 // each))
        return [(row, min(size, rows - row)) for row in range(0, rows, size)]

    def _load(self, layout, region, first, samples, rows, place):
        """Loads rows y of all tiles of some samples. Returns the distances in the unified buffer, in vectors, between samples and
        between tiles."""
        (y, count), samples_here = rows, samples[1] - samples[0]
        if count == layout.tensor.height and layout.plane == count * layout.pitch:
            self.emitter.load(region, first + layout.position(samples[0], 0), samples_here * layout.sample, place)
            return layout.sample, layout.plane
        plane = count * layout.pitch
        for sample in range(*samples):
            for tile in range(layout.tiles):
                at = place + ((sample - samples[0]) * layout.tiles + tile) * plane
                self.emitter.load(region, first + layout.position(sample, y, tile), plane, at)
        return layout.tiles * plane, plane

    def _store_flat(self, flat, samples, tile, tiles, place):
        """Stores tiles of a flat tensor to host memory, for a block of samples."""
        count = samples[1] - samples[0]
        if count == self.n:
            self.emitter.store(flat.region, flat.vector(tile, samples[0]), tiles * self.n, place)
            return
        for index in range(tiles):
            self.emitter.store(flat.region, flat.vector(tile + index, samples[0]), count, place + index * self.n)
