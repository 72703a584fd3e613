"""A bank of serial dividers for the reciprocals of sums or for means, in order."""

from functools import reduce
from operator import or_

from amaranth import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.reciprocal import Reciprocal
from ..lib.skid_buffer import SkidBuffer
from .layouts import QUOTIENT

__all__ = ["DividerBank"]


class DividerBank(wiring.Component):
    """Divides sums with `count` dividers, and returns the results in the order of the sums.

    Before a sum enters, `reserve` must have reserved a place for it. The bank holds `count` + 2 sums and quotients.

    Parameters
    ----------
    width : int
        Bits of a sum.
    count : int
    result : layout
        Results of a divider. Its field `infinite`, if present, comes with the sum.
    divider : function
        Returns a divider: a component with the members `total`, `start`, `done`, and the other fields of `result`; also
        `divisor`, if the parameter is not 0.
    divisor : int
        Bits of the member `divisor`. 0: without it.

    Members
    -------
    reserve : 1, in
        Take a place for a sum; only with `space`.
    space : 1, out
    valid : 1, in
        `total` and `infinite` are the next sum.
    total : width, in
        The sum. If the quotient matters, it has at least 16 significant bits.
    infinite : 1, in
        Only with a field of this name in `result`.
    divisor : divisor, in
        Constant.
    o : stream of results, out
    """

    def __init__(self, *, width, count, result=QUOTIENT, divider=None, divisor=0):
        self.count = count
        self.result = result
        self._divider = divider or (lambda: Reciprocal(width=width, ahead=0))
        self._flags = {"infinite": 1} if "infinite" in dict(result) else {}
        super().__init__(
            {
                "reserve": In(1),
                "space": Out(1),
                "valid": In(1),
                "total": In(width),
                **{name: In(1) for name in self._flags},
                **({"divisor": In(divisor)} if divisor else {}),
                "o": Out(stream.Signature(result)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        entry = data.StructLayout({"total": len(self.total), **self._flags})
        m.submodules.sums = waiting = SkidBuffer(payload=entry)
        places = self.count + 2
        taken = Signal(range(places + 1))
        freed = self.o.valid & self.o.ready
        m.d.sync += taken.eq(taken + self.reserve - freed)
        m.d.comb += [
            self.space.eq(taken != places),
            waiting.i.valid.eq(self.valid),
            waiting.i.p.total.eq(self.total),
            *(waiting.i.p[name].eq(getattr(self, name)) for name in self._flags),
        ]

        # Sums enter the dividers in turn, and quotients leave them in turn.
        begin, end = (Signal(self.count, name=name, init=1) for name in ("begin", "end"))
        used, quotients = Signal(self.count), []
        m.d.comb += waiting.o.ready.eq((begin & ~used).any())
        begins = waiting.o.valid & waiting.o.ready
        m.d.sync += used.eq((used | (begin & begins.replicate(self.count))) & ~(end & freed.replicate(self.count)))
        with m.If(begins):
            m.d.sync += begin.eq(begin.rotate_left(1))
        with m.If(freed):
            m.d.sync += end.eq(end.rotate_left(1))
        done = Signal(self.count)
        for index in range(self.count):
            m.submodules[f"divider_{index}"] = divider = self._divider()
            total, quotient = Signal(entry, name=f"total_{index}", reset_less=True), Signal(self.result, name=f"quotient_{index}")
            with m.If(begins & begin[index]):
                m.d.sync += total.eq(waiting.o.payload)
            m.d.comb += [
                divider.total.eq(total.total),
                divider.start.eq(begins & begin[index]),
                done[index].eq(divider.done & used[index]),
                *(quotient[name].eq(getattr(divider, name)) for name, _ in self.result if name not in self._flags),
                *(quotient[name].eq(total[name]) for name in self._flags),
                *([divider.divisor.eq(self.divisor)] if hasattr(self, "divisor") else []),
            ]
            quotients.append(quotient.as_value() & end[index].replicate(self.result.size))
        m.d.comb += [self.o.valid.eq((done & end).any()), self.o.payload.eq(reduce(or_, quotients))]
        return m
