"""Mutants: blocks with one deliberate fault each. Their proofs must fail.

Each fault changes signals at the ports of the correct block, so that it does not depend on the block's implementation.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

__all__ = ["FlushesLeastNormal", "DropsSticky", "SwitchesLate", "MarkSwitches", "NotStrict", "KeepsNaN"]


class _Mutant(wiring.Component):
    """A block that contains the correct block `inner` and has the same ports."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(dict(inner.signature.members))

    def elaborate(self, platform):
        m = Module()
        m.submodules.inner = self.inner
        for name, member in self.signature.members.items():
            outside, inside = Value.cast(getattr(self, name)), Value.cast(getattr(self.inner, name))
            m.d.comb += inside.eq(outside) if member.flow is In else outside.eq(inside)
        self.mutate(m)
        return m


class FlushesLeastNormal(_Mutant):
    """A multiplier or an adder that flushes one exponent too many: results with the exponent field 1 also become zeros."""

    def mutate(self, m):
        with m.If(self.inner.o.exponent == 1):
            m.d.comb += [self.o.exponent.eq(0), self.o.fraction.eq(0)]


class DropsSticky(_Mutant):
    """An adder without a sticky bit. It ignores the bits of the smaller operand that alignment shifts below the round bit."""

    def mutate(self, m):
        a, b = self.a, self.b
        swap = b.exponent > a.exponent
        distance = Signal(8)
        m.d.comb += distance.eq(Mux(swap, b.exponent - a.exponent, a.exponent - b.exponent))
        kept = Signal(24)  # mask of the significand's upper bits, down to guard and round bit
        m.d.comb += kept.eq(Cat(distance < places + 3 for places in range(24)))
        for name, smaller in (("a", swap), ("b", ~swap)):
            operand, inside = getattr(self, name), getattr(self.inner, name)
            with m.If(smaller):
                m.d.comb += inside.fraction.eq(operand.fraction & kept[:23])
                with m.If(~kept[23]):
                    m.d.comb += inside.exponent.eq(0)


class SwitchesLate(_Mutant):
    """A cell that activates its next weight one cycle too late."""

    def mutate(self, m):
        late = Signal()
        m.d.sync += late.eq(self.switch_i)
        m.d.comb += [self.inner.switch_i.eq(late), self.switch_o.eq(late)]


class MarkSwitches(_Mutant):
    """A cell whose active weight changes not only with a switch but also with a mark."""

    def mutate(self, m):
        passed_on = Signal()
        m.d.sync += passed_on.eq(self.switch_i)
        m.d.comb += [self.inner.switch_i.eq(self.switch_i | self.mark_i), self.switch_o.eq(passed_on)]


class NotStrict(_Mutant):
    """A comparator that outputs 1 for two equal negative numbers, though neither is greater."""

    def mutate(self, m):
        m.d.comb += self.o.eq(self.inner.o | (self.a[31] & (self.a == self.b)))


class KeepsNaN(_Mutant):
    """A lane of SELECT that treats NaN as greater than 0."""

    def mutate(self, m):
        with m.If(self.operand.exponent.all() & ~self.operand.sign & ~self.equal):
            m.d.comb += self.inner.operand.fraction.eq(0)
