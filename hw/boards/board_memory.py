"""Block RAM as the host memory of a board: a port for the core's AXI4, and a 32-bit port for the serial bridge."""

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In
from amaranth.utils import exact_log2

from ..bus.axi import DECODE_ERROR, OKAY, axi4_lite_signature, axi4_read_signature, axi4_write_signature
from ..lib.memories import NO_COLLISIONS

__all__ = ["BoardMemory"]

#: Words of a bank. With this number, a block RAM of 16 kbit holds one bit of each word, and needs no multiplexer after it.
_BANK_WORDS = 1 << 14
#: Byte lanes that get an address in the same cycle. The block RAMs are spread over the part, so the groups form a pipeline: each
#: group gets the address of the group before it one cycle later, from a register between the two.
_GROUP = 2


class BoardMemory(wiring.Component):
    """A memory with an AXI4 and an AXI4-Lite port, both subordinate. A write takes effect before its response.

    AXI4 bursts must be INCR with full-width beats, as a core issues them: AxSIZE and AxBURST are ignored. The response to an
    address outside the memory is DECERR.

    Parameters
    ----------
    size : int
        Bytes; a power of two, at least 4096.
    address_width : int
        Bits of both ports' addresses.
    data_width : int
        Bits of an AXI4 beat.
    always_ready : bool
        The manager holds RREADY high at all times, so that reads need no stall.
    """

    def __init__(self, *, size, address_width, data_width, always_ready=False):
        if size < 4096 or size & (size - 1):
            raise ValueError(f"size must be a power of two and at least 4096, not {size!r}")
        self.size = size
        self.address_width = address_width
        self.data_width = data_width
        self.always_ready = always_ready
        sizes = {"address_width": address_width, "data_width": data_width}
        super().__init__(
            {
                "read": In(axi4_read_signature(**sizes)),
                "write": In(axi4_write_signature(**sizes)),
                "lite": In(axi4_lite_signature(address_width=address_width)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        shift = exact_log2(self.data_width // 8)
        self._words = self.size >> shift
        self._row = slice(shift, exact_log2(self.size))  # of a byte address: which word
        self._lane = slice(2, shift)  # which 32 bits of it
        self._groups = self.data_width // 8 // _GROUP
        banks = self._banks(m)
        self._elaborate_write(m, banks)
        self._elaborate_read(m, banks)
        return m

    def _banks(self, m):
        """Returns the memories of each bank. A bank has one memory for each byte lane, because strobes select bytes."""
        depth = min(self._words, _BANK_WORDS)
        banks = [
            [Memory(shape=8, depth=depth, init=[], attrs=NO_COLLISIONS) for _ in range(self.data_width // 8)]
            for _ in range(self._words // depth)
        ]
        for index, lanes in enumerate(banks):
            for lane, memory in enumerate(lanes):
                m.submodules[f"bank_{index}_{lane}"] = memory
        return banks

    def _elaborate_write(self, m, banks):
        bus, lite = self.write, self.lite
        active, outside = Signal(), Signal()
        idle = Signal(init=1)  # no burst is under way or unanswered
        row = Signal(range(self._words))
        # The pipeline of writes: one register for each group of lanes.
        step = data.StructLayout({"row": range(self._words), "data": self.data_width})
        steps = [Signal(step, name=f"write_{group}", reset_less=True) for group in range(self._groups)]
        strobes = [Signal(self.data_width // 8, name=f"strobe_{group}") for group in range(self._groups)]
        m.d.sync += [after.eq(before) for chain in (steps, strobes) for before, after in zip(chain, chain[1:])]

        # `wready` is a register, since the core's path from it is long: 1 while `active`, except while `lite` writes.
        taken, stays_active = Signal(), Signal()
        m.d.comb += [bus.awready.eq(idle), stays_active.eq(active), taken.eq(bus.wvalid & bus.wready)]
        m.d.sync += [strobes[0].eq(0), active.eq(stays_active)]
        with m.If(bus.bready):
            m.d.sync += [bus.bvalid.eq(0), idle.eq(idle | bus.bvalid)]
        with m.If(bus.awvalid & bus.awready):
            m.d.comb += stays_active.eq(1)
            m.d.sync += [
                idle.eq(0),
                row.eq(bus.awaddr[self._row]),
                outside.eq(bus.awaddr[exact_log2(self.size) :].any()),
                bus.bid.eq(bus.awid),
            ]
        with m.If(taken):
            m.d.sync += [
                steps[0].row.eq(row),
                steps[0].data.eq(bus.wdata),
                strobes[0].eq(Mux(outside, 0, bus.wstrb)),
                row.eq(row + 1),
            ]
            with m.If(bus.wlast):
                m.d.comb += stays_active.eq(0)
                m.d.sync += [bus.bvalid.eq(1), bus.bresp.eq(Mux(outside, DECODE_ERROR, OKAY))]

        accepts = lite.awvalid & lite.wvalid & ~lite.awready & ~lite.bvalid
        m.d.comb += lite.wready.eq(lite.awready)
        m.d.sync += [lite.awready.eq(accepts), bus.wready.eq(stays_active & ~accepts)]
        with m.If(lite.bready):
            m.d.sync += lite.bvalid.eq(0)
        with m.If(lite.awready):
            lite_outside = lite.awaddr[exact_log2(self.size) :].any()
            m.d.sync += [
                steps[0].row.eq(lite.awaddr[self._row]),
                steps[0].data.eq(lite.wdata.replicate(self.data_width // 32)),
                strobes[0].eq(Mux(lite_outside, 0, lite.wstrb << (lite.awaddr[self._lane] << 2))),
                lite.bvalid.eq(1),
                lite.bresp.eq(Mux(lite_outside, DECODE_ERROR, OKAY)),
            ]

        for index, lanes in enumerate(banks):
            for lane, memory in enumerate(lanes):
                port, step, strobe = memory.write_port(), steps[lane // _GROUP], strobes[lane // _GROUP]
                m.d.comb += [
                    port.en.eq(strobe[lane] & (step.row[len(port.addr) :] == index)),
                    port.addr.eq(step.row),
                    port.data.eq(step.data.word_select(lane, 8)),
                ]

    def _elaborate_read(self, m, banks):
        bus, lite = self.read, self.lite
        burst = data.StructLayout({"row": range(self._words), "left": 8, "outside": 1, "id": 1})
        waiting, present = Signal(burst), Signal(burst)
        room, active = Signal(init=1), Signal()

        # All following stages advance together, or stall together while the manager does not accept the data.
        advance, asked, reading, beat = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            advance.eq(1 if self.always_ready else ~bus.rvalid | bus.rready),
            beat.eq(active & advance & ~asked),
            bus.arready.eq(room),
            lite.arready.eq(~reading),
        ]

        self._take_bursts(m, beat, room, active, waiting, present)

        # A read of the AXI4-Lite port takes the place of a beat.
        lite_row, lite_lane = Signal(range(self._words)), Signal(max(1, self._lane.stop - self._lane.start))
        with m.If(advance):
            m.d.sync += asked.eq(0)
        with m.If(lite.arvalid & lite.arready):
            m.d.sync += [
                asked.eq(1),
                reading.eq(1),
                lite_row.eq(lite.araddr[self._row]),
                lite_lane.eq(lite.araddr[self._lane]),
                lite.rresp.eq(Mux(lite.araddr[exact_log2(self.size) :].any(), DECODE_ERROR, OKAY)),
            ]

        # The read pipeline: the address, the outputs of the memories, a register after each output, and one after the selection
        # of a bank. With a single bank both registers are needed, too: a block RAM takes half of the cycle, so the first register
        # must be next to it. The words of the groups are then delayed until the last group's word is there.
        item = data.StructLayout({"burst": 1, "lite": 1, "last": 1, "outside": 1, "id": 1})
        items = [Signal(item, name=f"item_{stage}") for stage in range(self._groups + 3)]
        rows = [Signal(range(self._words), name=f"row_{stage}", reset_less=True) for stage in range(self._groups + 2)]
        with m.If(advance):
            m.d.sync += [
                rows[0].eq(Mux(asked, lite_row, present.row)),
                items[0].eq(Cat(active & ~asked, asked, present.left == 0, present.outside, present.id)),
            ]
            m.d.sync += [after.eq(before) for chain in (rows, items) for before, after in zip(chain, chain[1:])]
        found, done = self._read_banks(m, banks, rows, advance, stages=len(items)), items[-1]

        m.d.comb += [
            bus.rvalid.eq(done.burst),
            bus.rdata.eq(found),
            bus.rlast.eq(done.last),
            bus.rid.eq(done.id),
            bus.rresp.eq(Mux(done.outside, DECODE_ERROR, OKAY)),
        ]
        with m.If(lite.rready & lite.rvalid):
            m.d.sync += [lite.rvalid.eq(0), reading.eq(0)]
        with m.If(done.lite):
            m.d.sync += [lite.rvalid.eq(1), lite.rdata.eq(found.word_select(lite_lane, 32))]
        return m

    def _take_bursts(self, m, beat, room, active, waiting, present):
        """Adds the logic that accepts bursts: the current burst, and one in the queue."""
        bus = self.read
        with m.If(beat):
            m.d.sync += [present.row.eq(present.row + 1), present.left.eq(present.left - 1), active.eq(present.left != 0)]
        with m.If(~room & (~active | (beat & (present.left == 0)))):
            m.d.sync += [room.eq(1), active.eq(1), present.eq(waiting)]
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [
                room.eq(0),
                waiting.row.eq(bus.araddr[self._row]),
                waiting.left.eq(bus.arlen),
                waiting.outside.eq(bus.araddr[exact_log2(self.size) :].any()),
                waiting.id.eq(bus.arid),
            ]

    def _read_banks(self, m, banks, rows, advance, *, stages):
        """Adds the logic that reads a word. Returns the word at address `rows[0]`, valid in the last of `stages` pipeline
        stages."""
        outputs = [Signal(self.data_width, name=f"bank_{index}", reset_less=True) for index in range(len(banks))]
        for index, lanes in enumerate(banks):
            for lane, memory in enumerate(lanes):
                port = memory.read_port()
                m.d.comb += [port.en.eq(advance), port.addr.eq(rows[lane // _GROUP])]
                with m.If(advance):
                    m.d.sync += outputs[index].word_select(lane, 8).eq(port.data)
        words = []
        for group in range(self._groups):
            bank = rows[group + 2] >> exact_log2(_BANK_WORDS)
            word = Array(output.word_select(group, 8 * _GROUP) for output in outputs)[bank]
            for stage in range(group + 3, stages):
                before, word = word, Signal(8 * _GROUP, name=f"word_{group}_{stage}", reset_less=True)
                with m.If(advance):
                    m.d.sync += word.eq(before)
            words.append(word)
        return Cat(words)
