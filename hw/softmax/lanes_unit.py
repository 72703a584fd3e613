"""The unit of SOFTMAX and NORMALIZE with several lanes and several rows in flight."""

from amaranth import Cat, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from ..lib.short_fifo import ShortFifo
from ..lib.skid_buffer import SkidBuffer
from ..spec.memory_ports import client_port, sums_port
from ..spec.softmax import RESULT_EXPONENT
from ..spec.unit_ports import unit_port
from .divider_bank import DividerBank
from .group_fifo import GroupFifo
from .group_reader import GroupReader
from .layouts import MEAN, SCALE, SUM_FRACTION, SUM_UNUSED
from .mean_divider import MeanDivider
from .result_writer import ResultWriter
from .row_search import RowSearch
from .row_sum import RowSum
from .softmax_lane import SoftmaxLane
from .square_stage import PLACE, SquareStage
from .sum_control import SumControl

__all__ = ["SoftmaxLanesUnit"]


class SoftmaxLanesUnit(wiring.Component):
    """The unit that executes SOFTMAX operations with `lanes` elements a cycle. It has the same results and ports as
    :class:`.SoftmaxUnit`.

    Three passes work on different rows at the same time. A queue of elements connects the first two passes. A queue of
    exponentials precedes the third pass, so that each exponential is computed only once.

    ```
    accumulators -> GroupReader -> elements -> SoftmaxLane -> powers ----------> ResultWriter -> unified buffer
                         '-> RowSearch -> scale -^      '-> RowSum -> DividerBank -^

    cycle     0        A        2 A      3 A      4 A      5 A      groups of a row of A groups
    search    row 0    row 1    row 2    row 3
    sum                  row 0    row 1    row 2    row 3
    division                        row 0    row 1    row 2
    results                              row 0    row 1    row 2
    ```

    A row with more groups than `kept` does not fit the queues. Such a row is read three times, one pass after the other, and its
    exponentials are computed twice. A maximum of 8,192 or more takes one cycle more for each group and binade.

    If `activate` has `normalize`, the unit also executes NORMALIZE, with one more pass between sum and results:

    ```
    search -> scale -> sum of the aligned numbers -> mean -> SquareStage -> factor
    elements ------------^         '-> powers ------------------^ '-> differences --> ResultWriter
    ```

    Parameters
    ----------
    n, activate
        See :class:`.SoftmaxUnit`.
    lanes : int
        Elements of a group, a power of two from 2 to n.
    kept : int
        Groups that a queue holds, a power of two, at least n / lanes.
    """

    #: Groups that a queue holds by default: the words of a block RAM of 36 bits.
    kept = 512
    #: Cycles of a division beyond its 16 bits and the bits of the sum's integer part.
    division = 2
    #: Cycles of an operation of one row beyond its passes, the stages of the two trees and the bits of the sum's integer part.
    latency = 43
    #: Cycles of the division for a mean, and of an operation of NORMALIZE of one row beyond its passes and the stages of the
    #: three trees.
    mean_division, normalize_latency = 29, 68

    def __init__(self, *, n, activate, lanes, kept=kept):
        self.n = n
        self.lanes = lanes
        self.kept = kept
        self.dividers = exact_log2(lanes)
        self._activate = activate
        self._normalizes = "normalize" in dict(activate)
        super().__init__(
            {
                "port": In(unit_port(activate)),
                "sums": Out(sums_port(activate["acc"].shape, n)),
                "buffer": Out(client_port(activate["row"].shape, n)),
                "moves": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op, n, lanes = self.port.op.payload, self.n, self.lanes
        groups, kept = n // lanes, self.kept
        m.submodules.reader = reader = GroupReader(n=n, lanes=lanes, operation=self._activate)
        m.submodules.elements = elements = GroupFifo(width=32 * lanes, depth=kept)
        normal = {"normalize": self._normalizes}
        m.submodules.search = search = RowSearch(lanes=lanes, **normal)
        m.submodules.scales = scales = SkidBuffer(payload=SCALE)
        m.submodules.control = control = SumControl(groups=groups, tiles=op.rows1.shape(), **normal)
        m.submodules.kept_powers = powers = GroupFifo(width=(26 if self._normalizes else 24) * lanes, depth=kept)
        m.submodules.sum = sums = RowSum(lanes=lanes, width=SUM_FRACTION + 16 + exact_log2(n))
        m.submodules.bank = bank = DividerBank(width=len(sums.total) - SUM_UNUSED, count=self.dividers)
        m.submodules.writer = writer = ResultWriter(n=n, lanes=lanes, operation=self._activate, **normal)

        # Figures of the operation, constant while `run` is 1.
        run, again = Signal(), Signal(reset_less=True)
        end, mask = Signal(range(groups)), Signal(lanes, reset_less=True)
        last_lane = Signal(exact_log2(n))
        m.d.comb += last_lane.eq(op.lanes - 1)
        m.d.sync += run.eq(self.port.op.valid & ~self.port.done)
        with m.If(~run):
            m.d.sync += [
                again.eq(op.rows1 > kept // groups),
                end.eq(last_lane[exact_log2(lanes) :]),
                mask.eq(Cat(Const(1, 1), *(last_lane[: exact_log2(lanes)] >= lane for lane in range(1, lanes)))),
            ]
        for part in (reader, writer):
            m.d.comb += [part.op.eq(op), part.run.eq(run), part.end.eq(end), part.mask.eq(mask)]
        m.d.comb += [reader.again.eq(again), control.again.eq(again), control.tiles.eq(op.rows1), control.end.eq(end)]

        # Search: at most two rows, as many as there are places for scales, are between the reader and the sum.
        searched = Signal(range(3))
        m.d.sync += searched.eq(searched + reader.begins - (scales.o.valid & scales.o.ready))
        connect(m, reader.sums, flipped(self.sums))
        m.d.comb += [
            reader.may_begin.eq(searched != 2),
            reader.may_keep.eq(elements.space),
            elements.reserve.eq(reader.keeps),
            elements.write.eq(reader.o_valid & reader.o_keep),
            elements.i.eq(reader.keys),
            search.valid.eq(reader.o_valid & reader.o_search),
            search.first.eq(reader.o_first),
            search.last.eq(reader.o_last),
            search.keys.eq(reader.keys),
            scales.i.valid.eq(search.found),
            scales.i.payload.eq(search.scale),
        ]

        # Sum.
        connect(m, scales.o, control.scale)
        m.d.comb += [
            control.readable.eq(elements.readable),
            control.may_keep.eq(powers.space),
            control.may_add.eq(bank.space),
            elements.read.eq(control.read),
            powers.reserve.eq(control.keeps),
            bank.reserve.eq(control.adds),
            powers.write.eq(control.powered.valid & control.powered.keeps),
            sums.valid.eq(control.added.valid & control.added.adds),
            sums.first.eq(control.added.first),
            sums.last.eq(control.added.last),
            sums.infinite.eq(control.added.infinite),
            bank.valid.eq(sums.done),
            bank.total.eq(sums.total[SUM_UNUSED:]),
            bank.infinite.eq(sums.o_infinite),
        ]
        for index in range(lanes):
            m.submodules[f"lane_{index}"] = lane = SoftmaxLane(**normal)
            m.d.comb += [
                lane.key.eq(elements.o.word_select(index, 32)),
                lane.common.eq(control.common),
                lane.base.eq(control.base),
                lane.load.eq(control.load),
                powers.i.word_select(index, 24).eq(Cat(lane.power, lane.halvings)),
                sums.terms.word_select(index, 32).eq(lane.term),
                writer.powers.word_select(index, 16).eq(powers.o.word_select(index, 24)[:16]),
                writer.halvings.word_select(index, 8).eq(powers.o.word_select(index, 24)[16:]),
            ]

        # Results.
        if not self._normalizes:
            connect(m, bank.o, writer.quotients)
        connect(m, writer.buffer, flipped(self.buffer))
        m.d.comb += [
            writer.readable.eq(powers.readable),
            powers.read.eq(writer.read),
            powers.advance.eq(writer.advance),
            self.port.done.eq(writer.done),
            self.port.op.ready.eq(writer.done),
            self.port.done_slot.eq(op.tag.slot),
            self.moves.eq(self.port.op.valid & writer.advance),
        ]
        if self._normalizes:
            self._normalize(m, again, end, mask)
        return m

    def _normalize(self, m, again, end, mask):
        """Connects the parts for NORMALIZE. The last assignment to a signal counts: these replace the ones for SOFTMAX."""
        op, n, lanes, parts = self.port.op.payload, self.n, self.lanes, m.submodules
        bank, writer, powers, control, scales = parts.bank, parts.writer, parts.kept_powers, parts.control, parts.scales
        sums = parts.sum
        squares = SquareStage(n=n, lanes=lanes, operation=self._activate, kept=self.kept)
        means = DividerBank(
            width=(width := 26 + len(op.rows1) + exact_log2(n)),
            count=self.dividers,
            result=MEAN,
            divider=lambda: MeanDivider(width=width, bits=26),
            divisor=width - 26,
        )
        m.submodules.square_stage, m.submodules.means = squares, means
        m.submodules.places = places = ShortFifo(shape=PLACE, depth=16)
        count = Signal(width - 26, reset_less=True)
        m.d.sync += count.eq(Cat((op.lanes - 1)[: exact_log2(n)], op.rows1 - 1) + 1)
        m.d.comb += [
            control.thrice.eq(op.normalize),
            parts.search.exact.eq(op.normalize),
            means.total.eq(sums.total),
            means.divisor.eq(count),
            squares.op.eq(op),
            squares.end.eq(end),
            squares.mask.eq(mask),
            squares.again.eq(again),
            squares.values.eq(powers.o),
            squares.readable.eq(powers.readable & op.normalize),
            squares.advance.eq(writer.advance),
            squares.places.valid.eq(places.r_rdy),
            squares.places.p.eq(places.r_data),
            places.r_en.eq(squares.places.ready),
            places.w_data.eq(Cat(scales.o.p.common, scales.o.p.infinite)),
            writer.quotients.valid.eq(bank.o.valid),
            writer.quotients.p.quotient.eq(bank.o.p.quotient),
            writer.quotients.p.exponent.eq(RESULT_EXPONENT - bank.o.p.places),
            writer.quotients.p.infinite.eq(bank.o.p.infinite),
            bank.o.ready.eq(writer.quotients.ready),
        ]
        connect(m, means.o, squares.means)
        self._switch(m, mask)

    def _switch(self, m, mask):
        """Connects the signals that NORMALIZE and SOFTMAX share, for NORMALIZE."""
        op, parts = self.port.op.payload, m.submodules
        bank, writer, powers, control, scales = parts.bank, parts.writer, parts.kept_powers, parts.control, parts.scales
        reader, sums, squares, means, places = parts.reader, parts.sum, parts.square_stage, parts.means, parts.places
        with m.If(op.normalize):
            m.d.comb += [
                # A row enters the sum if there is a place for the exponent of its last place.
                control.scale.valid.eq(scales.o.valid & places.w_rdy),
                scales.o.ready.eq(control.scale.ready & places.w_rdy),
                places.w_en.eq(scales.o.valid & scales.o.ready),
                control.may_add.eq(means.space),
                means.reserve.eq(control.adds),
                bank.reserve.eq(0),
                powers.write.eq(control.loaded.valid & control.loaded.keeps),
                sums.valid.eq(control.loaded.valid & control.loaded.adds),
                sums.first.eq(control.loaded.first),
                sums.last.eq(control.loaded.last),
                means.valid.eq(sums.done),
                bank.valid.eq(0),
                powers.read.eq(squares.read),
                powers.advance.eq(1),
                squares.o_read.eq(writer.read),
                writer.readable.eq(squares.o_readable),
                writer.powers.eq(squares.powers),
                writer.halvings.eq(squares.halvings),
                writer.negatives.eq(squares.negatives),
                writer.quotients.p.eq(squares.factors.p),
                writer.quotients.valid.eq(squares.factors.valid),
                squares.factors.ready.eq(writer.quotients.ready),
            ]
        for index in range(self.lanes):
            lane, key, there = parts[f"lane_{index}"], reader.keys.word_select(index, 32), Signal(name=f"there_{index}")
            term = lane.aligned & (mask[index] | ~control.loaded.last).replicate(26)
            m.d.comb += there.eq(mask[index] | ~reader.o_last)
            with m.If(op.normalize):
                m.d.comb += [
                    # By magnitude; a lane without an element is below all.
                    parts.search.keys.word_select(index, 32).eq(Cat(key[:31] ^ (~key[31]).replicate(31), there)),
                    sums.terms.word_select(index, 32).eq(term),
                    powers.i.word_select(index, 26).eq(lane.aligned),
                ]
