"""Emitters of a program's instructions, in order, each with the instructions that it waits for."""

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

_TABLE_PART = 64  # vectors of a function table per load


class Emitter:
    """Builds the list `ops`.

    Parameters
    ----------
    config : Config
    scratch : int
        Vectors of region SCRATCH.

    Members
    -------
    stage : int
        Number of the stage to which the next instructions belong.
    worked : dict of int to int
        Cycles of the array by stage.
    regions : dict of str to (Region, first vector)
        Tensors in host memory.
    cores : int
        Number of cores in the ring.
    """

    cores = 1
    #: Whether passes skip rows of sums for which they would read only zeros around a tensor. With finite weights, adding these
    #: : zeros changes nothing but -0 to +0.
    skips_margins = False

    def __init__(self, config, scratch):
        self.config, self.n = config, config.n
        self.ops, self.issued, self.stage = [], [0] * UNITS, 0
        # The function table is not tracked: only one unit uses it, in order.
        self.places = {space: LastUse(space_depth(config, space)) for space in ("buffer", "acc", "bias")}
        self.places["scratch"] = LastUse(max(1, scratch))
        self.worked, self.regions = Counter(), {}
        self.bias_ring, self.bias_places = Ring(0, config.bias_depth), {}

    def emit(self, opcode, fields, tiles=None, group_tiles=0):
        """Emits an instruction, which waits for the earlier instructions that use the same memory."""
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
        """Emits an instruction that moves `rows` from or to host memory, starting at a vector of a region."""
        self.emit(opcode, {"region": region, "offset": vector * self.config.vector_bytes, "rows": rows, **fields})

    def move(self, opcode, name, position, buffer, count, size=1, **fields):
        """Emits a LOAD or STORE of positions of a tensor, `size` vectors each."""
        region, first = self.regions[name]
        self.transfer(opcode, region, first + position * size, count * size, buffer=buffer, **fields)

    def take_bias(self, count, key=None):
        """Allocates `count` bias rows and returns the first. `bias_places[key]` holds them until another allocation overwrites
        them."""
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
        """Loads a function table from vector `vector` of MODEL, through the ring `operands` in the unified buffer.

        The table is loaded in pieces, double buffered in two places: the first piece arrives early, and operands keep the rest of
        the ring.
        """
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
        """Loads zeros into the unified buffer, from the start of the constants in MODEL."""
        for first in range(0, count, ZEROS):
            self.transfer(Opcode.LOAD, Region.MODEL, 0, min(ZEROS, count - first), buffer=buffer + first)


class StageEmitter(Emitter):
    """The instructions of a graph's program. Region MODEL's constants start with the zeros, at offset 0; the bias rows of all
    stages follow, then the function tables.

    Parameters
    ----------
    config : Config
    stages : sequence of Stage
    host : HostLayout

    Members
    -------
    tables : dict
        `{function: index of its table in region MODEL}`.
    """

    def __init__(self, config, stages, host):
        super().__init__(config, host.sizes[Region.SCRATCH])
        self.stages, self.regions, self.layouts = stages, host.regions, host.layouts
        self.tables, self.loaded = {}, None
        self.first_bias = [0, *accumulate(tiles_of(stage.channels, self.n) for stage in stages)]

    def results(self, stage, wide):
        """Returns the :class:`Results` of a stage."""
        return Results(self, stage, wide)

    def tiles(self, columns, passes, sample):
        """Returns the :class:`DataTiles` of a group of column tiles, (first, count), of the current stage, or None if its weights
        are constants. `sample` is the job's only sample, if each sample has its own tiles. See
        :class:`sim.compiler.codegen.matmuls.Group`."""
        term = self.stages[self.stage].terms[0]
        return DataTiles(self, term, self.layouts[term.data], sample, columns, len(passes)) if term.data else None

    def begin_run(self, stages):
        """Resets the range of loaded bias rows for the run of these stages."""
        self.run_biases = self.biases_loaded = self.bias_row(stages[0])
        self.biases_end = self.bias_row(stages[-1] + 1)

    def bias(self, column, count=1):
        """Returns the first bias row of column tiles of the current stage. Loads the rows if they are not on the chip."""
        row = self.bias_row(self.stage, column)
        if self.first_bias[-1] <= self.config.bias_depth:
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

    def _load_biases(self, row, count, place):
        self.emit(Opcode.LOAD_BIAS, {"region": Region.MODEL, "offset": self._bias_offset(row), "rows": count, "bias": place})

    def _bias_offset(self, row):
        vectors = ZEROS + row * INSTRUCTIONS[Opcode.LOAD_BIAS].vectors(self.n)
        return vectors * self.config.vector_bytes

    def bias_row(self, stage, column=0):
        """Returns the number of a column tile's bias row in region MODEL."""
        return self.first_bias[stage] + column

    def load_table(self, function, operands):
        """Loads a function into the function table, unless it is there, through a ring in the unified buffer."""
        if function == self.loaded:
            return
        self.loaded = function
        number = self.tables.setdefault(function, len(self.tables))
        base = self._bias_offset(self.first_bias[-1]) // self.config.vector_bytes
        self.put_table(table_of(function), base + number * (TABLE_WORDS // self.n), operands)
