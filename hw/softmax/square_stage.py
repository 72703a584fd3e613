"""The second sum of NORMALIZE: differences from the mean, their squares, and the factor of a row."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.short_fifo import ShortFifo
from ..spec.normalization import OFFSET, SQUARE_SHIFT
from .group_fifo import GroupFifo
from .inverse_root import InverseRoot
from .layouts import FACTOR, MEAN, SUM_FRACTION
from .row_sum import RowSum
from .sum_control import SumControl

__all__ = ["PLACE", "SquareStage"]

#: The common last place of a row, and its flag, as in :data:`.SCALE`.
PLACE = data.StructLayout({"common": 8, "infinite": 1})

#: Bits of a difference in the layout of a stored number: `power * 2**(10 - halvings)`, and the sign.
_STORED = 16 + 8 + 1


class DifferenceLane(wiring.Component):
    """Computes the difference of a number from its row's mean, as `power * 2**(10 - halvings)`, and its square.

    Throughput: one number a cycle. Results appear `latency` cycles after `value` and `mean`.

    Members
    -------
    value, mean : 26, in
        Both with the same offset.
    power : 16, out
        The top bit is 1, unless the difference is 0.
    halvings : 8, out
    negative : 1, out
    square : 32, out
        Without the low bits that do not count.
    """

    latency = 4

    def __init__(self):
        ports = {"power": Out(16), "halvings": Out(8), "negative": Out(1), "square": Out(SUM_FRACTION)}
        super().__init__({"value": In(26), "mean": In(26), **ports})

    def elaborate(self, platform):
        m = Module()
        difference = Signal(27, reset_less=True)
        sign = difference[-1]
        m.d.sync += difference.eq(self.value - self.mean)
        inverted = difference[:26] ^ sign.replicate(26)

        # k (k + 1) is a quarter of (2 k + 1)^2, rounded down.
        odd, square, result = Signal(17, reset_less=True), Signal(34, reset_less=True), Signal(SUM_FRACTION, reset_less=True)
        m.d.sync += [odd.eq(Cat(Const(1, 1), inverted[SQUARE_SHIFT:])), square.eq(odd * odd), result.eq(square[2:])]
        m.d.comb += self.square.eq(result)

        # Normalise the magnitude. The last shift keeps 16 bits.
        number, negative = Signal(26, reset_less=True), Signal(reset_less=True)
        m.d.sync += [number.eq(inverted + sign), negative.eq(sign)]
        zeros = []
        for stage, sizes in enumerate(((16, 8), (4, 2, 1))):
            shifted, found = number, []
            for size in sizes:
                found.append(~shifted[-size:].any())
                shifted = Mux(found[-1], shifted << size, shifted)[:26]
            number, before = Signal(26, name=f"number_{stage}", reset_less=True), negative
            negative = Signal(name=f"negative_{stage}", reset_less=True)
            counted = Signal(5, name=f"zeros_{stage}", reset_less=True)
            zeros = [*found[::-1], *zeros]
            m.d.sync += [number.eq(shifted), negative.eq(before), counted.eq(Cat(zeros))]
            zeros = [counted[index] for index in range(len(zeros))]
        m.d.comb += [self.power.eq(number[10:]), self.halvings.eq(Cat(zeros)), self.negative.eq(negative)]
        return m


class SquareStage(wiring.Component):
    """Takes aligned numbers and the means of their rows. Adds the squares of the differences, keeps the differences, and computes
    the factor of each row.

    Parameters
    ----------
    n, lanes : int
        Elements of a vector, and of a group.
    operation : layout
        :func:`hw.spec.operations.activate_layout`.
    kept : int
        Groups that the queue of differences holds.

    Members
    -------
    op, end, mask, again : in
        See :class:`.GroupReader`.
    means : stream of MEAN, in
    places : stream of PLACE, in
        One for each row, before its squares are added.
    readable : 1, in
        An aligned group can be read.
    read : 1, out
    values : 26 lanes, in
        The group, two cycles after `read`.
    factors : stream of FACTOR, out
    o_readable : 1, out
        A group of differences can be read.
    o_read, advance : 1, in
        See :class:`.GroupFifo`.
    powers, halvings, negatives : 16 lanes, 8 lanes, lanes, out
    """

    #: Rows between the sum of squares and the results.
    rows = 8

    def __init__(self, *, n, lanes, operation, kept):
        self.lanes = lanes
        self.groups = n // lanes
        self.kept = kept
        tiles = operation["rows1"].shape
        #: Bits of a sum of squares.
        self.width = SUM_FRACTION + tiles + exact_log2(n)
        super().__init__(
            {
                "op": In(operation),
                "end": In(range(self.groups)),
                "mask": In(lanes),
                "again": In(1),
                "means": In(stream.Signature(MEAN)),
                "places": In(stream.Signature(PLACE)),
                "readable": In(1),
                "read": Out(1),
                "values": In(26 * lanes),
                "factors": Out(stream.Signature(FACTOR)),
                "o_readable": Out(1),
                "o_read": In(1),
                "advance": In(1),
                "powers": Out(16 * lanes),
                "halvings": Out(8 * lanes),
                "negatives": Out(lanes),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op, lanes = self.op, self.lanes
        m.submodules.control = control = SumControl(
            groups=self.groups, tiles=op.rows1.shape(), align=0, later=DifferenceLane.latency - 1
        )
        m.submodules.differences = differences = GroupFifo(width=_STORED * lanes, depth=self.kept)
        m.submodules.sum = squares = RowSum(lanes=lanes, width=self.width)
        m.submodules.root = root = InverseRoot(width=self.width)
        m.submodules.factors = factors = ShortFifo(shape=FACTOR, depth=self.rows)
        taken = Signal(range(self.rows + 1))
        m.d.sync += taken.eq(taken + control.adds - (self.factors.valid & self.factors.ready))
        m.d.comb += [
            control.tiles.eq(op.rows1),
            control.end.eq(self.end),
            control.again.eq(self.again),
            control.scale.valid.eq(self.means.valid),
            self.means.ready.eq(control.scale.ready),
            control.scale.p.base.eq(Mux(op.centred, self.means.p.mean, OFFSET)),
            control.readable.eq(self.readable),
            control.may_keep.eq(differences.space),
            control.may_add.eq(taken != self.rows),
            self.read.eq(control.read),
            differences.reserve.eq(control.keeps),
            differences.write.eq(control.powered.valid & control.powered.keeps),
            differences.read.eq(self.o_read),
            differences.advance.eq(self.advance),
            self.o_readable.eq(differences.readable),
            squares.valid.eq(control.powered.valid & control.powered.adds),
            squares.first.eq(control.powered.first),
            squares.last.eq(control.powered.last),
        ]
        for index in range(lanes):
            m.submodules[f"lane_{index}"] = lane = DifferenceLane()
            there = self.mask[index] | ~control.powered.last
            stored = differences.o.word_select(index, _STORED)
            kept = Cat(lane.power, lane.halvings, lane.negative)
            m.d.comb += [
                lane.value.eq(self.values.word_select(index, 26)),
                lane.mean.eq(control.base),
                squares.terms.word_select(index, SUM_FRACTION).eq(lane.square & there.replicate(SUM_FRACTION)),
                differences.i.word_select(index, _STORED).eq(Mux(op.root, 0x8000, kept)),
                self.powers.word_select(index, 16).eq(stored[:16]),
                self.halvings.word_select(index, 8).eq(stored[16:24]),
                self.negatives[index].eq(stored[24]),
            ]
        m.d.comb += [
            root.valid.eq(squares.done),
            root.squares.eq(squares.total),
            root.common.eq(self.places.p.common),
            root.infinite.eq(self.places.p.infinite),
            root.factor.eq(op.factor),
            root.epsilon.eq(op.epsilon),
            root.alone.eq(op.root),
            self.places.ready.eq(squares.done),
            factors.w_en.eq(root.done),
            factors.w_data.eq(root.result),
            factors.r_en.eq(self.factors.valid & self.factors.ready),
            self.factors.valid.eq(factors.r_rdy),
            self.factors.p.eq(factors.r_data),
        ]
        return m
