"""One lane of the update unit: stochastic gradient descent with momentum for one parameter a cycle."""

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.adder import Adder
from ..arithmetic.float_formats import without_minus_zero
from ..arithmetic.multiplier import Multiplier
from .activation_lane import ActivationLane

__all__ = ["UpdateLane", "UpdateTimes"]


class UpdateTimes:
    """The cycles in which an :class:`UpdateLane` takes its operands and gives its result, counted from `v`.

    Parameters
    ----------
    lead, latency : int
        Latencies of a cell; see :func:`hw.spec.cell_stages.split_stages`.
    wait : int
        Cycles for which V' waits before it is multiplied.

    Attributes
    ----------
    wait, g, w, rate, result : int
    """

    def __init__(self, lead, latency, wait):
        self.wait = wait
        self.g = lead
        self.rate = lead + latency + 1 + wait
        self.w = self.rate + lead
        self.result = self.w + latency


class UpdateLane(wiring.Component):
    """The arithmetic of UPDATE for one lane: V' = bf16(G + momentum * V) and W' = W + rate * V'.

    Multipliers and adders are the same as in a cell, and both results have +0 for -0. Throughput is one parameter a cycle.
    Operands and result belong to the cycles of :class:`UpdateTimes`. There is no flow control and no reset.

    Parameters
    ----------
    lead, latency, wait : int
        See :class:`UpdateTimes`.

    Members
    -------
    v, momentum : 16, in
        bfloat16.
    g : 32, in
        binary32.
    rate : 16, in
        bfloat16.
    w : 32, in
        binary32.
    o : 48, out
        V', and above it the upper half, then the lower half of W'.
    """

    def __init__(self, *, lead, latency, wait=0):
        self.lead, self.latency, self.wait = lead, latency, wait
        operands = {"v": 16, "momentum": 16, "g": 32, "rate": 16, "w": 32}
        super().__init__({**{name: In(width) for name, width in operands.items()}, "o": Out(48)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.decay = decay = Multiplier(lead=self.lead)
        m.submodules.moment = moment = Adder(latency=self.latency, canonical_b=True)
        m.submodules.round = rounding = ActivationLane()
        m.submodules.scale = scale = Multiplier(lead=self.lead)
        m.submodules.master = master = Adder(latency=self.latency, canonical_b=True)
        moved = Signal(16, reset_less=True)
        m.d.sync += moved.eq(rounding.rounded)
        m.d.comb += [
            decay.x.eq(self.v),
            decay.w.eq(self.momentum),
            moment.a.eq(self.g),
            moment.b.eq(decay.o),
            rounding.value.eq(without_minus_zero(moment.o.as_value())),
            rounding.keep.eq(1),
            scale.x.eq(self._delayed(m, moved, self.wait, "waiting")),
            scale.w.eq(self.rate),
            master.a.eq(self.w),
            master.b.eq(scale.o),
        ]
        kept = self._delayed(m, scale.x, self.lead + self.latency, "kept")
        whole = without_minus_zero(master.o.as_value())
        m.d.comb += self.o.eq(Cat(kept, whole[16:], whole[:16]))
        return m

    @staticmethod
    def _delayed(m, value, cycles, name):
        value = value.as_value() if hasattr(value, "as_value") else value
        for cycle in range(cycles):
            later = Signal(len(value), name=f"{name}_{cycle}", reset_less=True)
            m.d.sync += later.eq(value)
            value = later
        return value
