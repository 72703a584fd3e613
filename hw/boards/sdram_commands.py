"""The commands of an SDRAM chip: initialisation, refresh, open rows, and bursts of one bus beat."""

from amaranth import Array, Cat, Module, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.width_converter import WidthConverter

__all__ = ["SdramCommands", "Command", "PIN_CYCLES", "operation_layout", "sdram_pins"]

#: Cycles from the decision for a READ to its first word at `dq_i`, in addition to the CAS latency: the registers of the command
#: here and at its pins, and the registers of `dq_i` at its pins.
PIN_CYCLES = 3
_BANKS = 4
_INITIAL_REFRESHES = 8
_MODE_CYCLES = 2  # from a mode register set to the next command


class Command(enum.Enum, shape=3):
    """The pins RAS, CAS and WE, active high, the first one lowest."""

    NOP = 0b000
    ACTIVATE = 0b001
    READ = 0b010
    WRITE = 0b110
    PRECHARGE = 0b101
    REFRESH = 0b011
    MODE = 0b111


def sdram_pins():
    """Returns the members of the pins. All are registered once more at the pins, without inversion; `dq_i` is sampled by the
    chip's clock edge and then registered."""
    return {"command": Out(Command), "ba": Out(2), "a": Out(13), "dqm": Out(2), "dq_o": Out(16), "dq_oe": Out(1), "dq_i": In(16)}


def operation_layout(chip, tag):
    """Returns the layout of an operation: the transfer of one beat, at a multiple of its size."""
    return data.StructLayout({"write": 1, "column": chip.column_bits, "bank": 2, "row": chip.row_bits, "tag": tag})


class SdramCommands(wiring.Component):
    """Executes reads and writes of one bus beat in order, each as one burst of the chip.

    Rows stay open, one in each bank, until another row of the bank is accessed or a refresh is due. A row is opened while the
    burst before it transfers its data. Reads from open rows follow each other without a gap.

    Parameters
    ----------
    chip : SdramChip
    width : int
        Bits of a beat: 32, 64 or 128.
    mhz : float
        Clock of the chip and of this block.
    tag : layout
        Layout of a tag that returns with the data of a read.

    Members
    -------
    operations : stream of operation_layout, in
    data : width, in
    strobe : width / 8, in
        Data and byte enables of the accepted write, held from the operation's transfer until `written`.
    written : 1, out
        The accepted write has its data. Later operations find it in the memory.
    found_valid : 1, out
    found : width, out
    found_tag : tag, out
        Data of a read and its operation's tag, for one cycle. There is no backpressure.
    pins : sdram_pins, out
    """

    def __init__(self, *, chip, width, mhz, tag):
        if width not in (32, 64, 128):
            raise ValueError(f"a beat for an SDRAM chip has 32, 64 or 128 bits, not {width}")
        if mhz > chip.highest_mhz:
            raise ValueError(f"the SDRAM chip works up to {chip.highest_mhz} MHz, not at {mhz:g}")
        self.chip, self.width, self.mhz = chip, width, mhz
        super().__init__(
            {
                "operations": In(stream.Signature(operation_layout(chip, tag))),
                "data": In(width),
                "strobe": In(width // 8),
                "written": Out(1),
                "found_valid": Out(1),
                "found": Out(width),
                "found_tag": Out(tag),
                "pins": Out(wiring.Signature(sdram_pins())),
            }
        )

    def elaborate(self, platform):
        m = Module()
        self._words = self.width // 16
        operation = Signal(self.operations.p.shape())
        valid, hit, opened = Signal(), Signal(), Signal()  # the row is open; any row of its bank is open
        issue, reads, writes, close = (Signal(name=name) for name in ("issue", "reads", "writes", "close"))
        self._timers = {}
        wait, until_read, until_write = (self._timer(m, name) for name in ("wait", "until_read", "until_write"))
        until_close = self._timer(m, "until_close")
        m.d.comb += [reads.eq(issue & ~operation.write), writes.eq(issue & operation.write), self.written.eq(writes)]

        due = self._refresh_timer(m)
        running = self._sequence(m, due, wait & until_read & until_close, close)
        work = Signal()
        m.d.comb += work.eq(running & ~due & valid & wait)

        # The next operation is compared with the open rows when it is accepted.
        rows = Array(Signal(self.chip.row_bits, name=f"row_{bank}") for bank in range(_BANKS))
        active, new = Signal(_BANKS), self.operations.p
        m.d.comb += self.operations.ready.eq(running & (~valid | issue))
        with m.If(issue):
            m.d.sync += valid.eq(0)
        with m.If(self.operations.valid & self.operations.ready):
            m.d.sync += [
                valid.eq(1),
                operation.eq(new),
                opened.eq(active.bit_select(new.bank, 1)),
                hit.eq(active.bit_select(new.bank, 1) & (rows[new.bank] == new.row)),
            ]
        with m.If(close):
            m.d.sync += [active.eq(0), opened.eq(0), hit.eq(0)]

        streaming_bank, pins = Signal(2), self.pins
        m.d.sync += pins.ba.eq(operation.bank)
        may_close = until_close & (until_read | (operation.bank != streaming_bank))
        m.d.comb += issue.eq(work & hit & ((operation.write & until_write) | (~operation.write & until_read)))
        with m.If(issue):
            m.d.sync += [pins.a.eq(operation.column), streaming_bank.eq(operation.bank)]
            m.d.sync += pins.command.eq(Command.READ)
            with m.If(operation.write):
                m.d.sync += pins.command.eq(Command.WRITE)
        with m.Elif(work & ~hit & opened & may_close):
            m.d.sync += [pins.command.eq(Command.PRECHARGE), pins.a.eq(0), opened.eq(0)]
            self._restart(m, wait=self.chip.cycles("precharge", self.mhz))
        with m.Elif(work & ~hit & ~opened):
            m.d.sync += [pins.command.eq(Command.ACTIVATE), pins.a.eq(operation.row), hit.eq(1)]
            m.d.sync += [rows[operation.bank].eq(operation.row), active.bit_select(operation.bank, 1).eq(1)]
            self._restart(m, wait=self.chip.cycles("activate", self.mhz), until_close=self.chip.cycles("open", self.mhz))
        latency = self.chip.cas_latency
        with m.If(reads):
            # The bus is free for one cycle before the other side drives it.
            self._restart(m, until_read=self._words, until_write=self._words + latency + 1)
        with m.If(writes):
            recovery = self._words - 1 + self.chip.cycles("write", self.mhz)
            self._restart(m, until_read=self._words, until_write=self._words, until_close=recovery)
        self._transfer(m, operation, reads, writes)
        return m

    def _timer(self, m, name):
        """Adds a timer. Returns the condition that it has ended."""
        left, ended = Signal(6, name=name), Signal(name=f"{name}_ended", init=1)
        self._timers[name] = left, ended
        with m.If(~ended):
            m.d.sync += [left.eq(left - 1), ended.eq(left == 1)]
        return ended

    def _restart(self, m, **cycles):
        """Restarts timers, so that each ends this number of cycles after the current one. `until_close` is never shortened."""
        for name, count in cycles.items():
            left, ended = self._timers[name]
            assignment = [left.eq(count - 1), ended.eq(count == 1)]
            if name == "until_close":
                with m.If(left < count):
                    m.d.sync += assignment
            else:
                m.d.sync += assignment

    def _refresh_timer(self, m):
        """Adds the timer of refreshes, which first measures the time after power-up. Returns the condition that one is due."""
        power_up, interval = self.chip.cycles("power_up", self.mhz), self.chip.refresh_cycles(self.mhz)
        left, self._due = Signal(range(max(power_up, interval)), init=power_up - 1), Signal()
        m.d.sync += left.eq(left - 1)
        with m.If(left == 0):
            m.d.sync += [left.eq(interval - 1), self._due.eq(1)]
        return self._due

    def _sequence(self, m, due, idle, close):
        """Adds the states of initialisation and refresh. `close` is set when all rows are closed. Returns the condition that
        operations may begin."""
        running, pins = Signal(), self.pins
        refreshes, configured = Signal(range(_INITIAL_REFRESHES), init=_INITIAL_REFRESHES - 1), Signal()
        wait = self._timers["wait"][1]
        m.d.sync += [pins.command.eq(Command.NOP), pins.a.eq(0)]
        with m.FSM():
            with m.State("POWER"):
                with m.If(due):
                    m.next = "CLOSE"
            with m.State("CLOSE"):
                with m.If(idle):
                    m.d.comb += close.eq(1)
                    m.d.sync += [pins.command.eq(Command.PRECHARGE), pins.a.eq(1 << 10)]
                    self._restart(m, wait=self.chip.cycles("precharge", self.mhz))
                    m.next = "REFRESH"
            with m.State("REFRESH"):
                with m.If(wait):
                    m.d.sync += [pins.command.eq(Command.REFRESH), self._due.eq(0), refreshes.eq(refreshes - 1)]
                    self._restart(m, wait=self.chip.cycles("refresh", self.mhz))
                    with m.If(refreshes == 0):
                        m.d.sync += refreshes.eq(0)
                        m.next = "RUN"
                        with m.If(~configured):
                            m.next = "MODE"
            with m.State("MODE"):
                with m.If(wait):
                    mode = exact_log2(self._words) | self.chip.cas_latency << 4
                    m.d.sync += [pins.command.eq(Command.MODE), pins.a.eq(mode), configured.eq(1)]
                    self._restart(m, wait=_MODE_CYCLES)
                    m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += running.eq(1)
                with m.If(due):
                    m.next = "CLOSE"
        return running

    def _transfer(self, m, operation, reads, writes):
        """Adds the path of the data, from and to the pins."""
        pins = self.pins
        words, masks = Signal(self.width, reset_less=True), Signal(self.width // 8, init=-1)
        m.d.comb += [pins.dq_o.eq(words), pins.dqm.eq(masks)]
        m.d.sync += [words.eq(words >> 16), masks.eq(masks >> 2)]
        with m.If(writes):
            m.d.sync += [words.eq(self.data), masks.eq(~self.strobe), pins.dq_oe.eq(1)]
        with m.Elif(self._timers["until_write"][1]):
            m.d.sync += pins.dq_oe.eq(0)

        streaming, tag = Signal(), Signal.like(operation.tag)
        with m.If(reads):
            m.d.sync += [streaming.eq(1), tag.eq(operation.tag)]
        with m.Elif(self._timers["until_read"][1]):
            m.d.sync += streaming.eq(0)
        # The first word comes with `dq_i` PIN_CYCLES + the CAS latency after `reads`, and one cycle has passed.
        way = Cat(streaming, tag)
        for step in range(PIN_CYCLES - 1 + self.chip.cas_latency):
            before, way = way, Signal(len(way), name=f"way_{step}")
            m.d.sync += way.eq(before)
        m.submodules.converter = converter = WidthConverter(width=16, ratio=self._words)
        m.d.comb += [
            converter.i.eq(pins.dq_i),
            converter.i_valid.eq(way[0]),
            self.found_valid.eq(converter.o_valid),
            self.found.eq(converter.o),
            self.found_tag.eq(way[1:]),
        ]
