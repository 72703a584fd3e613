"""Instructions of an unfinished program, and the on-chip memory that they access.

Hazards are interlocked in hardware, so a program has no wait instructions: reusing memory is always correct. Reusing it too early
only stalls.
"""

import numpy as np

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode, Region

from ..timing.model import UNIT, UNITS

__all__ = ["Op", "LastUse", "Ring", "accesses"]


class Op:
    """An instruction with the data that its timing depends on.

    `rows`, `passes`, `keep`, `acc`, `acc_stride` and `tiles0` are derived from its fields.

    Parameters
    ----------
    opcode : Opcode
    fields : dict
    waits : sequence of (unit, number)
        The instruction begins once `number` instructions of the unit have completed.
    stage : int
        Number of the stage that it belongs to.
    tiles : (stage, first column of the group, columns, tiles of the group before, tiles) or None
        Tiles consumed by a MATMUL, in the group's order: by pass, then column.
    group_tiles : int
        Tiles of the whole group.
    parts : sequence of (stage, tiles)
        Tiles loaded by a LOAD_WEIGHTS, in order.
    """

    __slots__ = (
        "opcode",
        "fields",
        "unit",
        "waits",
        "rows",
        "passes",
        "keep",
        "acc",
        "acc_stride",
        "tiles0",
        "tiles",
        "group_tiles",
        "stage",
        "parts",
    )

    def __init__(self, opcode, fields, waits=(), stage=0, tiles=None, group_tiles=0):
        self.opcode, self.fields, self.unit, self.waits = opcode, fields, UNIT[opcode], waits
        self.stage, self.tiles, self.group_tiles, self.parts = stage, tiles, group_tiles, []
        self.rows = fields.get("rows", 0)
        if opcode is Opcode.MATMUL:
            self.rows = fields["rows0"] * fields["rows1"]
            self.passes = fields["tiles0"] * fields["tiles1"]
            self.tiles0, self.keep = fields["tiles0"], fields["keep"]
            self.acc, self.acc_stride = fields["acc"], fields["tiles0_acc_stride"]


class LastUse:
    """The last access of each unit to each row of a memory, as the number of instructions that the unit had issued by then."""

    def __init__(self, rows):
        self.written = np.zeros((UNITS, rows), np.int64)
        self.read = np.zeros((UNITS, rows), np.int64)

    def access(self, unit, number, first, count, write):
        """Records an access by instruction `number` of the unit. Returns, per unit, the number of instructions to wait for."""
        span = slice(first, first + count)
        needs = self.written[:, span].max(axis=1)
        if write:
            needs = np.maximum(needs, self.read[:, span].max(axis=1))
            self.written[unit, span] = number
        else:
            self.read[unit, span] = number
        needs[unit] = 0
        return needs


def accesses(opcode, fields, vector_bytes, cores=1):
    """Yields `(memory, first row, rows, write)` for all memory that an instruction accesses, on the chip and in region SCRATCH.

    Each memory has one range, as in the hardware's interlocks: from the first to the last row that is read or written. `cores` :
    cores in the ring.
    """
    record, spans = INSTRUCTIONS[opcode], {}
    for span in record.spans:
        if span.is_touched(fields):
            first = fields[span.base]
            low, high, write = spans.get(span.space, (first, first, False))
            spans[span.space] = min(low, first), max(high, first + span.length(fields, cores)), write or span.use == "w"
    for space, (low, high, write) in spans.items():
        yield space, low, high - low, write
    if record.transfer and fields.get("region") is Region.SCRATCH:
        vectors = fields["rows"] * record.vectors(vector_bytes // 2, fields)
        yield "scratch", fields["offset"] // vector_bytes, vectors, record.transfer.use == "w"


class Ring:
    """A ring allocator of a memory: consecutive ranges, from the start again at the end."""

    def __init__(self, base, size):
        self.base, self.size, self.next = base, size, 0

    def take(self, count):
        assert count <= self.size
        if self.next + count > self.size:
            self.next = 0
        place = self.base + self.next
        self.next += count
        return place
