"""The instructions of a graph's program, one after the other, with what each of them waits for."""

from collections import Counter
from itertools import accumulate

from amaranth_tpu.hw.spec.isa import TABLE_WORDS, Opcode, Region

from ..golden.function_tables import table_of
from ..ir.tiles import tiles_of
from .instructions import Op, Places, Ring, waits
from .layout import ZEROS
from .timing import UNIT

__all__ = ["Emitter"]


class Emitter:
    """Builds `ops`. Offsets in MODEL count from the zeros; the bias rows of all stages and the function tables follow.

    Parameters
    ----------
    config : Config
    stages : sequence of Stage
    regions : dict of tensor name to `(Region, first position)`
    scratch : int
        Vectors in region SCRATCH.

    Members
    -------
    stage : int
        Number of the stage that instructions belong to from now on.
    worked : dict of int to int
        Cycles of the array by stage.
    tables : dict
        Functions by table to their numbers in region MODEL.
    """

    def __init__(self, config, stages, regions, scratch):
        self.config, self.stages, self.regions, self.n = config, stages, regions, config.n
        self.ops, self.issued, self.stage = [], [0] * 5, 0
        self.places = {"buffer": Places(config.unified_buffer_depth), "acc": Places(config.accumulator_depth),
                       "bias": Places(config.bias_depth), "scratch": Places(max(1, scratch))}
        self.bias_ring, self.bias_places = Ring(0, config.bias_depth), {}
        self.tables, self.loaded, self.worked = {}, None, Counter()
        self.first_bias = [0, *accumulate(tiles_of(stage.channels, self.n) for stage in stages)]

    def emit(self, opcode, fields, accesses, tiles=None, group_tiles=0):
        """`accesses` : (memory, first row, rows, write) that the instruction touches."""
        unit = UNIT[opcode]
        self.issued[unit] += 1
        op = Op(opcode, fields, waits(self.places, unit, self.issued[unit], accesses), tiles)
        op.group_tiles, op.stage = group_tiles, self.stage
        if opcode is Opcode.MATMUL:
            self.worked[self.stage] += op.passes * max(op.rows, self.n)
        self.ops.append(op)
        return op

    def move(self, opcode, name, position, buffer, count, size=1):
        """LOAD or STORE of positions of a tensor, `size` vectors each."""
        region, first = self.regions[name]
        first, rows, loads = first + position * size, count * size, opcode is Opcode.LOAD
        accesses = [("buffer", buffer, rows, loads)]
        if region is Region.SCRATCH:
            accesses.append(("scratch", first, rows, not loads))
        self.emit(opcode, {"region": region, "offset": first * 2 * self.n, "rows": rows, "buffer": buffer}, accesses)

    def load_zeros(self, buffer, count):
        for first in range(0, count, ZEROS):
            rows = min(ZEROS, count - first)
            self.emit(Opcode.LOAD, {"region": Region.MODEL, "offset": 0, "rows": rows, "buffer": buffer + first},
                       [("buffer", buffer + first, rows, True)])

    def begin_run(self, stages):
        """Stages of these numbers follow."""
        self.run_biases = self.biases_loaded = self.bias_row(stages[0])
        self.biases_end = self.bias_row(stages[-1] + 1)

    def bias(self, column, count=1):
        """Place of the bias rows of column tiles of the present stage; they are loaded if they are not there."""
        row = self.bias_row(self.stage, column)
        if self.total_biases <= self.config.bias_depth:
            if row + count > self.biases_loaded:
                # The first group's come with it, all others of the run at once behind them.
                end = row + count if self.biases_loaded == self.run_biases else self.biases_end
                self._load_biases(self.biases_loaded, end - self.biases_loaded, self.biases_loaded)
                self.biases_loaded = end
            return row
        key = self.stage, column, count
        if key not in self.bias_places:
            place = self.bias_ring.take(count)
            self.bias_places = {other: at for other, at in self.bias_places.items()
                                if at + other[2] <= place or place + count <= at}
            self._load_biases(row, count, place)
            self.bias_places[key] = place
        return self.bias_places[key]

    def _load_biases(self, row, count, place):
        offset = ZEROS * 2 * self.n + row * 4 * self.n
        self.emit(Opcode.LOAD_BIAS, {"region": Region.MODEL, "offset": offset, "rows": count, "bias": place},
                   [("bias", place, count, True)])

    def bias_row(self, stage, column=0):
        """Number of a column tile's bias row in region MODEL."""
        return self.first_bias[stage] + column

    @property
    def total_biases(self):
        return self.bias_row(len(self.stages))

    def load_table(self, function, operands):
        """Puts a function into the function table, if it is not there, by way of a ring in the unified buffer."""
        if function == self.loaded:
            return
        self.loaded = function
        number = self.tables.setdefault(function, len(self.tables))
        table = table_of(function)
        base = ZEROS * 2 * self.n + self.total_biases * 4 * self.n + number * 2 * TABLE_WORDS
        vectors = TABLE_WORDS // self.n
        part = min(vectors, operands.size)
        for start in range(0, vectors, part):
            rows = min(part, vectors - start)
            buffer = operands.take(rows)
            self.emit(Opcode.LOAD, {"region": Region.MODEL, "offset": base + start * 2 * self.n, "rows": rows, "buffer": buffer},
                       [("buffer", buffer, rows, True)])
            self.emit(Opcode.LOAD_TABLE, {"linear_low": table.linear_low, "linear_high": table.linear_high, "first": table.first,
                                          "rows": rows, "buffer": buffer, "word": start * self.n},
                      [("buffer", buffer, rows, False)])
