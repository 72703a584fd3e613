"""Alignment of a binary32 to the common last place of its row."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Aligner"]


class Aligner(wiring.Component):
    """Shifts the magnitude of a number to the common last place of its row, with one more bit below that place.

    Throughput: one number a cycle. Latency: `latency` cycles.

    Parameters
    ----------
    low : bool
        True if `common` may be below 31. Otherwise a zero is far enough below the common last place to become 0.

    Members
    -------
    key : 32, in
        The number, as :func:`.ordered_key`.
    common : 8, in
        Exponent field of the common last place.
    magnitude : 27, out
        In units of half the common last place, truncated. Two bits are for negative numbers with a larger magnitude
        than the maximum.
    positive : 1, out
    beyond : 1, out
        The number is too large for `magnitude`.
    """

    latency = 2

    def __init__(self, *, low=False):
        self.low = low
        super().__init__({"key": In(32), "common": In(8), "magnitude": Out(27), "positive": Out(1), "beyond": Out(1)})

    def elaborate(self, platform):
        m = Module()
        positive = self.key[31]
        bits = self.key[:31] ^ (~positive).replicate(31)
        right = Signal(10)
        moves, significand = Signal(5, reset_less=True), Signal(24, reset_less=True)
        empty = right[5:].any()
        if self.low:
            empty |= bits[23:] == 0
        flags = [Signal(2, name=f"flags_{stage}", reset_less=True) for stage in range(2)]
        moved, magnitude = Cat(Const(0, 3), significand), Signal(27, reset_less=True)
        for bit in reversed(range(5)):
            moved = Mux(moves[bit], moved >> (1 << bit), moved)[:27]
        m.d.comb += [
            right.eq(self.common + 2 - bits[23:]),
            self.magnitude.eq(magnitude),
            Cat(self.positive, self.beyond).eq(flags[1]),
        ]
        m.d.sync += [
            moves.eq(right),
            significand.eq(Mux(empty, 0, Cat(bits[:23], Const(1, 1)))),
            flags[0].eq(Cat(positive, right[9])),
            magnitude.eq(moved),
            flags[1].eq(flags[0]),
        ]
        return m
