"""The search for the maximum of a row, and the alignment of the maximum."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .aligner import Aligner
from .layouts import FIXED, SCALE

__all__ = ["RowSearch"]


class RowSearch(wiring.Component):
    """Finds the maximum of each row: a tree of comparators for a group, then a running maximum.

    Throughput: one group a cycle. Rows may follow each other without a gap. The scale of a row appears `latency` cycles after its
    last group.

    Parameters
    ----------
    lanes : int
        Elements of a group, a power of two.
    normalize : bool
        True to add the member `exact`.

    Members
    -------
    valid, first, last : 1, in
        `valid`: a group of a row is present. `first`, `last`: it is the first or the last group of the row.
    keys : 32 lanes, in
        The elements as :func:`.ordered_key`; 0 for a lane without an element.
    exact : 1, in
        1: the common last place of a row is half the last place of its maximum, and `scale.left` is 0.
    found : 1, out
        `scale` is valid.
    scale : SCALE, out
    """

    def __init__(self, *, lanes, normalize=False):
        self.lanes = lanes
        self.normalize = normalize
        self.latency = exact_log2(lanes) + 3 + Aligner.latency
        exact = {"exact": In(1)} if normalize else {}
        super().__init__(
            {"valid": In(1), "first": In(1), "last": In(1), "keys": In(32 * lanes), "found": Out(1), "scale": Out(SCALE), **exact}
        )

    def elaborate(self, platform):
        m = Module()
        level = [self.keys.word_select(lane, 32) for lane in range(self.lanes)]
        flags = Cat(self.valid, self.first, self.last)
        while len(level) > 1:
            larger = [Signal(32, name=f"larger_{len(level) // 2}_{index}", reset_less=True) for index in range(len(level) // 2)]
            m.d.sync += [out.eq(Mux(a >= b, a, b)) for out, a, b in zip(larger, level[::2], level[1::2])]
            next_flags = Signal(3, name=f"flags_{len(larger)}")
            m.d.sync += next_flags.eq(flags)
            level, flags = larger, next_flags
        valid, first, last = flags
        best, found = Signal(32, reset_less=True), Signal()
        with m.If(valid & (first | (level[0] >= best))):
            m.d.sync += best.eq(level[0])
        m.d.sync += found.eq(valid & last)
        self._align(m, found, best)
        return m

    def _align(self, m, found, best):
        """Drives `scale` from the maximum, which is valid for one cycle."""
        exponent = best[23:31] ^ (~best[31]).replicate(8)
        key, common, infinite = Signal(32, reset_less=True), Signal(8, reset_less=True), Signal(reset_less=True)
        above = exponent > FIXED
        if self.normalize:
            above |= self.exact
        m.d.sync += [key.eq(best), common.eq(Mux(above, exponent - 1, FIXED)), infinite.eq(exponent.all())]
        m.submodules.aligner = aligner = Aligner()
        m.d.comb += [aligner.key.eq(key), aligner.common.eq(common)]
        here, flags = Signal(), Cat(common, infinite)
        m.d.sync += here.eq(found)
        for stage in range(Aligner.latency):
            there, moved = Signal(name=f"there_{stage}"), Signal(9, name=f"moved_{stage}", reset_less=True)
            m.d.sync += [there.eq(here), moved.eq(flags)]
            here, flags = there, moved
        # Halves are rounded away from 0; the lowest bit is then dropped.
        negative = ~aligner.positive
        rounded = Signal(29)
        unshifted = flags[8] | self.exact if self.normalize else flags[8]
        beyond = Signal(8)
        scale = Signal(SCALE, reset_less=True)
        m.d.comb += [
            rounded.eq(Cat(aligner.magnitude ^ negative.replicate(27), negative.replicate(2)) + 1),
            beyond.eq(flags[:8] - FIXED),
            self.scale.eq(scale),
        ]
        m.d.sync += [
            self.found.eq(here),
            scale.common.eq(flags[:8]),
            scale.base.eq(rounded[1:]),
            scale.left.eq(Mux(unshifted, 0, beyond[:5] | beyond[5:].any().replicate(5))),
            scale.infinite.eq(flags[8]),
        ]
