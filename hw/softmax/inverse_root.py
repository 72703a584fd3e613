"""The factor of a normalised row: 1 / sqrt of its sum of squares and epsilon, times a constant."""

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.normalization import ROOTS, SEGMENT_BITS, SLOPES, SQUARE_SHIFT
from .layouts import FACTOR

__all__ = ["InverseRoot"]

#: Bits of a sum, with one in front of the fraction, and low bits of the fraction between two entries of the table.
_BITS, _REST = 18, 17 - SEGMENT_BITS
#: The exponent of a sum is `places + 2 common` minus this number.
_BIAS = 2 * (150 - SQUARE_SHIFT) + 1
#: `common` for a last place of 2^-25, in which a difference of only its top bit is the number 1.
_ONE = 125


class InverseRoot(wiring.Component):
    """Computes `factor / sqrt(squares * 4**(common - 140) + epsilon)` in floating point; see
    :func:`sim.golden.normalization.inverse_root`.

    Throughput: one row a cycle, without flow control. Latency: `latency` cycles.

    Parameters
    ----------
    width : int
        Bits of `squares`, below 64.

    Members
    -------
    valid, infinite : 1, in
        `infinite` marks a row with an infinity or a NaN.
    squares : width, in
    common : 8, in
        Exponent field of the common last place of the row.
    factor, epsilon : 24, in
        Fields of NORMALIZE. Constant.
    alone : 1, in
        1: the result is for the number 1, in place of a number of the row. Constant.
    done : 1, out
        `result` is valid.
    result : FACTOR, out
    """

    latency = 11

    def __init__(self, *, width):
        ports = {"valid": In(1), "infinite": In(1), "squares": In(width), "common": In(8)}
        super().__init__({**ports, "factor": In(24), "epsilon": In(24), "alone": In(1), "done": Out(1), "result": Out(FACTOR)})

    def elaborate(self, platform):
        m = Module()

        def step(name, **values):
            """Registers values under these names. Returns the registers."""
            registers = {
                key: Signal.like(value, name=f"{name}_{key}", reset_less=key != "flags") for key, value in values.items()
            }
            m.d.sync += [registers[key].eq(value) for key, value in values.items()]
            return registers

        flags = Cat(self.valid, self.infinite)
        s = step("taken", squares=self.squares, common=self.common, flags=flags)

        # Normalise the sum of squares.
        zeros = []
        for stage, sizes in enumerate(((32, 16), (8, 4), (2, 1))):
            squares = s["squares"]
            for size in sizes:
                empty = ~squares[-size:].any() if size < len(squares) else Const(0, 1)
                squares = Mux(empty, squares << size, squares)[: len(self.squares)]
                zeros.append(empty)
            moved = step(f"normal_{stage}", squares=squares, common=s["common"], flags=s["flags"], zeros=Cat(reversed(zeros)))
            zeros, s = [moved["zeros"][index] for index in reversed(range(len(zeros)))], moved
        first, places = s["squares"][-_BITS:], Signal(7)
        m.d.comb += places.eq(len(self.squares) - s["zeros"])

        # Add epsilon to the sum: order by exponent, align, add.
        some, more = first[-1], self.epsilon[16:].any()
        second = Cat(Const(0, 1), self.epsilon[:16], Const(1, 1))
        exponent, other, distance = Signal(10), Signal(10), Signal(11)
        smaller = more & (~some | distance[-1])
        m.d.comb += [
            exponent.eq(places + (s["common"] << 1)),
            other.eq(self.epsilon[16:] + _BIAS - 127),
            distance.eq(exponent - other),
        ]
        far = distance ^ distance[-1].replicate(11)  # of a negative distance, one less
        s = step(
            "ordered",
            large=Mux(smaller, second, first),
            small=Mux(some & more, Mux(smaller, first, second), 0),
            exponent=Mux(smaller, other, exponent),
            shift=Mux(far[5:].any(), 31, far[:5]),
            once=distance[-1],
            common=s["common"],
            flags=s["flags"],
        )
        shifted = Mux(s["once"], s["small"] >> 1, s["small"])
        for bit in reversed(range(5)):
            shifted = Mux(s["shift"][bit], shifted >> (1 << bit), shifted)[:_BITS]
        total = Signal(_BITS + 1)
        m.d.comb += total.eq(s["large"] + shifted)
        carry = total[-1]
        s = step(
            "added",
            total=Mux(carry, total[1:], total[:_BITS]),
            exponent=s["exponent"] + carry,
            common=s["common"],
            flags=s["flags"],
        )

        # The root: an entry of the table, less a part of the decrease to the next one. The bias is odd.
        segment = Cat(s["total"][_REST : _BITS - 1], ~s["exponent"][0])
        rest, zero, halved = s["total"][:_REST], ~s["total"][-1], Signal(9)
        # (exponent - _BIAS) >> 1, plus a constant that keeps it positive
        m.d.comb += halved.eq((s["exponent"][:10] + 1) >> 1)
        s = step(
            "looked_up",
            start=Array(ROOTS)[segment],
            slope=Array(SLOPES)[segment],
            rest=rest,
            zero=zero,
            halved=halved,
            common=s["common"],
            flags=s["flags"],
        )
        s = step("line", less=s.pop("slope") * s.pop("rest"), **s)
        root = (s.pop("start") - s.pop("less")[_REST:])[:_BITS]
        s = step("root", root=root, **s)
        s = step(
            "product",
            product=s["root"] * Cat(self.factor[:16], Const(1, 1)),
            exponent=Mux(self.alone, _ONE, s["common"]) + self.factor[16:] - s["halved"],
            zero=s["zero"],
            flags=s["flags"],
        )
        carry = s["product"][34]
        done, result = Signal(), Signal(FACTOR, reset_less=True)
        m.d.sync += [
            done.eq(s["flags"][0]),
            result.quotient.eq(Mux(carry, s["product"][19:35], s["product"][18:34])),
            result.exponent.eq(s["exponent"] + carry + ((_BIAS + 1) // 2 - 126)),
            result.infinite.eq(s["flags"][1] | s["zero"]),
        ]
        m.d.comb += [self.done.eq(done), self.result.eq(result)]
        return m
