"""The instruction decoder. It makes all checks that can precede execution, and computes the footprint of each valid instruction:
the memory that it accesses."""

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.instruction import INSTRUCTION_WIDTH
from ..spec.isa import REGION_WRITABLE, Fault, Opcode, Region, layout, records
from ..spec.operations import instruction_layout
from ..spec.run_ports import ring_check
from ..spec.unit_ports import fault_port
from .control_registers import region_registers
from .description import decoded_layout, describe, packed_vectors
from .instruction_word import InstructionWord, match_layout, match_word
from .region_check import exceeds
from .span_extents import SpanExtents, extent_cycles
from .word_check import check_word

__all__ = ["Decoder", "decode_cycles"]


def decode_cycles(config):
    """Returns {opcode: cycles to decode it}: one cycle to fetch, the cycles of its spans, one for the comparisons,
    and one for the result of the checks."""
    return {opcode: 3 + extent_cycles(record) for opcode, record in records(config).items()}


class Decoder(wiring.Component):
    """Checks one instruction at a time; each takes :func:`decode_cycles`. The output is registered: the next instruction is
    checked while the last one waits for the dispatcher.

    If the instruction is outside region MODEL, the fault is ADDRESS. Otherwise, these checks are made, in order of priority:

    - BUS_READ: the instruction could not be read.
    - ILLEGAL: a reserved bit, an unknown opcode or field code, codes that exclude each other, or a wrong number of lanes.
    - LENGTH: a count of 0, or a count above its maximum in the core.
    - RING: a ring that this core is not part of.
    - ADDRESS: a row outside an on-chip memory, an offset outside a region, an unaligned beat, or a STORE to a read-only region.

    The first check that fails raises `fault.valid`, which stays 1, as soon as the preceding instruction has left `o`. The faulty
    instruction is not output, nor is any instruction after a HALT.

    Parameters
    ----------
    config : Config
        The core's configuration.

    Members
    -------
    i : stream of instructions, in
        :func:`hw.spec.operations.instruction_layout`.
    o : stream of decoded instructions, out
        :func:`hw.control.description.decoded_layout`.
    regions : array of region registers, in
        See :func:`hw.control.control_registers.region_registers`; in the order of `Region`. A transfer of a region that exceeds
        the address space of the bus is a fault.
    ring : ring check, in
        See :func:`hw.spec.run_ports.ring_check`. Only in a core with a ring.
    fault : fault port, out
        See :func:`hw.spec.unit_ports.fault_port`. `fault.pc` is the offset of the instruction that is checked.
    """

    def __init__(self, *, config):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(instruction_layout())),
                "o": Out(stream.Signature(decoded_layout(config))),
                "regions": In(region_registers()).array(len(Region)),
                **({"ring": In(ring_check())} if config.ring else {}),
                "fault": Out(fault_port()),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bits, match = Signal(INSTRUCTION_WIDTH), Signal(match_layout(self.config))
        word = InstructionWord(self.config, bits, match)
        m.submodules.extents = extents = SpanExtents(config=self.config)
        m.d.comb += [extents.word.eq(bits), extents.match.eq(match)]
        filled = Signal(INSTRUCTION_WIDTH // 8)  # bytes of the word that are not 0
        legal, counts = check_word(word, filled)
        # One register per opcode, which is 0 for words of other opcodes.
        checked_legal = {opcode: Signal(name=f"legal_{opcode.name.lower()}", reset_less=True) for opcode in legal}
        checked_counts = {opcode: Signal(name=f"counts_{opcode.name.lower()}", reset_less=True) for opcode in counts}
        if self.config.ring:
            m.d.comb += extents.cores.eq(self.ring.size)
        select_region, base, host_end, host_holds = self._host_span(m, word, extents.start)
        described = Signal(decoded_layout(self.config))
        describe(m, described, word, pc=self.fault.pc, base=base, host_end=host_end, extents=extents)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        if self.config.training:
            m.d.sync += extents.start.eq(0)
        inside = Signal()  # all spans are inside the memories; valid in VERDICT, a cycle after the comparisons
        m.d.sync += inside.eq(extents.inside & host_holds)
        unread = Signal(2)  # the instruction is outside region MODEL, or could not be read
        with m.FSM(name="decode"):
            with m.State("FETCH"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    m.d.sync += [bits.eq(self.i.p.word), self.fault.pc.eq(self.i.p.pc), *select_region]
                    m.d.sync += filled.eq(Cat(self.i.p.word.word_select(byte, 8).any() for byte in range(len(filled))))
                    m.d.sync += [match[name].eq(now) for name, now in match_word(self.config, self.i.p.word).items()]
                    m.d.sync += unread.eq(Cat(self.i.p.overrun, self.i.p.failed))
                    if self.config.training:  # registered: 1 in CHECK
                        m.d.sync += extents.start.eq(1)
                    m.next = "CHECK"

            with m.State("CHECK"):
                if not self.config.training:
                    m.d.comb += extents.start.eq(1)
                m.d.sync += [checked.eq(word.one_of(opcode) & legal[opcode]) for opcode, checked in checked_legal.items()]
                m.d.sync += [checked.eq(word.one_of(opcode) & counts[opcode]) for opcode, checked in checked_counts.items()]
                m.next = "COMPARE"
                with m.If(extents.more):
                    m.next = "EXTENTS"
                with m.If(unread.any()):
                    m.d.sync += self.fault.cause.eq(Mux(unread[0], Fault.ADDRESS, Fault.BUS_READ))
                    m.next = "FAULT"

            with m.State("EXTENTS"):
                with m.If(extents.ends):
                    m.next = "COMPARE"

            with m.State("COMPARE"):
                m.next = "VERDICT"

            with m.State("VERDICT"):
                with m.If(~self.o.valid):
                    m.d.sync += self.o.payload.eq(described)
                    m.next = "FAULT"
                    with m.If(~Cat(checked_legal.values()).any()):
                        m.d.sync += self.fault.cause.eq(Fault.ILLEGAL)
                    with m.Elif(~Cat(checked_counts.values()).any()):
                        m.d.sync += self.fault.cause.eq(Fault.LENGTH)
                    if self.config.ring:
                        with m.Elif(word.one_of(Opcode.RING) & ~self.ring.ready):
                            m.d.sync += self.fault.cause.eq(Fault.RING)
                    with m.Elif(~inside):
                        m.d.sync += self.fault.cause.eq(Fault.ADDRESS)
                    with m.Else():
                        m.d.sync += self.o.valid.eq(1)
                        m.next = "FETCH"
                        with m.If(described.halt):
                            m.next = "END"

            with m.State("END"):
                pass  # accepts no instruction, so that fetching stops

            with m.State("FAULT"):
                m.d.comb += self.fault.valid.eq(~self.o.valid)
        return m

    def _host_span(self, m, word, start):
        """Adds the logic for the transfer with host memory. Returns the statements for the cycle in which the instruction is
        taken, the base address of the region, the offset of the first byte after the transfer, and the result of the transfer's
        checks.

        The last three are valid from the cycle after `start`.
        """
        config, transfer = self.config, word[Opcode.LOAD]
        base, size, host_end = Signal(config.address_width), Signal(32), Signal(48)
        vector_shift = exact_log2(config.vector_bytes)
        byte_shift = Signal(range(vector_shift + exact_log2(config.n) + 1))
        m.d.comb += byte_shift.eq(vector_shift)
        for opcode, record in word.records.items():
            if record.vectors(config.n) > 1:
                with m.If(word.one_of(opcode)):
                    m.d.comb += byte_shift.eq(vector_shift + exact_log2(record.vectors(config.n)))
                    if (half := word.half(opcode)) is not None:
                        with m.If(half):
                            m.d.comb += byte_shift.eq(vector_shift + exact_log2(record.vectors(config.n) // 2))
        # The part of each region's base above the addresses of the bus must be 0. The registers do not change during a run.
        whole = [Cat(region.base_low, region.base_high) for region in self.regions]
        beyond, outside = Signal(len(Region)), Signal()
        m.d.sync += beyond.eq(Cat(one[config.address_width :].any() for one in whole))
        taken = data.View(layout(word.records[Opcode.LOAD]), self.i.p.word).region
        choices = (base, whole), (size, [region.size for region in self.regions]), (outside, beyond)
        select = [register.eq(Array(values)[taken]) for register, values in choices]
        holds = Signal()  # the bus can address the whole region
        m.d.sync += holds.eq(~outside & ~exceeds(base, size))
        with m.If(start):
            m.d.sync += host_end.eq(transfer.offset + (transfer.rows << byte_shift))
            if config.weight_formats:
                packed, vectors = packed_vectors(word)
                with m.If(packed):
                    m.d.sync += host_end.eq(transfer.offset + (vectors << vector_shift))
        writable = Array([int(REGION_WRITABLE[region]) for region in Region])[transfer.region]
        moves = word.where(lambda record: record.transfer)
        writes = word.where(lambda record: record.transfer and record.transfer.use == "w")
        aligned = ~(base | transfer.offset)[: exact_log2(config.bus_bytes)].any()
        inside = (host_end <= size) & holds
        return select, base, host_end, ~moves | (inside & aligned & (~writes | writable))
