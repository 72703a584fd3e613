"""The unit that prefetches instructions from host memory."""

from amaranth import Cat, Module, Mux, ResetSignal, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import bits_for, exact_log2

from ..bus.axi_reader import read_client
from ..bus.burst_splitter import BurstSplitter
from ..lib.width_converter import WidthConverter
from ..spec.instruction import INSTRUCTION_WIDTH
from ..spec.operations import instruction_layout
from ..spec.run_ports import region_port

__all__ = ["FetchUnit"]


class FetchUnit(wiring.Component):
    """Prefetches up to `depth` instructions, in groups of `group`, starting at `pc`. `pc` is sampled in reset.

    Reads stay within the first `size` bytes of `region`. After the end of the region, the output is an instruction
    with `overrun` set. If the first instruction is not aligned to the bus, `overrun` follows at once.

    Parameters
    ----------
    address_width, bus_width : int
        Bits.
    instruction_bytes : int
        Stride between instructions. Bytes beyond the instruction are ignored.

    Members
    -------
    region : region port, in
        Region MODEL; see :func:`hw.spec.run_ports.region_port`.
    pc : 32, in
        Offset of the first instruction in the region.
    host : read client, out
        See :func:`hw.bus.axi_reader.read_client`.
    o : stream of instructions, out
        :func:`hw.spec.operations.instruction_layout`.
    """

    depth = 8
    group = 4

    def __init__(self, *, address_width, bus_width, instruction_bytes):
        self.bus_width = bus_width
        self.instruction_bytes = instruction_bytes
        self._address_width = address_width
        super().__init__(
            {
                "region": In(region_port(address_width)),
                "pc": In(32),
                "host": Out(read_client(address_width, bus_width)),
                "o": Out(stream.Signature(instruction_layout())),
            }
        )

    def elaborate(self, platform):
        m = Module()
        answer = self.host.answer
        step, beats = exact_log2(self.instruction_bytes), 8 * self.instruction_bytes // self.bus_width
        m.submodules.splitter = splitter = BurstSplitter(
            address_width=self._address_width, bus_bytes=self.bus_width // 8, beats_width=bits_for(self.group * beats)
        )
        # The queue holds beats, each with its error. A word has no more than INSTRUCTION_WIDTH bits of a wide beat.
        width = min(self.bus_width, INSTRUCTION_WIDTH)
        m.submodules.beats = queue = fifo.SyncFIFO(width=width + 1, depth=self.depth * beats)
        m.submodules.converter = converter = WidthConverter(width=width, ratio=beats)
        connect(m, splitter.o, flipped(self.host.request))

        # Rest of the region from `address` on: `groups`, and a `tail` of instructions. Two cycles of reset load them from the
        # control registers, so that the wide sums are ready when the run starts.
        address = Signal(self._address_width, reset_less=True)
        present_pc = Signal(32, reset_less=True)
        rest = Signal(33)
        groups, tail = Signal(32 - step - exact_log2(self.group), reset_less=True), Signal(range(self.group), reset_less=True)
        # `full`: `groups` is not 0. `some`: an instruction is left to request.
        full, some = Signal(reset_less=True), Signal(reset_less=True)
        # `ahead` counts instructions requested but not yet taken. It never exceeds the depth of the queue.
        ahead = Signal(range(self.depth + 1))
        count = Signal(range(self.group + 1))
        aligned, asked, whole, taken = Signal(), Signal(), Signal(), Signal()
        available = Signal(32 - step)
        m.d.comb += [
            aligned.eq(~(self.region.base | self.pc)[: exact_log2(self.bus_width // 8)].any()),
            rest.eq(self.region.size - self.pc),
            available.eq(Mux(aligned & ~rest[32], rest[step:32], 0)),
            count.eq(Mux(full, self.group, tail)),
            splitter.i.valid.eq((ahead <= self.depth - self.group) & some),
            splitter.i.p.address.eq(address),
            splitter.i.p.beats.eq(count << exact_log2(beats)),
            asked.eq(splitter.i.valid & splitter.i.ready),
            whole.eq(queue.r_rdy & converter.last),
            taken.eq(whole & self.o.ready),
        ]
        m.d.sync += ahead.eq(ahead + Mux(asked, count, 0) - taken)
        with m.If(ResetSignal()):
            m.d.sync += [
                address.eq(self.region.base + self.pc),
                present_pc.eq(self.pc),
                Cat(tail, groups).eq(available),
                full.eq(groups != 0),
                some.eq((groups != 0) | tail.any()),
            ]
        with m.Elif(asked):
            m.d.sync += address.eq(address + (self.group << step))
            with m.If(full):
                m.d.sync += [groups.eq(groups - 1), full.eq(groups != 1), some.eq((groups != 1) | tail.any())]
            with m.Else():
                m.d.sync += [tail.eq(0), some.eq(0)]

        # A word with a read error is passed on as `failed`: the error counts only if the instruction is to be executed.
        earlier_failed, failed = Signal(), Signal()
        m.d.comb += [
            queue.w_en.eq(answer.valid | answer.error),
            queue.w_data.eq(Cat(answer.data[:width], answer.error)),
            queue.r_en.eq(~converter.last | self.o.ready),
            converter.i_valid.eq(queue.r_rdy & queue.r_en),
            converter.i.eq(queue.r_data[:width]),
            failed.eq(earlier_failed | queue.r_data[width]),
            self.o.p.word.eq(converter.o),
            self.o.p.failed.eq(failed),
            self.o.p.pc.eq(present_pc),
            self.o.p.overrun.eq(~whole),
            self.o.valid.eq(whole | ((ahead == 0) & ~some)),
        ]
        with m.If(taken):
            m.d.sync += earlier_failed.eq(0)
        with m.Elif(converter.i_valid):
            m.d.sync += earlier_failed.eq(failed)
        with m.If(taken):
            m.d.sync += present_pc.eq(present_pc + self.instruction_bytes)
        return m
