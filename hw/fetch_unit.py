"""Instruction fetch."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from .assembler import Assembler
from .burst_splitter import BurstSplitter, burst_request
from .isa import INSTRUCTION_WIDTH
from .operations import instruction_layout

__all__ = ["FetchUnit"]


class FetchUnit(wiring.Component):
    """Prefetches instructions from `pc` on, as soon as it leaves reset, `group` at a time.

    Nothing outside the first `size` bytes of the region at `base` is read: past its end comes one instruction with
    `overrun` set, and at once if the first one is not aligned to the bus.

    Parameters
    ----------
    address_width, bus_width : int
        Bits.
    instruction_bytes : int
        Distance between two instructions; what exceeds an instruction is ignored.
    """

    depth = 8
    group = 4

    def __init__(self, *, address_width, bus_width, instruction_bytes):
        self.bus_width = bus_width
        self.instruction_bytes = instruction_bytes
        self._address_width = address_width
        super().__init__({
            "base": In(address_width), "size": In(32), "pc": In(32),
            "request": Out(stream.Signature(burst_request(address_width))),
            "data_valid": In(1), "data_error": In(1), "data": In(bus_width),
            "o": Out(stream.Signature(instruction_layout())),
        })

    def elaborate(self, platform):
        m = Module()
        step = exact_log2(self.instruction_bytes)
        m.submodules.splitter = splitter = BurstSplitter(address_width=self._address_width, bus_bytes=self.bus_width // 8)
        m.submodules.assembler = assembler = Assembler(width=self.bus_width, ratio=8 * self.instruction_bytes // self.bus_width)
        m.submodules.words = words = fifo.SyncFIFO(width=INSTRUCTION_WIDTH + 1, depth=self.depth)
        connect(m, splitter.o, flipped(self.request))

        # `ahead` counts what is asked for but not taken: it never exceeds the room in the queue.
        started = Signal()
        next_pc, present_pc = Signal(32), Signal(32)
        ahead = Signal(range(self.depth + 1))
        rest = Signal(33)  # bytes of the region from `next_pc` on
        count = Signal(range(self.group + 1))
        address, aligned = Signal(self._address_width), Signal()
        asked, taken = Signal(), Signal()
        m.d.comb += [
            address.eq(self.base + next_pc),
            aligned.eq(~(self.base | next_pc)[:exact_log2(self.bus_width // 8)].any()),
            rest.eq(Mux(aligned & (self.size > next_pc), self.size - next_pc, 0)),
            count.eq(Mux(rest >> step < self.group, rest >> step, self.group)),
            splitter.i.valid.eq(started & (ahead <= self.depth - self.group) & (count != 0)),
            splitter.i.p.address.eq(address),
            splitter.i.p.beats.eq(count << exact_log2(8 * self.instruction_bytes // self.bus_width)),
            asked.eq(splitter.i.valid & splitter.i.ready),
            taken.eq(words.r_rdy & self.o.ready),
        ]
        m.d.sync += ahead.eq(ahead + Mux(asked, count, 0) - taken)
        with m.If(~started):
            m.d.sync += [started.eq(1), next_pc.eq(self.pc), present_pc.eq(self.pc)]
        with m.If(asked):
            m.d.sync += next_pc.eq(next_pc + (count << step))

        # A word with a beat that the bus could not read goes on as `failed`: it matters only if it is to be executed.
        earlier_failed, failed = Signal(), Signal()
        m.d.comb += failed.eq(earlier_failed | self.data_error)
        with m.If(assembler.o_valid):
            m.d.sync += earlier_failed.eq(0)
        with m.Elif(self.data_error):
            m.d.sync += earlier_failed.eq(1)

        m.d.comb += [
            assembler.i_valid.eq(self.data_valid | self.data_error),
            assembler.i.eq(self.data),
            words.w_en.eq(assembler.o_valid),
            words.w_data.eq(Cat(assembler.o[:INSTRUCTION_WIDTH], failed)),
            words.r_en.eq(self.o.ready),
            Cat(self.o.p.word, self.o.p.failed).eq(words.r_data),
            self.o.p.pc.eq(present_pc),
            self.o.p.overrun.eq(~words.r_rdy),
            self.o.valid.eq(words.r_rdy | (started & (ahead == 0) & (count == 0))),
        ]
        with m.If(taken):
            m.d.sync += present_pc.eq(present_pc + self.instruction_bytes)
        return m
