"""Emitters of instructions. They append instructions to a program in order, and record for each the earlier instructions that it
must wait for."""

from collections import Counter

from amaranth_tpu.hw.spec.isa import Opcode, Region, space_depth, spaces_of

from ..timing.units import UNIT, UNITS
from .instructions import LastUse, Op, accesses

__all__ = ["ZEROS", "Emitter"]

#: Vectors of zeros in region MODEL, from which zero rows are loaded.
ZEROS = 64


class Emitter:
    """Appends instructions to the list `ops`, and derives their dependencies from the memory that they access. `sizes` has the
    vectors of the regions OUTPUT and SCRATCH.

    Members
    -------
    stage : int or str
        Stage to which the next instructions belong, as of :class:`Op`. The caller sets it.
    worked : dict of stage to int
        Cycles of the array by stage index, for the instructions emitted so far.
    cores : int
        Number of cores in the ring.
    """

    cores = 1

    def __init__(self, config, sizes):
        self.config, self.n = config, config.n
        self.ops, self.issued = [], [0] * UNITS
        self.stage: int | str = 0
        # The function table is not tracked: one unit loads and reads it, in program order.
        self.places = {space: LastUse(space_depth(config, space)) for space in spaces_of(config)}
        self.places |= {region: LastUse(max(1, sizes.get(region, 0))) for region in (Region.OUTPUT, Region.SCRATCH)}
        self.worked = Counter()

    def emit(self, opcode, fields):
        """Emits an instruction. It waits for the earlier instructions of other units that use the same memory."""
        unit = UNIT[opcode]
        self.issued[unit] += 1
        needs = [0] * UNITS
        for memory, first, count, write in accesses(opcode, fields, self.config.vector_bytes, self.cores):
            if memory in self.places:
                needs = list(map(max, needs, self.places[memory].access(unit, self.issued[unit], first, count, write)))
        op = Op(opcode, fields, tuple((other, need) for other, need in enumerate(needs) if need), self.stage)
        if opcode is Opcode.MATMUL:
            self.worked[self.stage] += op.passes * max(op.rows, self.n)
        self.ops.append(op)

    def transfer(self, opcode, region, vector, rows, **fields):
        """Emits an instruction that moves `rows` rows between the chip and host memory, from vector number `vector` of a region
        on."""
        self.emit(opcode, {"region": region, "offset": vector * self.config.vector_bytes, "rows": rows, **fields})

    def load_zeros(self, buffer, count):
        """Loads `count` vectors of zeros into the unified buffer, starting at row `buffer`. Region MODEL holds the zeros at the
        start of its constants."""
        for first in range(0, count, ZEROS):
            self.transfer(Opcode.LOAD, Region.MODEL, 0, min(ZEROS, count - first), buffer=buffer + first)
