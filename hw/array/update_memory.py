"""The update memory, between the update unit and the store unit."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In
from amaranth.utils import bits_for

from ..lib.memories import NO_COLLISIONS
from ..spec.isa import UpdatePart
from ..spec.memory_ports import part_port, updates_port

__all__ = ["UpdateMemory"]


class UpdateMemory(wiring.Component):
    """`depth` rows of updated parameters. A row has 48 bits in each of `n` lanes: V' in bfloat16 and W' in binary32.

    Results are written by groups of lanes. One part of a whole row is read.

    Parameters
    ----------
    n : int
        Lanes.
    depth : int
        Rows.
    groups : int
        Groups of lanes.
    transfer : layout
        :func:`hw.spec.operations.transfer_layout` of the store unit.

    Members
    -------
    updates : updates port, in
        See :func:`hw.spec.memory_ports.updates_port`.
    stored : part port, in
        See :func:`hw.spec.memory_ports.part_port`.
    """

    def __init__(self, *, n, depth, groups, transfer):
        self.n, self.depth, self.groups = n, depth, groups
        updates = updates_port(bits_for(depth - 1), n, groups)
        super().__init__({"updates": In(updates), "stored": In(part_port(transfer["row"].shape, n))})

    def elaborate(self, platform):
        m = Module()
        updates, stored, lanes = self.updates, self.stored, self.n // self.groups
        words = []
        for group in range(self.groups):
            memory = Memory(shape=48 * lanes, depth=self.depth, init=[], attrs=NO_COLLISIONS)
            m.submodules[f"group_{group}"] = memory
            write, read = memory.write_port(), memory.read_port()
            m.d.comb += [
                write.addr.eq(updates.row),
                write.en.eq(updates.write[group]),
                write.data.eq(updates.data),
                read.addr.eq(stored.row),
                read.en.eq(stored.read),
            ]
            words += [read.data.word_select(lane, 48) for lane in range(lanes)]
        part = Signal(2)
        with m.If(stored.read):
            m.d.sync += part.eq(stored.part)
        moved, upper, lower = (Cat(word.word_select(index, 16) for word in words) for index in range(3))
        m.d.comb += stored.vector.eq(
            Mux(part == UpdatePart.LOWER.value, lower, Mux(part == UpdatePart.UPPER.value, upper, moved))
        )
        return m
