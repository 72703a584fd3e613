"""UART receiver and transmitter: eight bits, no parity, one stop bit, least significant bit first."""

from amaranth import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

__all__ = ["UartReceiver", "UartTransmitter", "bit_step"]

#: Bits of the phase accumulators that divide the clock.
_PHASE_WIDTH = 16


def bit_step(clock, baud):
    """Returns the increment per clock cycle of a 16-bit phase accumulator that overflows once per bit: a fractional clock
    divider.

    Raises
    ------
    ValueError
        If a bit has fewer than four cycles, or the rate has an error of more than 1 %.
    """
    step = round((baud << _PHASE_WIDTH) / clock)
    if baud <= 0 or 4 * baud > clock or abs(step * clock / (baud << _PHASE_WIDTH) - 1) > 0.01:
        raise ValueError(
            f"a clock of {clock} Hz makes no {baud} baud: a bit takes at least 4 cycles and at most {(1 << _PHASE_WIDTH) // 50}"
        )
    return step


class UartReceiver(wiring.Component):
    """A UART receiver, which synchronises the line to the clock. It samples each bit in its middle.

    A byte is valid for one cycle, half a bit after its stop bit began. After a stop bit that is low, reception resumes when the
    line is high again.

    Parameters
    ----------
    step : int
        Result of :func:`bit_step`.

    Members
    -------
    line : 1, in
        High when idle.
    valid : 1, out
        `data` is a byte.
    data : 8, out
    error : 1, out
        The stop bit was low; `valid` is 0.
    idle : 1, out
        The line is high and no byte is being received.
    """

    def __init__(self, *, step):
        self.step = step
        super().__init__({"line": In(1, init=1), "valid": Out(1), "data": Out(8), "error": Out(1), "idle": Out(1)})

    def elaborate(self, platform):
        m = Module()
        line = Signal(init=1)
        m.submodules.synchronizer = FFSynchronizer(self.line, line, init=1)

        phase, tick = Signal(_PHASE_WIDTH, reset_less=True), Signal(reset_less=True)
        m.d.sync += Cat(phase, tick).eq(phase + self.step)

        left = Signal(range(11))
        m.d.comb += self.idle.eq(line & (left == 0))
        m.d.sync += [self.valid.eq(0), self.error.eq(0)]
        with m.FSM():
            with m.State("IDLE"):
                with m.If(~line):
                    # The first tick comes half a bit later, in the middle of the start bit.
                    m.d.sync += [phase.eq((1 << (_PHASE_WIDTH - 1)) + self.step), tick.eq(0), left.eq(10)]
                    m.next = "BITS"
            with m.State("BITS"):
                with m.If(tick):
                    m.d.sync += left.eq(left - 1)
                    with m.If(left == 1):
                        m.d.sync += [self.valid.eq(line), self.error.eq(~line)]
                        m.next = "STOP"
                        with m.If(line):
                            m.next = "IDLE"
                    with m.Elif((left == 10) & line):  # a glitch, not a start bit
                        m.d.sync += left.eq(0)
                        m.next = "IDLE"
                    with m.Else():
                        m.d.sync += self.data.eq(Cat(self.data[1:], line))
            with m.State("STOP"):
                with m.If(line):
                    m.next = "IDLE"
        return m


class UartTransmitter(wiring.Component):
    """A UART transmitter. A byte takes ten bit times, and the next byte follows without a gap. The first bit begins within one
    bit time.

    Parameters
    ----------
    step : int
        Result of :func:`bit_step`.

    Members
    -------
    i : stream of bytes, in
    line : 1, out
        High when idle.
    """

    def __init__(self, *, step):
        self.step = step
        super().__init__({"i": In(stream.Signature(8)), "line": Out(1, init=1)})

    def elaborate(self, platform):
        m = Module()
        phase, tick = Signal(_PHASE_WIDTH), Signal()
        shift, left = Signal(9, reset_less=True), Signal(range(11))
        m.d.sync += Cat(phase, tick).eq(phase + self.step)
        m.d.comb += self.i.ready.eq(tick & (left <= 1))
        with m.If(tick & (left != 0)):
            m.d.sync += [self.line.eq(shift[0]), shift.eq(Cat(shift[1:], 1)), left.eq(left - 1)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [self.line.eq(0), shift.eq(Cat(self.i.payload, 1)), left.eq(10)]
        return m
