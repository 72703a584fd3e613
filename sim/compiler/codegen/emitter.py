"""Emitters of instructions. They append instructions to a program in order, and record for each the earlier instructions that it
must wait for."""

from collections import Counter

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, TABLE_SETTINGS, Opcode, Region, space_depth, spaces_of

from ...golden.function_tables import table_of
from ..memory.bias_image import BiasImage
from ..memory.data_tiles import DataTiles
from ..memory.layout import ZEROS
from ..timing.model import UNIT, UNITS
from .instructions import LastUse, Op, Ring, accesses
from .table_slots import TableSlots

__all__ = ["Emitter", "StageEmitter"]

_TABLE_PART = 64  # vectors of a function table per load


class Emitter:
    """Appends instructions to the list `ops`, and derives their dependencies from the memory that they access.

    Parameters
    ----------
    config : Config
    scratch : int
        Size of region SCRATCH, in vectors.

    Members
    -------
    stage : int or str
        Stage to which the next instructions belong, as of :class:`Op`. The caller sets it.
    worked : dict of stage to int
        Cycles of the array by stage index, for the instructions emitted so far.
    regions : dict of str to (Region, first vector)
        Address of each tensor in host memory.
    cores : int
        Number of cores in the ring.
    """

    cores = 1

    def __init__(self, config, scratch):
        self.config, self.n = config, config.n
        self.ops, self.issued = [], [0] * UNITS
        self.stage: int | str = 0
        # The function table is not tracked: one unit loads and reads it, in program order.
        self.places = {space: LastUse(space_depth(config, space)) for space in spaces_of(config)}
        self.places["scratch"] = LastUse(max(1, scratch))
        self.worked, self.regions = Counter(), {}
        self.bias_ring, self.bias_places = Ring(0, config.bias_depth), {}
        self.slots, self.table_settings = TableSlots(), {}

    def emit(self, opcode, fields, tiles=None, group_tiles=0):
        """Emits an instruction. It waits for the earlier instructions of other units that use the same memory. `tiles` and
        `group_tiles` : see :class:`.Op`."""
        unit = UNIT[opcode]
        self.issued[unit] += 1
        needs = [0] * UNITS
        for memory, first, count, write in accesses(opcode, fields, self.config.vector_bytes, self.cores):
            if memory in self.places:
                needs = list(map(max, needs, self.places[memory].access(unit, self.issued[unit], first, count, write)))
        waits = [(other, need) for other, need in enumerate(needs) if need]
        op = Op(opcode, fields, waits, self.stage, tiles, group_tiles)
        if opcode is Opcode.MATMUL:
            self.worked[self.stage] += op.passes * max(op.rows, self.n)
        self.ops.append(op)

    def transfer(self, opcode, region, vector, rows, **fields):
        """Emits an instruction that moves `rows` rows between the chip and host memory, from vector number `vector` of a region
        on."""
        self.emit(opcode, {"region": region, "offset": vector * self.config.vector_bytes, "rows": rows, **fields})

    def move(self, opcode, name, position, buffer, count, size=1, **fields):
        """Emits a LOAD or STORE of `count` consecutive positions of the tensor `name`, each `size` vectors long. `buffer` is the
        first row of the unified buffer."""
        region, first = self.regions[name]
        self.transfer(opcode, region, first + position * size, count * size, buffer=buffer, **fields)

    def take_bias(self, count, key=None):
        """Allocates `count` rows of the bias memory and returns the first. `bias_places[key]` then has the address and the count,
        until another allocation overwrites the rows."""
        place = self.bias_ring.take(count)
        self.bias_places = {
            other: (first, rows)
            for other, (first, rows) in self.bias_places.items()
            if first + rows <= place or place + count <= first
        }
        if key is not None:
            self.bias_places[key] = place, count
        return place

    def put_table(self, *arguments):
        """Emits all parts of :meth:`table_parts`."""
        for _ in self.table_parts(*arguments):
            pass

    def table_parts(self, key, table, vector, operands):
        """Selects the function with the key `key` for TABLE, and loads the part of its table that the function table does not
        hold yet. The packed table is stored starting at vector `vector` of region MODEL. `operands` is the :class:`.Ring` that
        allocates rows of the unified buffer for the transfer. Yields after each transfer.

        The table is loaded in several transfers. They alternate between two buffer areas, so a transfer to one area overlaps with
        the use of the other. Only these two areas are taken from `operands`: its other rows stay free for operands.
        """
        if key == self.slots.selected:
            return
        base, runs = self.slots.select(key, table, self.n)
        part = max(1, min(_TABLE_PART, operands.size // 2, max((rows for *_, rows in runs), default=1)))
        pieces = [
            (first + start, word + start * self.n, min(part, rows - start))
            for first, word, rows in runs
            for start in range(0, rows, part)
        ]
        places = [operands.take(part) for _ in range(min(2, operands.size, len(pieces)))]
        self.table_settings = {name: getattr(table, name) for name in TABLE_SETTINGS} | {"base": base}
        for number, (first, word, rows) in enumerate(pieces):
            self._load_table_rows(vector + first, word, rows, places[number % len(places)])
            yield

    def _load_table_rows(self, vector, word, rows, buffer):
        """Loads rows into the function table, through row `buffer` of the unified buffer. The selected function stays
        selected."""
        self.transfer(Opcode.LOAD, Region.MODEL, vector, rows, buffer=buffer)
        self.emit(Opcode.LOAD_TABLE, {**self.table_settings, "rows": rows, "buffer": buffer, "word": word})

    def load_zeros(self, buffer, count):
        """Loads `count` vectors of zeros into the unified buffer, starting at row `buffer`. Region MODEL holds the zeros at the
        start of its constants."""
        for first in range(0, count, ZEROS):
            self.transfer(Opcode.LOAD, Region.MODEL, 0, min(ZEROS, count - first), buffer=buffer + first)


class StageEmitter(Emitter):
    """The emitter for a graph's program. In region MODEL, the constants are: zeros from offset 0, then the bias rows of all
    stages, then the function tables.

    Parameters
    ----------
    config : Config
    stages : sequence of Stage
    host : HostLayout

    Members
    -------
    tables : dict
        `{function: first vector of its table, from the first table in region MODEL on}`.
    """

    def __init__(self, config, stages, host):
        super().__init__(config, host.sizes[Region.SCRATCH])
        self.stages, self.regions, self.layouts = stages, host.regions, host.layouts
        self.tables, self._table_vectors = {}, 0
        self.biases = BiasImage(stages, self.n)
        self.resident = self.biases.resident(config.bias_depth)
        if self.resident:
            self.bias_ring = Ring(self.biases.plain, config.bias_depth - self.biases.plain)

    def tiles(self, columns, passes, sample):
        """Returns the :class:`.DataTiles` that loads the weights of a group of column tiles of the current stage, or None if
        these weights are constants. `columns` is (first, count), `passes` the passes of a column tile, and `sample` the only
        sample of the job. :class:`sim.compiler.codegen.matmuls.Group` uses the result."""
        term = self.stages[self.stage].terms[0]
        return DataTiles(self, term, self.layouts[term.data], sample, columns, len(passes)) if term.data else None

    def begin_run(self, stages):
        """Prepares the loading of biases for a run, a range of stages: none of its bias rows is loaded yet."""
        self.run_biases = self.biases_loaded = self.biases.row(stages[0])
        self.biases_end = self.biases.row(stages[-1] + 1)

    def bias(self, column, count=1):
        """Returns the address, in the bias memory, of the bias rows of `count` column tiles of the current stage, starting at
        `column`. Loads the rows first if they are not on the chip."""
        row = self.biases.row(self.stage, column)
        if self.resident:
            if row + count > self.biases_loaded:
                # The first load has the first group's rows; the second has all other rows of the run.
                end = row + count if self.biases_loaded == self.run_biases else self.biases_end
                self._load_biases(self.biases_loaded, end - self.biases_loaded, self.biases_loaded)
                self.biases_loaded = end
            return row
        key = self.stage, column, count
        if key not in self.bias_places:
            self._load_biases(row, count, self.take_bias(count, key))
        return self.bias_places[key][0]

    def bias_rows(self, column, rectangle):
        """Returns the first bias row of the sums in a rectangle, in a column tile of the current stage, which has a row for each
        position. Loads the rows if they are not on the chip."""
        stretches = tuple(self.biases.stretches(self.stage, column, rectangle))
        if stretches not in self.bias_places:
            place = self.take_bias(sum(count for _, count in stretches), stretches)
            for row, count in stretches:
                self._load_biases(row, count, place)
                place += count
        return self.bias_places[stretches][0]

    def _load_biases(self, row, count, place):
        self.emit(Opcode.LOAD_BIAS, {"region": Region.MODEL, "offset": self._bias_offset(row), "rows": count, "bias": place})

    def _bias_offset(self, row):
        vectors = ZEROS + row * INSTRUCTIONS[Opcode.LOAD_BIAS].vectors(self.n)
        return vectors * self.config.vector_bytes

    def load_table(self, function, operands):
        """Selects a function for TABLE, and loads the part of its table that the function table does not hold yet. `operands` is
        the :class:`.Ring` that allocates rows of the unified buffer for the transfer."""
        self.put_table(function.key, table_of(function), self._table_vector(function), operands)

    def load_ahead(self, function, keep, buffer):
        """Loads parts of the table of a function that will be selected later, one at each step of this generator. Parts of the
        functions `keep` stay in the function table. `buffer` is the :class:`.Ring` for the transfers."""
        keys = {other.key for other in keep}
        for first, word, rows in self.slots.ahead(function.key, table_of(function), self.n, keys):
            self._load_table_rows(self._table_vector(function) + first, word, rows, buffer.take(rows))
            yield

    def _table_vector(self, function):
        """Returns the first vector of a function's table in region MODEL."""
        if function not in self.tables:
            self.tables[function] = self._table_vectors
            self._table_vectors += len(table_of(function).packed()) // self.config.vector_bytes
        return self._bias_offset(self.biases.size) // self.config.vector_bytes + self.tables[function]
