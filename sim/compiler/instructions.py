"""Instructions of a program in the making, and the places on the chip that they use.

Hazards are interlocked in hardware, so no instruction waits in the program: reusing a place is always right, and only costs
time if it comes too soon.
"""

import numpy as np

from amaranth_tpu.hw.spec.isa import Format, Opcode

from .timing import UNIT

__all__ = ["Op", "Places", "Ring", "waits"]


class Op:
    """An instruction, with what its timing depends on.

    `waits` are pairs (unit, how many of that unit's instructions must have ended before it begins). `rows`, `passes`, `keep`,
    `acc`, `acc_stride`, `tiles0` and `wide` are as in its fields; `tiles` is (layer, first column of the group, columns,
    tiles of the group before, tiles) of a MATMUL that takes tiles, which stand in the group's order: by k, then column.
    `stage` is the number of the stage that it belongs to; of LOAD_WEIGHTS, `parts` has pairs of such
    a number and tiles, in order.
    """

    __slots__ = ("opcode", "fields", "unit", "waits", "rows", "passes", "keep", "acc", "acc_stride", "tiles0", "wide",
                 "tiles", "group_tiles", "stage", "parts")

    def __init__(self, opcode, fields, waits=(), tiles=None):
        self.opcode, self.fields, self.unit, self.waits, self.tiles = opcode, fields, UNIT[opcode], waits, tiles
        self.rows = fields.get("rows", 0)
        self.stage = None
        self.wide = fields.get("format") is Format.BINARY32
        if opcode is Opcode.MATMUL:
            self.rows = fields["rows0"] * fields["rows1"]
            self.passes = fields["tiles0"] * fields["tiles1"]
            self.tiles0, self.keep = fields["tiles0"], fields["keep"]
            self.acc, self.acc_stride = fields["acc"], fields["tiles0_acc_stride"]


class Places:
    """Who used each row of a memory last: for every row and unit, how many instructions the unit had issued by then."""

    def __init__(self, rows):
        self.written = np.zeros((5, rows), np.int64)
        self.read = np.zeros((5, rows), np.int64)

    def access(self, unit, number, first, count, write):
        """Marks instruction `number` of the unit, and returns what it has to wait for."""
        span = slice(first, first + count)
        needs = self.written[:, span].max(axis=1)
        if write:
            needs = np.maximum(needs, self.read[:, span].max(axis=1))
            self.written[unit, span] = number
        else:
            self.read[unit, span] = number
        needs[unit] = 0
        return needs


def waits(places, unit, number, accesses):
    """What instruction `number` of a unit waits for, as :class:`Op` has it. `places` : {memory: Places}; `accesses` : (memory,
    first row, rows, write) that it touches."""
    needs = np.zeros(5, np.int64)
    for memory, first, count, write in accesses:
        needs = np.maximum(needs, places[memory].access(unit, number, first, count, write))
    return [(other, need) for other, need in enumerate(needs.tolist()) if need]


class Ring:
    """Hands out stretches of a memory, one after the other, round and round."""

    def __init__(self, base, size):
        self.base, self.size, self.next = base, size, 0

    def take(self, count):
        assert count <= self.size
        if self.next + count > self.size:
            self.next = 0
        place = self.base + self.next
        self.next += count
        return place
