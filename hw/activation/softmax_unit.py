"""The softmax unit: exp(x - max) / sum of exp(x - max), over rows of any width, from accumulators to the unified buffer."""

from functools import reduce
from operator import or_

from amaranth import Cat, Const, EnableInserter, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, exact_log2

from ..arithmetic.exponential import Exponential
from ..arithmetic.float_formats import QUIET_NAN
from ..arithmetic.reciprocal import Reciprocal
from ..arithmetic.row_distance import RowDistance
from ..spec.isa import Format
from ..spec.memory_ports import client_port, sums_port
from ..spec.softmax import RESULT_EXPONENT
from ..spec.unit_ports import unit_port

__all__ = ["SoftmaxUnit"]

#: Fraction bits of the sum of the exponentials, and the number of low bits that the reciprocal ignores.
_SUM_FRACTION, _SUM_UNUSED = 32, 16


class SoftmaxUnit(wiring.Component):
    """The unit that executes SOFTMAX operations, in order, one at a time.

    Element j = t n + c of row r is lane c of accumulator row `acc + t rows1_stride + r`, with t < `rows1`. The last of these
    accumulator rows holds values in `lanes` lanes. The result is stored in lane c of vector `row + t buffer_stride + r`. A
    binary32 result is stored at the place of lane c in the two vectors starting at `row + t buffer_stride + 2 r`. Pad lanes
    become +0.

    Throughput is one element a cycle in each of three passes over a row: the maximum, the sum of exp(x - maximum), the results.
    A row of N elements takes 2 N + n tiles + `row_latency` cycles. An operation takes `end_latency` cycles more at its end. Three
    things cost more cycles:

    - the sum of a row, one cycle for each factor of two if the sum is 2 or more;
    - a maximum of 8,192 or more, one cycle for each element and binade in the last two passes (:class:`.RowDistance`);
    - `grant` at 0, which stalls the unit.

    Parameters
    ----------
    n : int
        Lanes.
    activate : layout
        :func:`hw.spec.operations.activate_layout`, with `softmax`.

    Members
    -------
    port : unit port of activate, in
        See :func:`hw.spec.unit_ports.unit_port`; `ready` comes at the end of an operation.
    sums : sums port, out
        To the accumulators; see :func:`hw.spec.memory_ports.sums_port`.
    buffer : client port, out
        To the vector port of the unified buffer; see :func:`hw.spec.memory_ports.client_port`.
    moves : 1, out
        An operation runs and is not stalled.
    """

    #: Cycles of a row beyond 2 N + n tiles.
    row_latency = 21
    #: Cycles from the last element of an operation to its end.
    end_latency = 13

    def __init__(self, *, n, activate):
        self.n = n
        # While a vector waits for `grant`, the next element neither completes a vector nor begins a row, unless a vector has one
        # value. So the logic of these two events does not need `grant`.
        self._has_select = "select" in dict(activate)
        self._tile_apart = self._has_select and n > 2
        super().__init__(
            {
                "port": In(unit_port(activate)),
                "sums": Out(sums_port(activate["acc"].shape, n)),
                "buffer": Out(client_port(activate["row"].shape, n)),
                "moves": Out(1),
            }
        )

    def elaborate(self, platform):
        top, m = Module(), Module()
        op = self.port.op.payload

        # `m` stalls while a distance takes several cycles, and while an element is in the spare register. `placing` stalls while
        # a vector waits; an element that arrives then enters the spare register. So `grant`, which is late, has a small fan-out.
        advance, spared, go_on = Signal(init=1), Signal(), Signal()
        top.submodules.moving = EnableInserter(advance)(m)
        top.submodules.distance = distance = RowDistance()
        top.d.comb += [
            go_on.eq(~self.buffer.write | self.buffer.grant),
            distance.advance.eq(advance),
            self.sums.read.eq(advance),
            self.moves.eq(self.port.op.valid & go_on),
        ]

        # The control bits of an element, from its issue on; its sums are valid at stage 1, x at stage 3.
        element = data.StructLayout({name: 1 for name in ("search", "first", "place", "sum", "last", "out", "keep", "done")})
        m.submodules.exponential = exponential = Exponential()
        powered = 3 + distance.latency + exponential.latency
        stages = [Signal(element, name=f"element_{index}") for index in range(powered + 3)]
        m.d.sync += [after.eq(before) for before, after in zip(stages, stages[1:])]

        width = _SUM_FRACTION + 16 + exact_log2(self.n)
        m.submodules.reciprocal = reciprocal = Reciprocal(width=width - _SUM_UNUSED, ahead=powered + 1)

        lane, index = self._issue(m, op, stages[0], stages[-1].sum & stages[-1].last, reciprocal.soon)
        # One of each two lanes, after the memory; then one of all lanes, or the maximum.
        x = Signal(32, reset_less=True)
        chosen = [self.sums.data.word_select(c, 32) & lane[c].replicate(32) for c in range(self.n)]
        pairs = [Signal(32, name=f"pair_{index}", reset_less=True) for index in range(self.n // 2)]
        m.d.sync += [pair.eq(a | b) for pair, a, b in zip(pairs, chosen[::2], chosen[1::2])]
        m.d.sync += x.eq(reduce(or_, pairs, Value.cast(distance.maximum) & stages[2].place.replicate(32)))
        m.d.comb += [
            distance.x.eq(x),
            distance.search.eq(stages[3].search),
            distance.first.eq(stages[3].first),
            distance.place.eq(stages[3].place),
            distance.measure.eq(stages[3].sum | stages[3].out),
            exponential.d.eq(distance.d),
            exponential.beyond.eq(distance.beyond),
        ]

        # The sum, which starts at 0 for each row. Each term is truncated to the last place of the sum.
        term = Cat(Const(0, _SUM_FRACTION - 16), exponential.power)
        for bit in reversed(range(5)):
            term = Mux(exponential.halvings[bit], term >> (1 << bit), term)[:_SUM_FRACTION]
        term_held, total = Signal(_SUM_FRACTION, reset_less=True), Signal(width, reset_less=True)
        infinite = Signal(reset_less=True)
        with m.If(exponential.halvings[5:].any()):
            m.d.sync += term_held.eq(0)
        with m.Else():
            m.d.sync += term_held.eq(term)
        at_sum = stages[powered + 1]
        with m.If(at_sum.place):
            m.d.sync += [total.eq(0), infinite.eq(distance.infinite)]
        with m.Elif(at_sum.sum):
            m.d.sync += total.eq(total + term_held)
        m.d.comb += [reciprocal.total.eq(total[_SUM_UNUSED:]), reciprocal.start.eq(stages[-1].sum & stages[-1].last)]

        # The result: the product is 0.25 to 1, so it is normalised by at most one place. It is not exact, so ties do not matter.
        product, exponent, next_exponent = Signal(32, reset_less=True), Signal(10, reset_less=True), Signal(10)
        above, at_zero, below = (Signal(name=name, reset_less=True) for name in ("above", "at_zero", "below"))
        m.d.comb += next_exponent.eq(RESULT_EXPONENT - reciprocal.places - exponential.halvings)
        m.d.sync += [
            product.eq(exponential.power * reciprocal.quotient),
            exponent.eq(next_exponent),
            above.eq(~next_exponent[-1] & next_exponent.any()),
            at_zero.eq(next_exponent == 0),
            below.eq(next_exponent.all()),  # -1
        ]
        upper = product[31]
        significant = Mux(upper, product[23:31], product[22:30])
        rounded, carry = Signal(17), significant.all()
        m.d.comb += rounded.eq((Cat(significant, exponent) + Cat(Const(1, 8), upper))[1:])
        # `normal`: the exponent, with `upper` and `carry`, is at least 1. It is computed in parallel with the sum. If `carry`
        # alone makes the exponent 0, the bits are 0 anyway.
        normal = above | (at_zero & (upper | carry)) | (below & carry)
        result = data.StructLayout({"place": 1, "out": 1, "done": 1, "value": 16})
        came, spare, element = (Signal(result, name=name) for name in ("came", "spare", "element"))
        top.d.comb += [
            came.value.eq(Mux(at_sum.keep, Mux(infinite, QUIET_NAN >> 16, Mux(normal, rounded[:15], 0)), 0)),
            *(came[name].eq(at_sum[name] & ~distance.busy) for name in ("place", "out", "done")),
            element.eq(Mux(spared, spare, came)),
        ]
        with top.If(~spared):
            top.d.sync += spare.eq(came)
        spared_next = ~go_on & (spared | ~distance.busy)
        top.d.sync += [spared.eq(spared_next), advance.eq(~spared_next & ~distance.busy_next)]
        tiles = Module() if self._tile_apart else None
        top.submodules.placing = EnableInserter(go_on)(self._write(op, element, index, tiles))
        if tiles:
            top.submodules.tiles = EnableInserter(~self.buffer.write)(tiles)
        return top

    def _issue(self, m, op, element, summed, soon):
        """Drives `element` and the accumulators' address, element by element and pass by pass. Returns the lane and the index of
        the row. The lane is one-hot, one cycle late, and 0 if no element was issued."""
        lane, tile = Signal(bits_for(self.n), reset_less=True), Signal(op.rows1.shape(), reset_less=True)
        acc = Signal.like(op.acc, reset_less=True)
        chosen = Signal(self.n, reset_less=True)
        index, next_index = Signal.like(op.acc, reset_less=True), Signal.like(op.rows)
        pads = Signal(reset_less=True)
        last_lane, last_tile, last_value, last, last_row = (Signal() for _ in range(5))
        running = Signal()
        m.d.comb += [
            self.sums.row.eq(acc),
            last_lane.eq(lane[-1]),
            last_tile.eq(tile == op.rows1),
            last_value.eq(last_tile & (lane == op.lanes)),
            # The results of a row end with a whole vector.
            last.eq(Mux(element.out, last_tile & last_lane, last_value)),
            element.last.eq(last),
            element.keep.eq(~pads),
            element.done.eq(last & last_row),
            next_index.eq(index + 1),
            last_row.eq(next_index == op.rows),
        ]
        with m.If(~running):
            m.d.sync += [lane.eq(1), tile.eq(1), pads.eq(0), acc.eq(op.acc + index), chosen.eq(0)]
        with m.Else():
            m.d.sync += [lane.eq(lane + 1), pads.eq(pads | last_value), chosen.eq(Cat(lane == 1, chosen))]
            with m.If(last_lane):
                m.d.sync += [lane.eq(1), tile.eq(tile + 1), acc.eq(acc + op.rows1_stride)]

        self._take_passes(m, element, running, last, last_row, index, next_index, summed, soon)
        return chosen, index

    def _take_passes(self, m, element, running, last, last_row, index, next_index, summed, soon):
        """Drives the passes over the elements of each row. `running` is 1 while elements are issued; with SELECT, a register."""
        first = Signal(reset_less=True)
        runs = [] if self._has_select else [running.eq(1)]
        with m.FSM(name="softmax") as fsm:
            with m.State("IDLE"):
                m.d.sync += index.eq(0)
                with m.If(self.port.op.valid):
                    m.next = "ROW"
            with m.State("ROW"):
                m.d.sync += first.eq(1)
                m.next = "SEARCH"
            with m.State("SEARCH"):
                m.d.comb += [*runs, element.search.eq(1), element.first.eq(first)]
                m.d.sync += first.eq(0)
                with m.If(last):
                    m.next = "PLACE"
            with m.State("PLACE"):
                m.d.comb += element.place.eq(1)
                m.d.sync += first.eq(1)
                with m.If(first):
                    m.next = "SUM"
            with m.State("SUM"):
                m.d.comb += [*runs, element.sum.eq(1)]
                with m.If(last):
                    m.next = "SUMMED"
            with m.State("SUMMED"):
                with m.If(summed):
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                with m.If(soon):
                    m.next = "OUT"
            with m.State("OUT"):
                m.d.comb += [*runs, element.out.eq(1)]
                with m.If(last):
                    m.d.sync += index.eq(next_index)
                    m.next = "ROW"
                    with m.If(last_row):
                        m.next = "DRAIN"
            with m.State("DRAIN"):
                with m.If(self.port.done):
                    m.next = "IDLE"
        if self._has_select:
            begins = fsm.ongoing("ROW") | (fsm.ongoing("PLACE") & first) | (fsm.ongoing("DIVIDE") & soon)
            m.d.sync += running.eq(begins | (running & ~last))

    def _write(self, op, element, index, tiles):
        """Returns a module that collects results into vectors and writes the vectors to the unified buffer. The module stalls
        while a vector waits. If `tiles` is not None, the logic of the tile address is added to it."""
        m = Module()
        slot = Signal(self.n, reset_less=True)  # a bit for each lane
        fresh, half = Signal(reset_less=True), Signal(reset_less=True)
        binary32 = op.format == Format.BINARY32
        tile = Signal.like(op.row)  # the tile's first vector in this row
        row, vector = Signal.like(op.row), Signal(16 * self.n, reset_less=True)
        first_slot, full, last_vector = Mux(binary32, 2, 1), slot[-1], Signal()
        m.d.comb += [
            self.buffer.row.eq(row),
            self.buffer.vector.eq(vector),
            self.port.op.ready.eq(self.port.done),
            self.port.done_slot.eq(op.tag.slot),
        ]
        m.d.sync += [
            self.buffer.write.eq(element.out & full),
            last_vector.eq(element.done),
            self.port.done.eq(self.buffer.write & last_vector),
            row.eq(tile + half),
        ]
        to_first = tile.eq(op.row + Mux(binary32, index << 1, index))
        to_next = tile.eq(tile + op.buffer_stride)
        with m.If(element.place):
            m.d.sync += [*([] if tiles else [to_first]), slot.eq(first_slot), fresh.eq(1), half.eq(0)]
        with m.Elif(element.out):
            # A binary32 takes two places; the lower place stays 0.
            m.d.sync += [slot.eq(Mux(binary32, slot << 2, slot << 1)), fresh.eq(full)]
            with m.If(full):
                m.d.sync += [slot.eq(first_slot), half.eq(binary32 & ~half)]
                if not tiles:
                    with m.If(~binary32 | half):
                        m.d.sync += to_next
        if tiles:
            with tiles.If(element.place):
                tiles.d.sync += to_first
            with tiles.Elif(element.out & full & (~binary32 | half)):
                tiles.d.sync += to_next
        for lane in range(self.n):
            with m.If(element.out & (fresh | slot[lane])):
                m.d.sync += vector.word_select(lane, 16).eq(element.value & slot[lane].replicate(16))
        return m
