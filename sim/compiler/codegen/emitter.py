"""The instructions of a program, one after the other, with what each of them waits for."""

from collections import Counter
from itertools import accumulate

import numpy as np

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, TABLE_WORDS, Opcode, Region, space_depth

from ...golden.function_tables import table_of
from ...ir.tiles import tiles_of
from ..memory.data_tiles import DataTiles
from ..memory.layout import ZEROS
from ..timing.model import UNIT, UNITS
from .instructions import LastUse, Op, Ring, accesses
from .results import Results

__all__ = ["Emitter", "StageEmitter"]

_TABLE_PART = 64  # vectors of a function table that are brought at a time


class Emitter:
    """Builds `ops`.

    Parameters
    ----------
    config : Config
    scratch : int
        Vectors of region SCRATCH.

    Members
    -------
    stage : int
        Number of the stage that instructions belong to from now on.
    worked : dict of int to int
        Cycles of the array by stage.
    regions : dict of str to (Region, first vector)
        Of tensors in host memory.
    cores : int
        Of the ring.
    """

    cores = 1
    #: Whether passes leave out rows of sums for which they would only read zeros around a tensor. Times finite weights, zeros
    #: change -0 to +0 alone.
    skips_margins = False

    def __init__(self, config, scratch):
        self.config, self.n = config, config.n
        self.ops, self.issued, self.stage = [], [0] * UNITS, 0
        # The function table is left out: one unit alone uses it, in order.
        self.places = {space: LastUse(space_depth(config, space)) for space in ("buffer", "acc", "bias")}
        self.places["scratch"] = LastUse(max(1, scratch))
        self.worked, self.regions = Counter(), {}
        self.bias_ring, self.bias_places = Ring(0, config.bias_depth), {}

    def emit(self, opcode, fields, tiles=None, group_tiles=0):
        """Adds an instruction, which waits for those that used what it touches."""
        unit = UNIT[opcode]
        self.issued[unit] += 1
        needs = np.zeros(UNITS, np.int64)
        for memory, first, count, write in accesses(opcode, fields, self.config.vector_bytes, self.cores):
            if memory in self.places:
                needs = np.maximum(needs, self.places[memory].access(unit, self.issued[unit], first, count, write))
        waits = [(other, need) for other, need in enumerate(needs.tolist()) if need]
        op = Op(opcode, fields, waits, self.stage, tiles, group_tiles)
        if opcode is Opcode.MATMUL:
            self.worked[self.stage] += op.passes * max(op.rows, self.n)
        self.ops.append(op)

    def transfer(self, opcode, region, vector, rows, **fields):
        """An instruction that moves `rows` from or to host memory, beginning at a vector of a region."""
        self.emit(opcode, {"region": region, "offset": vector * self.config.vector_bytes, "rows": rows, **fields})

    def move(self, opcode, name, position, buffer, count, size=1, **fields):
        """LOAD or STORE of positions of a tensor, `size` vectors each."""
        region, first = self.regions[name]
        self.transfer(opcode, region, first + position * size, count * size, buffer=buffer, **fields)

    def take_bias(self, count, key=None):
        """Bias rows, of which `bias_places` has the first under this key as long as nothing else has come there."""
        place = self.bias_ring.take(count)
        self.bias_places = {
            other: (first, rows)
            for other, (first, rows) in self.bias_places.items()
            if first + rows <= place or place + count <= first
        }
        if key is not None:
            self.bias_places[key] = place, count
        return place

    def put_table(self, table, vector, operands):
        """Loads the function table with one whose words begin at a vector of MODEL, by way of a ring in the unified buffer: in
        pieces, by turns in two places, so that the first is soon there and operands have the rest of the ring."""
        vectors = TABLE_WORDS // self.n
        part = max(1, min(_TABLE_PART, operands.size // 2))
        places = [operands.take(part) for _ in range(min(2, operands.size))]
        for start in range(0, vectors, part):
            rows, buffer = min(part, vectors - start), places[start // part % len(places)]
            self.transfer(Opcode.LOAD, Region.MODEL, vector + start, rows, buffer=buffer)
            self.emit(
                Opcode.LOAD_TABLE,
                {
                    "linear_low": table.linear_low,
                    "linear_high": table.linear_high,
                    "first": table.first,
                    "rows": rows,
                    "buffer": buffer,
                    "word": start * self.n,
                },
            )

    def load_zeros(self, buffer, count):
        """Zeros -> unified buffer, from the beginning of the constants in MODEL."""
        for first in range(0, count, ZEROS):
            self.transfer(Opcode.LOAD, Region.MODEL, 0, min(ZEROS, count - first), buffer=buffer + first)


class StageEmitter(Emitter):
    """The instructions of a graph's program. Offsets in MODEL count from the zeros. The bias rows of all stages follow, and then
    the function tables.

    Parameters
    ----------
    config : Config
    stages : sequence of Stage
    host : HostLayout

    Members
    -------
    tables : dict
        Functions by table to their numbers in region MODEL.
    """

    def __init__(self, config, stages, host):
        super().__init__(config, host.sizes[Region.SCRATCH])
        self.stages, self.regions, self.layouts = stages, host.regions, host.layouts
        self.tables, self.loaded = {}, None
        self.first_bias = [0, *accumulate(tiles_of(stage.channels, self.n) for stage in stages)]

    def results(self, stage, wide):
        """The way out of the accumulators for a stage."""
        return Results(self, stage, wide)

    def tiles(self, columns, passes, sample):
        """The tiles of a group of column tiles, (first, count), of the present stage, as
        :class:`sim.compiler.codegen.matmuls.Group` has it; `sample` is the only one of the job, where each has its own."""
        term = self.stages[self.stage].terms[0]
        return DataTiles(self, term, self.layouts[term.data], sample, columns, len(passes)) if term.data else None

    def begin_run(self, stages):
        """Stages of these numbers follow."""
        self.run_biases = self.biases_loaded = self.bias_row(stages[0])
        self.biases_end = self.bias_row(stages[-1] + 1)

    def bias(self, column, count=1):
        """Place of the bias rows of column tiles of the present stage; they are loaded if they are not there."""
        row = self.bias_row(self.stage, column)
        if self.first_bias[-1] <= self.config.bias_depth:
            if row + count > self.biases_loaded:
                # The first group's come with it, all others of the run at once behind them.
                end = row + count if self.biases_loaded == self.run_biases else self.biases_end
                self._load_biases(self.biases_loaded, end - self.biases_loaded, self.biases_loaded)
                self.biases_loaded = end
            return row
        key = self.stage, column, count
        if key not in self.bias_places:
            self._load_biases(row, count, self.take_bias(count, key))
        return self.bias_places[key][0]

    def _load_biases(self, row, count, place):
        self.emit(Opcode.LOAD_BIAS, {"region": Region.MODEL, "offset": self._bias_offset(row), "rows": count, "bias": place})

    def _bias_offset(self, row):
        vectors = ZEROS + row * INSTRUCTIONS[Opcode.LOAD_BIAS].vectors(self.n)
        return vectors * self.config.vector_bytes

    def bias_row(self, stage, column=0):
        """Number of a column tile's bias row in region MODEL."""
        return self.first_bias[stage] + column

    def load_table(self, function, operands):
        """Puts a function into the function table, if it is not there, by way of a ring in the unified buffer."""
        if function == self.loaded:
            return
        self.loaded = function
        number = self.tables.setdefault(function, len(self.tables))
        base = self._bias_offset(self.first_bias[-1]) // self.config.vector_bytes
        self.put_table(table_of(function), base + number * (TABLE_WORDS // self.n), operands)
