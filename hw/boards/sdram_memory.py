"""An SDRAM chip as the host memory of a board: a port for the core's AXI4, and a 32-bit port for the serial bridge."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from ..bus.axi import DECODE_ERROR, OKAY, axi4_lite_signature, axi4_read_signature, axi4_write_signature
from .sdram_commands import SdramCommands, sdram_pins

__all__ = ["SdramMemory"]


class SdramMemory(wiring.Component):
    """An SDRAM chip behind an AXI4 and an AXI4-Lite port, both subordinate. Later reads find the data of an answered write.

    AXI4 bursts must be INCR with full-width beats, as a core issues them: AxSIZE and AxBURST are ignored. The manager must hold
    RREADY high at all times. The response to an address outside the chip is DECERR.

    Reads and writes share the chip. If bursts of both wait, they take turns. A write burst whose next beat has no data does not
    delay reads. A reset initialises the chip again; its contents are then undefined.

    Parameters
    ----------
    chip : SdramChip
    mhz : float
        Clock frequency of the chip and of this block.
    address_width : int
        Bits of both ports' addresses.
    data_width : int
        Bits of an AXI4 beat: 32, 64 or 128.
    """

    def __init__(self, *, chip, mhz, address_width, data_width):
        self.chip, self.data_width = chip, data_width
        self._lanes = range(data_width // 32)  # of a beat, each for a word of the AXI4-Lite port
        self._tag = data.StructLayout({"lite": 1, "last": 1, "outside": 1, "id": 1, "lane": self._lanes})
        self._commands = SdramCommands(chip=chip, width=data_width, mhz=mhz, tag=self._tag)
        sizes = {"address_width": address_width, "data_width": data_width}
        super().__init__(
            {
                "read": In(axi4_read_signature(**sizes)),
                "write": In(axi4_write_signature(**sizes)),
                "lite": In(axi4_lite_signature(address_width=address_width)),
                "pins": Out(wiring.Signature(sdram_pins())),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.commands = commands = self._commands
        connect(m, commands.pins, flipped(self.pins))
        self._shift = exact_log2(self.data_width // 8)
        self._beats = exact_log2(self.chip.size) - self._shift  # bits of a beat's number
        read_asks, write_asks, read_taken, write_taken = (
            Signal(name=name) for name in ("read_asks", "write_asks", "read_taken", "write_taken")
        )
        read_beat, tag = self._read_bursts(m, read_asks, read_taken)
        write_beat, write_last = self._write_bursts(m, write_asks, write_taken)

        # A burst keeps the chip until its end, or until its next beat has no data.
        operations, writes, ended, chosen = commands.operations, Signal(), Signal(), Signal()
        m.d.comb += [
            operations.valid.eq(read_asks | write_asks),
            chosen.eq(write_asks & (~read_asks | (writes ^ ended))),
            write_taken.eq(operations.ready & chosen),
            read_taken.eq(operations.ready & read_asks & ~chosen),
        ]
        with m.If(read_taken | write_taken):
            m.d.sync += [writes.eq(chosen), ended.eq(Mux(chosen, write_last, tag.last))]
        beat = Signal(self._beats)
        in_row = self.chip.column_bits + 1 - self._shift  # bits of a beat's number in its row
        m.d.comb += [
            beat.eq(Mux(chosen, write_beat, read_beat)),
            operations.p.write.eq(chosen),
            operations.p.column.eq(beat[:in_row] << self._shift - 1),
            operations.p.bank.eq(beat[in_row : in_row + 2]),
            operations.p.row.eq(beat[in_row + 2 :]),
            operations.p.tag.eq(tag),
        ]
        self._answer_reads(m)
        return m

    def _place(self, address):
        """Returns the number of an address' beat, and the condition that the address is outside the memory."""
        return address[self._shift :][: self._beats], address[exact_log2(self.chip.size) :].any()

    def _lane(self, address):
        return address[2 : self._shift]

    def _read_bursts(self, m, asks, taken):
        """Adds the current burst of reads, and one that waits. Returns the number of the next beat, and its tag."""
        bus, lite = self.read, self.lite
        layout = {"beat": self._beats, "left": 8, "outside": 1, "id": 1, "lite": 1, "lane": self._lanes}
        waiting, present = (Signal(data.StructLayout(layout), name=name) for name in ("waiting", "present"))
        room = Signal(init=1)
        asked = Signal()  # by the AXI4-Lite port, one cycle late: its manager is far away
        self._reading = Signal()  # a read of that port is under way
        m.d.sync += asked.eq(lite.arvalid & ~lite.arready)
        m.d.comb += [bus.arready.eq(room), lite.arready.eq(0)]
        with m.If(taken):
            m.d.sync += [present.beat.eq(present.beat + 1), present.left.eq(present.left - 1), asks.eq(present.left != 0)]
        with m.If(~asks | (taken & (present.left == 0))):
            beat, outside = self._place(lite.araddr)
            with m.If(asked & ~self._reading):
                m.d.comb += lite.arready.eq(1)
                m.d.sync += [self._reading.eq(1), asks.eq(1), present.beat.eq(beat), present.outside.eq(outside)]
                m.d.sync += [present.left.eq(0), present.lite.eq(1), present.lane.eq(self._lane(lite.araddr))]
            with m.Elif(~room):
                m.d.sync += [room.eq(1), asks.eq(1), present.eq(waiting)]
        with m.If(bus.arvalid & bus.arready):
            beat, outside = self._place(bus.araddr)
            m.d.sync += [room.eq(0), waiting.beat.eq(beat), waiting.outside.eq(outside)]
            m.d.sync += [waiting.left.eq(bus.arlen), waiting.id.eq(bus.arid)]
        tag = Signal(self._tag)
        m.d.comb += [
            tag.lite.eq(present.lite),
            tag.last.eq(present.left == 0),
            tag.outside.eq(present.outside),
            tag.id.eq(present.id),
            tag.lane.eq(present.lane),
        ]
        return present.beat, tag

    def _write_bursts(self, m, asks, taken):
        """Adds the current burst of writes, with one beat of data. Returns the number of that beat, and the condition that it is
        the last one."""
        bus, lite, commands = self.write, self.lite, self._commands
        active, is_lite, full, last = (Signal(name=name) for name in ("active", "is_lite", "full", "last"))
        passed = Signal()  # the beat is an operation that has not begun
        beat, outside, ident = Signal(self._beats), Signal(), Signal()
        words, strobe = Signal(self.data_width, reset_less=True), Signal(self.data_width // 8, reset_less=True)
        free = Signal()
        asked = Signal()  # by the AXI4-Lite port, one cycle late: its manager is far away
        m.d.sync += asked.eq(lite.awvalid & lite.wvalid & ~lite.awready)
        m.d.comb += [
            free.eq(~active & ~bus.bvalid),
            lite.awready.eq(free & asked & ~lite.bvalid),
            lite.wready.eq(lite.awready),
            bus.awready.eq(free & ~lite.awready),
            asks.eq(full & ~passed),
            commands.data.eq(words),
            commands.strobe.eq(Mux(outside, 0, strobe)),
        ]
        with m.If(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(lite.bready):
            m.d.sync += lite.bvalid.eq(0)
        with m.If(bus.awvalid & bus.awready):
            number, beyond = self._place(bus.awaddr)
            m.d.sync += [active.eq(1), is_lite.eq(0), beat.eq(number), outside.eq(beyond), ident.eq(bus.awid), bus.wready.eq(1)]
        with m.If(lite.awready):
            number, beyond = self._place(lite.awaddr)
            m.d.sync += [active.eq(1), is_lite.eq(1), beat.eq(number), outside.eq(beyond), full.eq(1), last.eq(1)]
            m.d.sync += words.eq(lite.wdata.replicate(len(self._lanes)))
            m.d.sync += strobe.eq(lite.wstrb << (self._lane(lite.awaddr) << 2))
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [words.eq(bus.wdata), strobe.eq(bus.wstrb), last.eq(bus.wlast), full.eq(1), bus.wready.eq(0)]
        with m.If(taken):
            m.d.sync += [passed.eq(1), beat.eq(beat + 1)]
        with m.If(commands.written):
            m.d.sync += [full.eq(0), passed.eq(0), active.eq(~last), bus.wready.eq(~last)]
            response = Mux(outside, DECODE_ERROR, OKAY)
            with m.If(last & is_lite):
                m.d.sync += [lite.bvalid.eq(1), lite.bresp.eq(response)]
            with m.Elif(last):
                m.d.sync += [bus.bvalid.eq(1), bus.bresp.eq(response), bus.bid.eq(ident)]
        return beat, last

    def _answer_reads(self, m):
        bus, lite, commands = self.read, self.lite, self._commands
        tag = commands.found_tag
        response = Mux(tag.outside, DECODE_ERROR, OKAY)
        m.d.comb += [
            bus.rvalid.eq(commands.found_valid & ~tag.lite),
            bus.rdata.eq(commands.found),
            bus.rlast.eq(tag.last),
            bus.rid.eq(tag.id),
            bus.rresp.eq(response),
        ]
        with m.If(lite.rready & lite.rvalid):
            m.d.sync += [lite.rvalid.eq(0), self._reading.eq(0)]
        with m.If(commands.found_valid & tag.lite):
            word = commands.found.word_select(tag.lane, 32) if len(tag.lane) else commands.found
            m.d.sync += [lite.rvalid.eq(1), lite.rresp.eq(response), lite.rdata.eq(word)]
