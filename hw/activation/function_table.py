"""The function table: a lookup table with linear interpolation for a few lanes at a time, and a multiplier that shares its
pipeline."""

import functools

from amaranth import Cat, Const, EnableInserter, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..arithmetic.float_formats import EXPONENT_MAX, QUIET_NAN, Bfloat16
from ..arithmetic.multiplier import Multiplier
from ..lib.hierarchy import instantiate
from ..lib.memories import NO_COLLISIONS
from ..lib.pipeline import pipeline_step
from ..spec.isa import TABLE_ENTRIES

__all__ = ["FunctionPair", "FunctionTable"]

#: Added to an exponent above 0, gives an infinity.
_ALWAYS = 255


def _shared():
    """Returns {port: width} of the inputs that all lanes share."""
    return {
        "enable": 1,
        "multiply": 1,
        "first": 8,
        "linear_low": 2,
        "linear_high": 2,
        "scale": 2,
        "base": 4,
        "last": 4,
        "write": 1,
        "entry": exact_log2(TABLE_ENTRIES),
        "data": 32,
    }


def _lanes(lanes):
    return {"x": In(16 * lanes), "between": In(12 * lanes), "w": In(16 * lanes), "keep": In(lanes), "o": Out(16 * lanes)}


def _is_nan(number):
    return (number.exponent == EXPONENT_MAX) & number.fraction.any()


class FunctionPair(wiring.Component):
    """One or two lanes of the function table with their own memories, one read port for each lane.

    Parameters and members are the same as for :class:`FunctionTable`.
    """

    latency = 7

    def __init__(self, *, lanes):
        if lanes not in (1, 2):
            raise ValueError(f"lanes must be 1 or 2, not {lanes!r}")
        self.lanes = lanes
        super().__init__({**{name: In(width) for name, width in _shared().items()}, **_lanes(lanes)})

    def elaborate(self, platform):
        m = Module()
        memories = [Memory(shape=16, depth=TABLE_ENTRIES, init=[], attrs=NO_COLLISIONS) for _ in range(2)]
        m.submodules.values, m.submodules.slopes = memories
        # Write data waits for its address, which passes the same pipeline register as a read address.
        writes, data = Signal(), Signal(32)
        with m.If(self.enable):
            m.d.sync += [writes.eq(self.write), data.eq(self.data)]
        for lane in range(self.lanes):
            reads = [memory.read_port() for memory in memories]
            # The address of the first port is the write address, too.
            taken = (self.write, self.entry) if lane == 0 else (Const(0), Const(0, len(self.entry)))
            address = self._look_up(m, lane, *(read.data for read in reads), *taken)
            for read in reads:
                m.d.comb += [read.addr.eq(address), read.en.eq(self.enable & ~writes if lane == 0 else self.enable)]
            if lane == 0:
                # During a stall (`enable` is 0), the same word is written again.
                for index, memory in enumerate(memories):
                    write = memory.write_port()
                    m.d.comb += [write.addr.eq(address), write.en.eq(writes), write.data.eq(data.word_select(index, 16))]
        return m

    def _look_up(self, m, lane, value, slope, write, place):
        """Builds one lane. Returns the address of its entry in the table; the words of the entry follow one cycle later."""
        x, keep = Signal(Bfloat16), self.keep[lane]
        m.d.comb += x.as_value().eq(self.x.word_select(lane, 16))

        step = functools.partial(self._step, m, lane)

        at = self._address(m, lane, x, keep, write, place)

        # While the memories are read: the increase of the exponent, and the position between two entries. The position is 0
        # where the function is constant, and for a product.
        half, inverse = self.scale
        low, high = self.linear_low.bit_select(at.sign, 1), self.linear_high.bit_select(at.sign, 1)
        power, outside = (at.below & low) | (at.above & high), at.below | at.above
        from_zero = power & at.zero
        end = from_zero | (power & at.full & self.scale.any())
        infinite = end & (from_zero == inverse)
        raised, shift = Signal(signed(9)), Signal(signed(9))
        m.d.comb += [
            raised.eq(Mux(half, at.distance >> 1, at.distance) - Mux(at.above, Mux(half, self.last >> 1, self.last), 0)),
            # The negative of `raised` is its complement and a carry into the next sum.
            shift.eq(Mux(infinite, _ALWAYS, Mux(power, raised ^ inverse.replicate(9), 0))),
        ]
        wait = step(
            "wait",
            shift=shift,
            carry=power & inverse & ~infinite,
            between=Mux((~outside | (power & ~end)) & ~at.multiply, at.between, 0),
            zero=end & ~infinite,
            from_zero=from_zero,
            nan=at.nan,
            keep=at.keep,
            multiply=at.multiply,
        )
        # A product has slope 0: it must not depend on a table that was never loaded, not even in a simulator with unknowns.
        found = step("found", value=value, slope=Mux(wait.multiply, 0, slope), **vars(wait))

        self._go_on(m, lane, found)
        return at.address

    def _address(self, m, lane, x, keep, write, place):
        """Returns the first pipeline register of a lane: the address of the entry of `x`, or `place` while `write`. The
        register also has the distance of the exponent from the exponents of the table. A root needs an even distance."""
        half, _ = self.scale
        distance = Signal(signed(9))
        below, above = distance < 0, Signal()
        binade, inside = Signal(4), Signal(4)
        lowest, highest = self.base + (half & distance[0]), self.base + self.last - (half & ~distance[0])
        m.d.comb += [
            distance.eq(x.exponent - self.first),
            above.eq(~distance[8] & (distance[4:8].any() | (distance[:4] > self.last))),
            inside.eq(x.exponent[:4] - (self.first[:4] - self.base)),
            binade.eq(Mux(below, lowest, Mux(above, highest, inside))),
        ]
        return self._step(
            m,
            lane,
            "at",
            address=Mux(write, place, Cat(x.fraction, binade, x.sign)),
            distance=distance,
            below=below,
            above=above,
            between=self.between.word_select(lane, 12),
            zero=x.exponent == 0,
            full=x.exponent == EXPONENT_MAX,
            nan=_is_nan(x),
            sign=x.sign,
            keep=keep,
            multiply=self.multiply,
        )

    def _go_on(self, m, lane, found):
        """Interpolates from an entry to a lane's output. A product passes the same pipeline, as an entry with slope 0."""
        step = functools.partial(self._step, m, lane)
        entry, product = Signal(Bfloat16), self._product(m, lane)
        rest, gain = Signal(signed(4)), Signal(signed(12))
        exponent, significand = Signal(signed(10)), Signal(12)
        m.d.comb += [
            entry.as_value().eq(found.value),
            Cat(gain, rest).eq(found.slope),
            exponent.eq((Cat(Const(1, 1), entry.exponent) + Cat(found.carry, found.shift).as_signed()) >> 1),
            significand.eq(Cat(Const(0, 4), entry.fraction, Const(1, 1)) + rest),
        ]
        gained = step(
            "gained",
            gain=(gain * found.between) >> 9,
            keep=found.keep,
            sign=Mux(found.multiply, product.sign & product.exponent.any(), entry.sign),
            exponent=Mux(found.multiply, product.exponent, exponent).as_signed(),
            significand=Mux(found.multiply, Cat(Const(0, 4), product.fraction, Const(1, 1)), significand),
            zero=~found.multiply & (found.zero | (entry.exponent == 0)),
            nan=Mux(found.multiply, _is_nan(product), found.nan | (_is_nan(entry) & ~found.from_zero)),
        )
        self._round(m, lane, gained)

    def _step(self, m, lane, name, **values):
        with m.If(self.enable):
            return pipeline_step(m, "sync", f"{name}_{lane}", values)

    def _round(self, m, lane, gained):
        """Adds an entry and its interpolation term, normalises and rounds the sum, and drives the lane's output."""
        step = functools.partial(self._step, m, lane)
        total = Signal(signed(16))
        m.d.comb += total.eq(Cat(Const(0, 2), gained.significand) + gained.gain)
        moved = step(
            "moved", total=total, keep=gained.keep, sign=gained.sign, exponent=gained.exponent, zero=gained.zero, nan=gained.nan
        )

        # The leading one of a normal significand is bit 13. The leading one of `total` is bit 14 to bit 11; it is shifted to 13.
        total = moved.total
        fraction, up = Signal(8), Signal(signed(3))
        with m.If(total[14]):
            m.d.comb += [fraction.eq(total[6:14]), up.eq(1)]
        with m.Elif(total[13]):
            m.d.comb += fraction.eq(total[5:13])
        with m.Elif(total[12]):
            m.d.comb += [fraction.eq(total[4:12]), up.eq(-1)]
        with m.Else():
            m.d.comb += [fraction.eq(total[3:11]), up.eq(-2)]
        exponent = Signal(signed(10))
        m.d.comb += exponent.eq(moved.exponent + up)
        normal = step(
            "normal",
            exponent=exponent,
            fraction=fraction,
            sign=moved.sign,
            nan=moved.nan,
            keep=moved.keep,
            zero=moved.zero | total[15] | ~total[11:15].any(),
        )

        rounded = Signal(17)
        m.d.comb += rounded.eq(Cat(normal.fraction[1:], normal.exponent) + normal.fraction[0])
        raised = step(
            "raised",
            exponent=rounded[7:].as_signed(),
            fraction=rounded[:7],
            sign=normal.sign,
            nan=normal.nan,
            keep=normal.keep,
            zero=normal.zero,
        )

        zero = raised.zero | (raised.exponent <= 0)
        infinite = ~raised.exponent[9] & (raised.exponent[8] | raised.exponent[:8].all())
        o = Signal(Bfloat16)
        with m.If(raised.nan):
            m.d.comb += o.as_value().eq(QUIET_NAN >> 16)
        with m.Else():
            m.d.comb += [
                o.sign.eq(raised.sign),
                o.exponent.eq(Mux(infinite, EXPONENT_MAX, raised.exponent[:8]) & ~zero.replicate(8)),
                o.fraction.eq(raised.fraction & ~(zero | infinite).replicate(7)),
            ]
        m.d.comb += self.o.word_select(lane, 16).eq(o.as_value() & raised.keep.replicate(16))

    def _product(self, m, lane):
        """Returns `x * w`, three cycles later, rounded to bfloat16. Infinities and the NaN never round: their low bits are 0."""
        multiplier = Multiplier(lead=3)
        m.submodules[f"multiplier_{lane}"] = EnableInserter(self.enable)(multiplier)
        product, exact = Signal(Bfloat16), multiplier.o.as_value()
        m.d.comb += [
            multiplier.x.as_value().eq(self.x.word_select(lane, 16)),
            multiplier.w.as_value().eq(self.w.word_select(lane, 16)),
            product.as_value().eq(exact[16:] + (exact[15] & (exact[:15].any() | exact[16]))),
        ]
        return product


class FunctionTable(wiring.Component):
    """A lookup table with linear interpolation, or a multiplier, for `lanes` lanes at a time.

    Throughput is one group of `lanes` lanes a cycle, and latency is `latency` cycles. The pipeline stalls while `enable` is 0.

    An operand is a binary32: `x` is its upper half, and `between` its next 12 bits. Let s, E and M be the sign, the biased
    exponent and the fraction of `x`, and t = `between` / 4096. Without `multiply`, a NaN gives the NaN. Other operands use the
    entry [s, `base` + e - `first`, M] of the table, the second index modulo 16. Here, e is E clamped to the binades `first` to
    `first` + `last`. For E outside these binades, with bit 0 of `scale`, e is the nearest binade with E - e even. If `last` is
    even, e may be next to these binades.

    - The value of an entry is a bfloat16, v. Its slope is two signed numbers: r in the upper 4 bits, in sixteenths of the last
      place of v, and g in the lower 12 bits, in eighths of the last place.
    - The significand of v, with 7 fraction bits, is replaced by the significand of v + r + g t. The product g t is truncated
      after 6 fraction bits of a last place.
    - The sum is normalised by a shift to the left by up to two bits, or to the right by one. It is rounded to nearest, ties away
      from 0.
    - A sum below a quarter of the smallest number in the binade of v gives a zero. So does a v with exponent 0.
    - Outside the binades t is 0, unless the function is a power there: E is below the binades and bit s of `linear_low` is 1, or
      above and bit s of `linear_high` is 1. Then t is kept, and the exponent is raised by E - e, halved with bit 0 of `scale`,
      and negated with bit 1.
    - If the function is a power there, E = 0 gives a zero, or with bit 1 of `scale` an infinity. With a `scale` other than 0, E =
      255 gives an infinity, or with bit 1 a zero.
    - A result exponent at or below 0 gives a zero, and at or above 255 an infinity. Both have the sign of v.
    - A NaN v gives the NaN, unless the function is a power at E = 0.

    With `multiply`, `o` is `x * w`, rounded to nearest, ties to even, with subnormals flushed, and with +0 for -0. Where `keep`
    is 0, `o` is +0.

    With `write`, `data` becomes the value (lower half) and the slope (upper half) of `entry`; a lookup in the same cycle gives
    an undefined result. The table has no reset.

    Parameters
    ----------
    lanes : int
        1, or an even number.

    Members
    -------
    enable, multiply : 1, in
    x, w : 16 lanes, in
    o : 16 lanes, out
        bfloat16, lane 0 lowest.
    between : 12 lanes, in
        Position of an operand between `x` and the next bfloat16 away from 0.
    keep : lanes, in
        Lanes that have a result.
    first : 8, in
    linear_low, linear_high, scale : 2, in
    base, last : 4, in
        Operands of LOAD_TABLE, `last` the complement of `spare`; they must be constant while an operand is in flight.
    write : 1, in
    entry : place in the table, in
    data : 32, in
    """

    latency = FunctionPair.latency

    def __init__(self, *, lanes):
        self.lanes = lanes
        super().__init__({**{name: In(width) for name, width in _shared().items()}, **_lanes(lanes)})

    def elaborate(self, platform):
        m = Module()
        each = min(2, self.lanes)
        for pair in range(self.lanes // each):
            instantiate(
                m,
                platform,
                lambda: FunctionPair(lanes=each),
                name=f"pair_{pair}",
                module="tpu_function_pair",
                **{name: getattr(self, name) for name in _shared()},
                **{
                    name: getattr(self, name).word_select(pair, width * each)
                    for name, width in (("x", 16), ("between", 12), ("w", 16), ("keep", 1), ("o", 16))
                },
            )
        return m
