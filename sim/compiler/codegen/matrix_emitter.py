"""The emitter of a program: moves of matrices, weight tiles on demand, copies of operands on the chip, and updates."""

from itertools import product

from amaranth_tpu.hw.spec.isa import Format, FunctionCode, Half, Opcode, Region, UpdatePart

from ...golden.function_tables import table_of
from ..memory.memories import Memories
from ..tuning import STARTING, TABLE_CYCLES, UPDATE_ROWS, UPDATES_AT_ONCE
from .emitter import ZEROS, Emitter
from .table_slots import TableSlots
from .tile_runs import Tile, runs_of

__all__ = ["MatrixEmitter"]

_MOST_TILES = 65_535  # largest number of tiles in one LOAD_WEIGHTS
_PASSES = {f"tiles{loop}{suffix}": int(not suffix) for loop in (0, 1) for suffix in ("", "_stride", "_acc_stride")}
_ONE_PASS = {"start": 0, "keep": 0, "bias": 0, "bias_rows": 0, **_PASSES}


class MatrixEmitter(Emitter):
    """Emits the instructions of a network or a step.

    Members
    -------
    image : dict of int to int
        Place in the image of each tile of constant weights: {number among all tiles of constant weights: place}.
    memories : Memories
    gatherer : sim.compiler.lowering.ring.Gatherer or None
    """

    def __init__(self, config, constants, cores=1):
        super().__init__(config, constants.lowered.sizes)
        self.constants, self.cores, self._rows, self.gatherer = constants, cores, {}, None
        self.memories = Memories(config, constants, cores)
        self.kept, self._bringing, self._loads, self.image = self.memories.kept, None, 0, {}
        self._numbers = {one.name or one.output: number for number, one in enumerate(constants.lowered.step.stages)}
        self._transposed = set()  # vectors of region SCRATCH: the first of each group of n rows that is stored transposed
        self.readers, self.slots, self._apart = constants.lowered.readers, TableSlots(self.n), 0
        self.stage = "constants"
        self._has_zeros = False
        self._begin()

    def _begin(self):
        """Loads the bias rows of zeros that stay on the chip, and writes zeros after the positions of samples."""
        for matrix in self.constants.lowered.read_beyond():
            geometry, first = matrix.geometry, self.zeros
            for tile, sample in product(range(matrix.tiles), range(geometry.batch)):
                row = sample * geometry.period + geometry.positions
                vector, rows = self.offset(matrix, tile, row), geometry.period - geometry.positions
                self.transfer(Opcode.STORE, matrix.region, vector, rows, buffer=first)
        zeros = [(0, self.memories.zero_rows)] if self.constants.needs_zeros else []
        upper = [(self.memories.upper.base, self.memories.upper.size)] if self.constants.has_upper_rows else []
        for base, size in (*zeros, *upper):
            for first in range(0, size, ZEROS // 2):
                self.transfer(Opcode.LOAD_BIAS, Region.MODEL, 0, min(ZEROS // 2, size - first), bias=base + first)

    @property
    def zeros(self):
        """Returns the row of the unified buffer with zeros, which is loaded at its first use."""
        if not self._has_zeros:
            self._has_zeros = True
            self.load_zeros(0, self.memories.zeros)
        return 0

    def resident(self, name):
        """Returns the first buffer row of a factor tile that stays on the chip, or None. Loads the tile at its first use."""
        if name in self.constants.resident and name not in self._rows:
            self._rows[name] = self.memories.zeros + self.constants.resident.index(name) * self.n
            self.transfer(Opcode.LOAD, Region.MODEL, self.constants.vector(name), self.n, buffer=self._rows[name])
        return self._rows.get(name)

    # Transfers

    def transfer(self, opcode, region, vector, rows, **fields):
        super().transfer(opcode, region, vector, rows, **fields)
        self._loads += opcode is Opcode.LOAD
        if opcode in (Opcode.STORE, Opcode.STORE_UPDATE) or opcode is Opcode.LOAD and self._loads <= STARTING:
            self._bringing = None  # at the start, weights are loaded with the operands that they multiply

    def offset(self, matrix, tile, row=0, half=0):
        """Returns the vector of a matrix in its region. Constants follow the fixed constants, such as the identity."""
        vector, constants = matrix.place(tile, row, half), self.constants
        if matrix.region is not Region.MODEL:
            return vector
        return vector + (constants.identity if matrix is constants.lowered.one else constants.first)

    def load(self, matrix, tile, row, count, buffer, turned=False):
        """Loads rows of a tile. If `turned`, each group of n rows is transposed: by LOAD, or by passes whose operands are the
        rows of the identity. The groups are then stored, and later loads read them, if the matrix has a place for them."""
        vector, kept = self.offset(matrix, tile, row), self.constants.lowered.transposed.get(matrix.name)
        if not (turned or matrix.stride or matrix.has_numbers):
            for number in range(count):
                self.transfer(Opcode.LOAD, matrix.region, self.offset(matrix, tile, row + number), 1, buffer=buffer + number)
            return
        if self.config.transpose or not turned:
            fields = {"transpose": 1} if turned else {}
            self.transfer(Opcode.LOAD, matrix.region, vector, count, buffer=buffer, **fields)
            return
        if kept is not None:
            kept += vector - matrix.vector
            groups = {*range(kept, kept + count, self.n)}
            if groups <= self._transposed:
                self.transfer(Opcode.LOAD, Region.SCRATCH, kept, count, buffer=buffer)
                return
            self._transposed |= groups
        n, most = self.n, min(self.memories.turning.size // (2 * self.n), self.memories.zero_rows) * self.n
        for first in range(0, count, most):
            rows = min(most, count - first)
            acc = self.memories.turning.take(rows)
            self.bring([Tile(matrix.region, vector + first + k * n) for k in range(rows // n)])
            self.matmul(acc, self.resident("identity"), [(1, 0), (n, 1)], start=1, tiles0=rows // n, tiles0_acc_stride=n)
            fields = {"acc": acc, "buffer": buffer + first, "lanes": n, "rows": rows}
            self.emit(Opcode.ACTIVATE, {"function": FunctionCode.NONE, "format": Format.BFLOAT16, **fields})
            if kept is not None:
                self.transfer(Opcode.STORE, Region.SCRATCH, kept + first, rows, buffer=buffer + first)

    def matmul(self, acc, place, loops, **fields):
        """Emits a MATMUL, by default of one pass, over operands at `place`, with two loops (count, stride) over its rows. If it
        starts more column tiles from zeros than there are bias rows of zeros, emits several."""
        (rows1, rows1_stride), (rows0, rows0_stride) = loops
        rows = {"rows0": rows0, "rows0_stride": rows0_stride, "rows1": rows1, "rows1_stride": rows1_stride}
        fields = _ONE_PASS | rows | fields
        tiles, most = fields["tiles0"], self.memories.zero_rows
        if not fields["start"] or fields["bias"] >= most:
            most = tiles
        for first in range(0, tiles, most):
            places = {"acc": acc + first * fields["tiles0_acc_stride"], "buffer": place + first * fields["tiles0_stride"]}
            self.emit(Opcode.MATMUL, fields | places | {"tiles0": min(most, tiles - first)})
            self._apart += self.ops[-1].rows * self.ops[-1].passes
        if self._apart >= TABLE_CYCLES:
            self._apart = 0
            # The activation unit is often idle before the first use of a function.
            any(self.load_table(function, True) for function in self.constants.functions)

    def store(self, matrix, tile, row, count, place):
        """Stores the results of a tile's rows, which are at `place` in the unified buffer: first all upper halves, and last the
        copies of the matrix."""
        each = 2 if matrix.has_numbers else 1
        for half in range(matrix.halves // each):
            for first, rows in matrix.stored(row, count):
                vector = self.offset(matrix, tile, first, half)
                self.transfer(
                    Opcode.STORE, matrix.region, vector, each * rows, buffer=place + half * count + each * (first - row)
                )
        for copy in matrix.copies:
            for vector, first, rows in copy.ranges(matrix.geometry, tile, row, count):
                self.transfer(Opcode.STORE, matrix.region, vector, rows, buffer=place + first - row)

    def bias_rows(self, matrix, ranges):
        """Loads ranges `(tile, first row, rows)` of a matrix as bias rows. Returns the first bias row."""
        count, ring = sum(rows for *_, rows in ranges), self.memories.biases if matrix.wide else self.memories.upper
        key = matrix.name, tuple(ranges)
        if key in ring.kept:
            return ring.kept[key][0]
        place = first = ring.take(count, key if matrix.wide else None)
        for tile, row, rows in ranges:
            kinds = (Half.WHOLE,) if matrix.has_numbers else (Half.UPPER, Half.LOWER)[: matrix.halves]
            for half, kind in enumerate(kinds):
                vector = self.offset(matrix, tile, row, half)
                self.transfer(Opcode.LOAD_BIAS, matrix.region, vector, rows, bias=place, half=kind)
            place += rows
        return first

    # Weight tiles

    def fit(self, tiles):
        """Returns the number of the next weight tiles that one MATMUL may read: all tiles that are contiguous in memory, or as
        many as fit half of the weight FIFO."""
        _, size = next(runs_of(tiles, self.n))
        if self.gatherer:
            size = min(size, self.gatherer.together(tiles[0]) or size)
        return max(size, min(len(tiles), self.config.weight_fifo_depth // 2))

    def bring(self, tiles):
        """Emits as few LOAD_WEIGHTS as possible for the tiles that the next MATMUL reads."""
        if self.gatherer:
            self.gatherer.reach(tiles)
        for one, size in runs_of(tiles, self.n):
            if not self._bring_more(one, size):
                format_ = {"weight_format": one.format} if one.format else {}
                self.transfer(Opcode.LOAD_WEIGHTS, one.region, one.vector, size, transpose=one.transpose, **format_)
                self._bringing = self.ops[-1]
                self._bringing.parts = ((self.stage, size),)

    def _bring_more(self, tile, size):
        """Extends the last LOAD_WEIGHTS by `size` tiles, and returns True. Returns False if the instruction cannot be extended:
        the new tiles do not follow its last tile in memory, must wait for another unit, or have been stored since."""
        op = self._bringing  # None: more tiles may not be added to the last LOAD_WEIGHTS
        if op is None or op.rows + size > _MOST_TILES or op.fields["transpose"] != tile.transpose:
            return False
        if op.fields.get("weight_format", 0) != tile.format:
            return False
        if self._numbers.get(self.stage, 0) < self._numbers.get(op.parts[-1][0], 0):
            return False  # or the first layers alone could not be told from the others
        end = op.fields["offset"] // self.config.vector_bytes + op.rows * self.n
        if (op.fields["region"], end) != (tile.region, tile.vector):
            return False
        if tile.region in self.places:
            number = self.issued[op.unit]
            needs = self.places[tile.region].access(op.unit, number, tile.vector, size * self.n, False)
            if any(need > dict(op.waits).get(unit, 0) for unit, need in enumerate(needs)):
                return False
        op.rows += size
        op.fields["rows"] = op.rows
        if op.parts[-1][0] == self.stage:
            *op.parts, (_, before) = op.parts
            size += before
        op.parts = (*op.parts, (self.stage, size))
        return True

    def tile(self, matrix, inputs, outputs, by_rows, row=0):
        """Returns the weight :class:`.Tile` for tile numbers of inputs and outputs. Rows are counted from `row`."""
        tile, rows = (outputs, inputs) if by_rows else (inputs, outputs)
        return self.tile_at(matrix, tile, row + rows * self.n, int(by_rows))

    def tile_at(self, matrix, tile, row, transpose=0):
        """Returns the weight :class:`.Tile` of n rows of a tile. Constant weights get addresses in the order of their first
        use."""
        if not self.constants.lowered.is_weights(matrix):
            assert matrix.strides["row"] == self.n, f"{matrix.name}: LOAD_WEIGHTS reads consecutive vectors"
            return Tile(matrix.region, self.offset(matrix, tile, row), transpose)
        number = self.image.setdefault(matrix.place(tile, row) // self.n, len(self.image))
        format_ = self.constants.format_of(matrix) if self.config.weight_formats and not transpose else 0
        return Tile(matrix.region, self.constants.weights + number * self.n, transpose, format_)

    def load_table(self, function, ahead=False):
        """Selects a function by table, and loads the part of its table that the function table does not hold yet. If `ahead`,
        loads only one binade, if its slot is free, of a function that is selected later. Returns False if nothing is loaded."""
        if not function.is_table:
            return False
        key, table, buffers = function.key, table_of(function), self.memories.tables
        runs, part = (self.slots.fill if ahead else self.slots.select)(key, table), buffers.size // 2
        for first, word, rows in runs:
            for start in range(0, rows, part):  # a transfer to one half of the buffers overlaps with the use of the other
                count, buffer = min(part, rows - start), buffers.take(part)
                self.transfer(Opcode.LOAD, Region.MODEL, self.constants.tables[key] + first + start, count, buffer=buffer)
                fields = {"rows": count, "buffer": buffer, "word": word + start * self.n}
                self.emit(Opcode.LOAD_TABLE, {**self.slots.settings, **fields})
        return bool(runs)

    def multiply(self, lanes, rows, acc, operand, buffer):
        self.emit(Opcode.MULTIPLY, {"rows": rows, "lanes": lanes, "acc": acc, "operand": operand, "buffer": buffer})

    def update(self, acc, rows, master, momentum):
        """Emits UPDATEs of `rows` rows of a parameter, whose gradient is the sums starting at `acc`. In region SCRATCH, `master`
        has the first vectors of the upper and lower halves of W, and `momentum` is the first vector of V. V is loaded after W."""
        most = max(1, min(UPDATE_ROWS, self.memories.biases.size // (2 * UPDATES_AT_ONCE)))
        planes = dict(zip((UpdatePart.UPPER, UpdatePart.LOWER, UpdatePart.MOMENTUM), (*master, momentum)))
        for first in range(0, rows, most):
            count = min(most, rows - first)
            bias, place = self.memories.biases.take(2 * count), self.memories.updates.take(count)
            for half, plane, after in zip((Half.UPPER, Half.LOWER, Half.UPPER), planes.values(), (0, 0, count)):
                self.transfer(Opcode.LOAD_BIAS, Region.SCRATCH, plane + first, count, bias=bias + after, half=half)
            fields = {"rows": count, "update": place, "acc": acc + first, "bias": bias}
            self.emit(Opcode.UPDATE, fields | {"momentum": 0, "rate": 0})  # the host writes the factors
            for part, plane in planes.items():
                self.transfer(Opcode.STORE_UPDATE, Region.SCRATCH, plane + first, count, part=part, update=place)
