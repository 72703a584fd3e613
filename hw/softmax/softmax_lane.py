"""One lane of the second pass: from an element to its exponential."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.exponential import Exponential
from ..spec.normalization import OFFSET
from ..spec.softmax import DISTANCE_BITS
from .aligner import Aligner
from .layouts import SUM_FRACTION

__all__ = ["SoftmaxLane"]


class SoftmaxLane(wiring.Component):
    """Computes exp(x - maximum) of an element, as `power * 2**-halvings` and as a term of the sum.

    Throughput: one element a cycle. In a row with a left shift, it is one element in 1 + `left` cycles.

    Parameters
    ----------
    normalize : bool
        True to add the member `aligned`.

    ```
    cycle      0      1      2      3      4      5      6      7      8
    key, common x
    base, load                x
    distance                         d      shifted once in each cycle without `load`
    power                                                       x               4 cycles after the end of the shift
    term                                                               x
    ```

    Members
    -------
    key : 32, in
        The element, as :func:`.ordered_key`. A lane without an element gets 0, and its exponential is 0.
    common : 8, in
    base : 28, in
        See :data:`.SCALE`; `base` two cycles after `key`.
    load : 1, in
        `base` is valid.
    power : 16, out
    halvings : 8, out
    term : 32, out
        The exponential with 32 fraction bits, truncated.
    aligned : 26, out
        The element in units of its row's common last place, plus `OFFSET`. One cycle after `load`.
    """

    #: Cycles from an element to its power, and to its term, without a left shift.
    power_latency = Aligner.latency + 1 + Exponential.latency
    term_latency = power_latency + 1

    def __init__(self, *, normalize=False):
        self.normalize = normalize
        super().__init__(
            {
                "key": In(32),
                "common": In(8),
                "base": In(28),
                "load": In(1),
                "power": Out(16),
                "halvings": Out(8),
                "term": Out(SUM_FRACTION),
                **({"aligned": Out(26)} if normalize else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.aligner = aligner = Aligner(low=self.normalize)
        m.submodules.exponential = exponential = Exponential()
        m.d.comb += [aligner.key.eq(self.key), aligner.common.eq(self.common)]

        # A positive number is subtracted. The rounding adds the lowest bit, or subtracts it.
        added, difference = Cat(aligner.magnitude ^ aligner.positive.replicate(27), aligner.positive.replicate(2)), Signal(28)
        m.d.comb += difference.eq((Cat(Const(1, 1), self.base) + added)[1:])
        d, beyond = Signal(DISTANCE_BITS, reset_less=True), Signal(reset_less=True)
        m.d.sync += [
            d.eq(Mux(self.load, difference, Cat(Const(0, 1), d))),
            beyond.eq(Mux(self.load, aligner.beyond | difference[DISTANCE_BITS:-1].any(), beyond | d[-1])),
        ]
        m.d.comb += [
            exponential.d.eq(d),
            exponential.beyond.eq(beyond),
            self.power.eq(exponential.power),
            self.halvings.eq(exponential.halvings),
        ]
        term, shifted = Signal(SUM_FRACTION, reset_less=True), Cat(Const(0, SUM_FRACTION - 16), exponential.power)
        for bit in reversed(range(5)):
            shifted = Mux(exponential.halvings[bit], shifted >> (1 << bit), shifted)[:SUM_FRACTION]
        m.d.sync += term.eq(Mux(exponential.halvings[5:].any(), 0, shifted))
        m.d.comb += self.term.eq(term)
        if self.normalize:
            # Halves are rounded away from 0. The offset inverts the sign bit.
            rounded, value = Signal(27), Signal(26, reset_less=True)
            m.d.comb += [
                rounded.eq((Cat(aligner.magnitude[:26], Const(0, 1)) ^ (~aligner.positive).replicate(27)) + 1),
                self.aligned.eq(value),
            ]
            m.d.sync += value.eq(rounded[1:] ^ OFFSET)
        return m
