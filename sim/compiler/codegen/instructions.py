"""Instructions of an unfinished program, and the on-chip memory that they access.

The hardware interlocks all hazards, so a program has no wait instructions. A program may reuse memory at any time and computes
the same values: reusing it too early only stalls the core.
"""

import numpy as np

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, FunctionCode, Opcode, Region

from ..timing.units import UNIT, UNITS

__all__ = ["Op", "LastUse", "accesses", "function_code"]


class Op:
    """An instruction, and the data from which the compiler estimates its time.

    The attributes `rows`, `passes`, `keep`, `acc`, `acc_stride` and `tiles0` are derived from its fields.

    Parameters
    ----------
    opcode : Opcode
    fields : dict
    waits : sequence of (unit, number)
        The instruction begins once `number` instructions of the unit with this index have completed.
    stage : int or str
        Name of the sum to which the instruction belongs; in the program of a network, the index of the stage.
    parts : sequence of (stage, tiles)
        Numbers of tiles that a LOAD_WEIGHTS loads for each stage, in order.
    """

    __slots__ = ("opcode", "fields", "unit", "waits", "rows", "passes", "keep", "acc", "acc_stride", "tiles0", "stage", "parts")

    def __init__(self, opcode, fields, waits=(), stage=0):
        self.opcode, self.fields, self.unit, self.waits = opcode, fields, UNIT[opcode], waits
        self.stage, self.parts = stage, ()
        self.rows = fields.get("rows", 0)
        if opcode is Opcode.MATMUL:
            self.rows = fields["rows0"] * fields["rows1"]
            self.passes = fields["tiles0"] * fields["tiles1"]
            self.tiles0, self.keep = fields["tiles0"], fields["keep"]
            self.acc, self.acc_stride = fields["acc"], fields["tiles0_acc_stride"]

    def array_cycles(self, tile_cycles):
        """Returns the cycles in which the array accepts the rows of a MATMUL, or waits while a tile of weights shifts in."""
        return self.passes * (self.rows if self.keep else max(self.rows, tile_cycles))


class LastUse:
    """A table of the last accesses to each row of a memory. For each unit and row it has the index of the unit's last reading and
    of its last writing instruction, counted from 1."""

    def __init__(self, rows):
        # The units' last writing instructions, then their last reading ones.
        self.uses = np.zeros((2 * UNITS, rows), np.int32)

    def access(self, unit, number, first, count, write):
        """Records that instruction `number` of the unit reads or writes `count` rows starting at `first`. Returns a list: for
        each unit, the number of its instructions that must have completed before the access."""
        uses = self.uses[:, first : first + count]
        if write:
            latest = uses.max(axis=1).tolist()
            needs = list(map(max, latest[:UNITS], latest[UNITS:]))
            uses[unit] = number
        else:
            needs = uses[:UNITS].max(axis=1).tolist()
            uses[UNITS + unit] = number
        needs[unit] = 0
        return needs


def accesses(opcode, fields, vector_bytes, cores=1):
    """Yields `(memory, first row, rows, write)` for each memory that an instruction accesses: the chip's, OUTPUT, SCRATCH.

    Each memory has one range, from the first to the last row that is read or written, as in the hardware's interlocks. `cores` is
    the number of cores in the ring.
    """
    record, spans = INSTRUCTIONS[opcode], {}
    for span in record.spans:
        if span.is_touched(fields):
            first = fields[span.base]
            low, high, write = spans.get(span.space, (first, first, False))
            spans[span.space] = min(low, first), max(high, first + span.length(fields, cores)), write or span.use == "w"
    for space, (low, high, write) in spans.items():
        yield space, low, high - low, write
    if record.transfer and fields.get("region") in (Region.OUTPUT, Region.SCRATCH):
        first, write = fields["offset"] // vector_bytes, record.transfer.use == "w"
        yield fields["region"], first, record.moved(vector_bytes // 2, fields), write


def function_code(function):
    """Returns the FunctionCode, for instructions, of a :class:`sim.functions.functions.Function` or a
    :class:`sim.functions.derivatives.Derivative`."""
    return FunctionCode.TABLE if function.is_table else FunctionCode[function.name.upper()]
