"""Instruction decode: every check that can be made before anything happens, and the footprint of what remains."""

from amaranth import Array, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.instruction import INSTRUCTION_WIDTH
from ..spec.isa import REGION_WRITABLE, Fault, Opcode, Region, records
from ..spec.operations import instruction_layout
from ..spec.registers import MOST_CORES
from .description import decoded_layout, describe
from .instruction_word import InstructionWord, match_layout, match_word
from .span_extents import SpanExtents, extent_cycles
from .word_check import check_word

__all__ = ["Decoder", "decode_cycles"]


def decode_cycles(config):
    """Opcode to the cycles of its check: one to take the instruction, those of its spans, and one for the verdict."""
    return {opcode: 2 + extent_cycles(record) for opcode, record in records(config).items()}


class Decoder(wiring.Component):
    """Checks one instruction at a time, for :func:`decode_cycles`. What it hands on stands in registers, so the next instruction
    is checked while this one waits for its place.

    In this order: an instruction that could not be read (BUS_READ); a reserved bit, an unknown opcode or code of a field, codes
    that exclude each other, a wrong count of lanes (ILLEGAL); a count of 0, or above what there is room for (LENGTH); a ring of
    which this core is no part (RING); a place outside a memory of the chip or a region, a beat that is not aligned, a STORE to a
    region that may not be written, the end of region MODEL (ADDRESS). The first that fails raises `fault` for ever once what came
    before it is handed on; nothing comes out of it, nor of what follows a HALT.

    Parameters
    ----------
    config : Config
        The core's configuration.

    Members
    -------
    bases, sizes : of the regions, in order.
    ring_size, ring_ready : the cores of the ring, and that this is one of them; in a core that can be in one.
    fault, cause : the instruction at `pc` is not to be executed.
    """

    def __init__(self, *, config):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(instruction_layout())),
                "o": Out(stream.Signature(decoded_layout(config))),
                "bases": In(config.address_width).array(4),
                "sizes": In(32).array(4),
                **({"ring_size": In(range(MOST_CORES + 1)), "ring_ready": In(1)} if config.ring else {}),
                "fault": Out(1),
                "cause": Out(Fault),
                "pc": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bits, match = Signal(INSTRUCTION_WIDTH), Signal(match_layout(self.config))
        word = InstructionWord(self.config, bits, match)
        m.submodules.extents = extents = SpanExtents(config=self.config)
        m.d.comb += [extents.word.eq(bits), extents.match.eq(match)]
        legal, counts = check_word(word)
        # Of each opcode a register; the word's own is chosen behind them.
        checked_legal = {opcode: Signal(name=f"legal_{opcode.name.lower()}", reset_less=True) for opcode in legal}
        checked_counts = {opcode: Signal(name=f"counts_{opcode.name.lower()}", reset_less=True) for opcode in counts}
        if self.config.ring:
            m.d.comb += extents.cores.eq(self.ring_size)
        base, host_end, host_holds = self._host_span(m, word, extents.start)
        described = Signal(decoded_layout(self.config))
        describe(m, described, word, pc=self.pc, base=base, host_end=host_end, extents=extents)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        if self.config.training:
            m.d.sync += extents.start.eq(0)
        with m.FSM(name="decode"):
            with m.State("FETCH"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    m.d.sync += [bits.eq(self.i.p.word), self.pc.eq(self.i.p.pc)]
                    m.d.sync += [match[name].eq(now) for name, now in match_word(self.config, self.i.p.word).items()]
                    with m.If(self.i.p.overrun):
                        m.d.sync += self.cause.eq(Fault.ADDRESS)
                        m.next = "FAULT"
                    with m.Elif(self.i.p.failed):
                        m.d.sync += self.cause.eq(Fault.BUS_READ)
                        m.next = "FAULT"
                    with m.Else():
                        if self.config.training:  # in CHECK, out of a register
                            m.d.sync += extents.start.eq(1)
                        m.next = "CHECK"

            with m.State("CHECK"):
                if not self.config.training:
                    m.d.comb += extents.start.eq(1)
                m.d.sync += [checked.eq(legal[opcode]) for opcode, checked in checked_legal.items()]
                m.d.sync += [checked.eq(counts[opcode]) for opcode, checked in checked_counts.items()]
                m.next = "VERDICT"
                with m.If(extents.more):
                    m.next = "EXTENTS"

            with m.State("EXTENTS"):
                with m.If(extents.ends):
                    m.next = "VERDICT"

            with m.State("VERDICT"):
                with m.If(~self.o.valid):
                    m.d.sync += self.o.payload.eq(described)
                    m.next = "FAULT"
                    with m.If(~word.choose(checked_legal)):
                        m.d.sync += self.cause.eq(Fault.ILLEGAL)
                    with m.Elif(~word.choose(checked_counts)):
                        m.d.sync += self.cause.eq(Fault.LENGTH)
                    if self.config.ring:
                        with m.Elif(word.one_of(Opcode.RING) & ~self.ring_ready):
                            m.d.sync += self.cause.eq(Fault.RING)
                    with m.Elif(~(extents.inside & host_holds)):
                        m.d.sync += self.cause.eq(Fault.ADDRESS)
                    with m.Else():
                        m.d.sync += self.o.valid.eq(1)
                        m.next = "FETCH"
                        with m.If(described.halt):
                            m.next = "END"

            with m.State("END"):
                pass  # nothing more is taken, so that no further instructions are fetched

            with m.State("FAULT"):
                m.d.comb += self.fault.eq(~self.o.valid)
        return m

    def _host_span(self, m, word, start):
        """Base of the region, offset of the first byte behind what is transferred, and whether all of that may be; from the cycle
        after `start` on."""
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
        m.d.sync += [base.eq(Array(self.bases)[transfer.region]), size.eq(Array(self.sizes)[transfer.region])]
        with m.If(start):
            m.d.sync += host_end.eq(transfer.offset + (transfer.rows << byte_shift))
        writable = Array([int(REGION_WRITABLE[region]) for region in Region])[transfer.region]
        moves = word.where(lambda record: record.transfer)
        writes = word.where(lambda record: record.transfer and record.transfer.use == "w")
        aligned = ~(base | transfer.offset)[: exact_log2(config.bus_bytes)].any()
        return base, host_end, ~moves | ((host_end <= size) & aligned & (~writes | writable))
