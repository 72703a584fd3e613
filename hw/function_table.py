"""The function table: any function of a bfloat16, for a few lanes at a time; and a multiplier beside it."""

from types import SimpleNamespace

from amaranth import Cat, Const, EnableInserter, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .float_formats import EXPONENT_MAX, QUIET_NAN, Bfloat16
from .hierarchy import instantiate
from .isa import TABLE_ENTRIES
from .memories import NO_COLLISIONS
from .multiplier import Multiplier

__all__ = ["FunctionPair", "FunctionTable"]

#: Binades of either sign in the table.
_BINADES = 16


def _shared():
    """What all lanes have in common."""
    return {"enable": 1, "multiply": 1, "first": 8, "linear_low": 2, "linear_high": 2, "write": 1, "entry": 12, "data": 16}


class FunctionPair(wiring.Component):
    """One or two lanes of the function table, with a memory of their own, which has a port for each.

    Parameters and members as of :class:`FunctionTable`.
    """

    latency = 4

    def __init__(self, *, lanes):
        if lanes not in (1, 2):
            raise ValueError(f"lanes must be 1 or 2, not {lanes!r}")
        self.lanes = lanes
        super().__init__({
            **{name: In(width) for name, width in _shared().items()},
            "x": In(16 * lanes), "w": In(16 * lanes), "keep": In(lanes), "o": Out(16 * lanes),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=16, depth=TABLE_ENTRIES, init=[], attrs=NO_COLLISIONS)
        write = memory.write_port()
        writes, data = Signal(), Signal(16)
        with m.If(self.enable):
            m.d.sync += [writes.eq(self.write), data.eq(self.data)]
        m.d.comb += [write.en.eq(writes & self.enable), write.data.eq(data)]
        for lane in range(self.lanes):
            read = memory.read_port()
            # The first port writes as well.
            taken = (self.write, self.entry) if lane == 0 else (Const(0), Const(0, 12))
            address = self._look_up(m, lane, read.data, *taken)
            m.d.comb += [read.addr.eq(address), read.en.eq(self.enable & ~writes if lane == 0 else self.enable)]
            if lane == 0:
                m.d.comb += write.addr.eq(address)
        return m

    def _look_up(self, m, lane, found, write, entry):
        """One lane; returns the address of the table's entry, which `found` gives one cycle later."""
        x, keep = Signal(Bfloat16), self.keep[lane]
        m.d.comb += x.as_value().eq(self.x.word_select(lane, 16))

        def step(name, **values):
            """Names what a step of the work hands to the next, behind a register."""
            signals = {}
            for key, value in values.items():
                signals[key] = Signal.like(value, name=f"{name}_{lane}_{key}", reset_less=True)
                with m.If(self.enable):
                    m.d.sync += signals[key].eq(value)
            return SimpleNamespace(**signals)

        # Which entry, and how far the exponent is from the table's.
        distance = Signal(signed(9))
        below, above = distance < 0, ~distance[8] & distance[4:8].any()
        binade = Signal(4)
        m.d.comb += [
            distance.eq(x.exponent - self.first),
            binade.eq(Mux(below, 0, Mux(above, _BINADES - 1, distance[:4]))),
        ]
        place = step(
            "place", address=Mux(write, entry, Cat(x.fraction, binade, x.sign)), distance=distance, below=below, above=above,
            zero=x.exponent == 0, nan=(x.exponent == EXPONENT_MAX) & x.fraction.any(), sign=x.sign, keep=keep,
            multiply=self.multiply)

        # While the memory is read: by how much the exponent is to be raised, if at all.
        low, high = self.linear_low.bit_select(place.sign, 1), self.linear_high.bit_select(place.sign, 1)
        linear = (place.below & low) | (place.above & high)
        shift = Signal(signed(9))
        m.d.comb += shift.eq(Mux(linear, Mux(place.above, place.distance - (_BINADES - 1), place.distance), 0))
        wait = step("wait", linear=linear, shift=shift, zero=place.zero & place.below & low, nan=place.nan, keep=place.keep,
                    multiply=place.multiply)
        done = step("done", value=found, **vars(wait))

        value, exponent = Signal(Bfloat16), Signal(signed(10))
        m.d.comb += [value.as_value().eq(done.value), exponent.eq(value.exponent + done.shift)]
        raised = step(
            "raised", exponent=exponent, sign=value.sign, fraction=value.fraction, linear=done.linear,
            zero=done.linear & (done.zero | ~done.value[:15].any()), nan=done.nan, keep=done.keep, multiply=done.multiply,
            product=self._product(m, lane))

        zero = raised.zero | raised.linear & (raised.exponent <= 0)
        infinite = raised.linear & ~raised.exponent[9] & (raised.exponent[8] | raised.exponent[:8].all())
        o = Signal(Bfloat16)
        with m.If(raised.multiply):
            m.d.comb += o.as_value().eq(raised.product)
        with m.Elif(raised.nan):
            m.d.comb += o.as_value().eq(QUIET_NAN >> 16)
        with m.Else():
            m.d.comb += [
                o.sign.eq(raised.sign),
                o.exponent.eq(Mux(infinite, EXPONENT_MAX, raised.exponent[:8]) & ~zero.replicate(8)),
                o.fraction.eq(raised.fraction & ~(zero | infinite).replicate(7)),
            ]
        m.d.comb += self.o.word_select(lane, 16).eq(o.as_value() & raised.keep.replicate(16))
        return place.address

    def _product(self, m, lane):
        """`x * w`, rounded to bfloat16; infinities and the NaN have no low bits and never round."""
        multiplier = Multiplier(lead=self.latency - 1)
        m.submodules[f"multiplier_{lane}"] = EnableInserter(self.enable)(multiplier)
        m.d.comb += [
            multiplier.x.as_value().eq(self.x.word_select(lane, 16)),
            multiplier.w.as_value().eq(self.w.word_select(lane, 16)),
        ]
        product = multiplier.o.as_value()
        return product[16:] + (product[15] & (product[:15].any() | product[16]))


class FunctionTable(wiring.Component):
    """`lanes` lanes that read a function from a table, or multiply.

    Let s, E and M be sign, biased exponent and fraction of `x`. Without `multiply`, `o` is the NaN for a NaN, and else follows
    from table[s, e - first, M], where e is E brought into the 16 binades from `first` on. If E is below them and bit s of
    `linear_low` is 1, or above and that of `linear_high` is, the exponent of an entry that is not 0 is raised by E - e: at or
    below 0 gives a zero of the entry's sign, and so does E = 0; at or above 255 an infinity. With `multiply`, `o` is `x * w`,
    rounded to nearest, ties to even, with subnormals flushed. Where `keep` is 0, `o` is +0.

    One vector a cycle, `latency` cycles later; nothing moves while `enable` is 0. With `write`, `data` goes to the place `entry`
    of the table, and what is looked up in the same cycle means nothing. The table has no reset.

    Parameters
    ----------
    lanes : int
        1, or an even number.

    Members
    -------
    x, w, o : 16 lanes
        bfloat16, lane 0 lowest.
    keep : lanes
        Lanes that have a result.
    first, linear_low, linear_high
        As of LOAD_TABLE; constant while anything is on its way.
    """

    latency = FunctionPair.latency

    def __init__(self, *, lanes):
        self.lanes = lanes
        super().__init__({
            **{name: In(width) for name, width in _shared().items()},
            "x": In(16 * lanes), "w": In(16 * lanes), "keep": In(lanes), "o": Out(16 * lanes),
        })

    def elaborate(self, platform):
        m = Module()
        each = min(2, self.lanes)
        for pair in range(self.lanes // each):
            instantiate(m, platform, lambda: FunctionPair(lanes=each), name=f"pair_{pair}", module="tpu_function_pair",
                        **{name: getattr(self, name) for name in _shared()},
                        **{name: getattr(self, name).word_select(pair, width * each)
                           for name, width in (("x", 16), ("w", 16), ("keep", 1), ("o", 16))})
        return m
