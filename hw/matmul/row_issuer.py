"""The inner loops of a matrix multiplication: from tile passes to rows, with the stalls for weights and for sums."""

from amaranth import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["RowIssuer"]


class RowIssuer(wiring.Component):
    """The address generator of the inner loops of a MATMUL. It issues the rows of each pass.

    A pass stalls until its operation waits for no other unit, its tile of weights is loaded, and no read-after-write hazard on
    the accumulators remains. A pass that has begun issues one row every cycle. The next pass follows without a gap, or one cycle
    later if the pass before it has a single row. `switch` comes one cycle before the first row of a pass with new weights. Pass
    A has three rows and new weights here, and pass B keeps these weights::

        cycle        0    1    2    3    4    5
        i            A    A    B    B    B    ..
        i.ready      0    1    0    0    1    ..
        switch       0    1    0    0    0    ..
        row_valid    0    0    1    1    1    1
        row          -    -    a0   a1   a2   b0

    A pass that starts from biases uses the row `bias` for all its rows. With `bias_rows` its rows use successive bias rows.

    A pass that accumulates on earlier sums has a read-after-write hazard while the earlier pass is in flight. A table of eight
    entries holds the passes in flight. Assume that a new pass shares accumulator rows with an older pass. If it reaches each
    shared row no sooner than the older pass did, it waits until the first row of the older pass is written. Otherwise it waits
    until the last row is written. `written_first` and `written_last` report these two events, in order.

    Parameters
    ----------
    pass_ : layout
        :func:`hw.spec.operations.pass_layout`.

    Members
    -------
    i : stream of pass_, in
    blocked : slots, in
        Operations that wait for other units, one bit for each slot.
    held : 1, out
        The next pass waits for other units.
    head_slot : slot, out
        Slot of the operation of the next pass.
    coming : 1, in
        The shadow registers of the array hold a complete tile from the next cycle on.
    switch : 1, out
        That tile becomes active; see :class:`hw.array.weight_fifo.WeightFifo`.
    row_valid : 1, out
        A row is issued.
    row : row_layout, out
        Rows of the operands: `buffer` of the vector, and `acc` of the sums or, with `start`, `bias` of the biases.
    written_first, written_last : 1, in
        The first, or last, row is written of the oldest pass whose first, or last, row was not written yet.
    waits_weights, waits_sums : 1, out
        The next pass stalls for its tile of weights, or for a read-after-write hazard on the accumulators.
    """

    in_flight = 8

    def __init__(self, *, pass_):
        self.row_layout = data.StructLayout(
            {
                "buffer": pass_["buffer"].shape,
                "acc": pass_["acc"].shape,
                "bias": pass_["bias"].shape,
                "start": 1,
                "first": 1,
                "last": 1,
                "last_pass": 1,
            }
        )
        super().__init__(
            {
                "i": In(stream.Signature(pass_)),
                "blocked": In(1 << pass_["slot"].width),
                "held": Out(1),
                "head_slot": Out(pass_["slot"].shape),
                "coming": In(1),
                "switch": Out(1),
                "row_valid": Out(1),
                "row": Out(self.row_layout),
                "written_first": In(1),
                "written_last": In(1),
                "waits_weights": Out(1),
                "waits_sums": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        head = self.i.p
        go, last_row = Signal(), Signal()

        # Passes in flight: a ring buffer. Entries enter at `newest` and leave at `oldest`. Rows are written in order, so the
        # first row of a pass is written while its entry is the oldest.
        size = self.in_flight
        entries = [
            Signal(data.StructLayout({"low": len(head.acc), "high": len(head.rows)}), name=f"entry_{i}") for i in range(size)
        ]
        valid, unstarted = Signal(size), Signal(size)
        newest, oldest = Signal(range(size)), Signal(range(size))
        blocks = Signal(2 * size)
        for i, entry in enumerate(entries):
            overlaps = (head.acc < entry.high) & (entry.low < head.end)
            m.d.comb += [blocks[i].eq(overlaps & unstarted[i]), blocks[size + i].eq(overlaps & valid[i] & (head.acc > entry.low))]
            # The entry at `newest` follows the head until it is valid.
            with m.If((newest == i) & ~valid[i]):
                m.d.sync += [entry.low.eq(head.acc), entry.high.eq(head.end)]
        with m.If(go):
            m.d.sync += [valid.bit_select(newest, 1).eq(1), unstarted.bit_select(newest, 1).eq(1), newest.eq(newest + 1)]
        with m.If(self.written_first):
            m.d.sync += unstarted.bit_select(oldest, 1).eq(0)
        with m.If(self.written_last):
            m.d.sync += [valid.bit_select(oldest, 1).eq(0), oldest.eq(oldest + 1)]

        # `conflict` is one cycle old, so it is used only after the head has been there for a cycle. It may report an entry that
        # has just left the table. It misses no entry: an entry enters the table only when the head changes.
        conflict = Signal(2)
        m.d.sync += conflict.eq(Cat(~head.start & blocks.word_select(part, size).any() for part in range(2)))

        # The running pass.
        active = Signal()
        current = Signal.like(head)
        row_buffer, outer_buffer = Signal.like(head.buffer), Signal.like(head.buffer)
        acc = Signal.like(head.acc)
        left, left0 = Signal.like(head.rows), Signal.like(head.rows0)
        first, final = Signal(), Signal()
        # `ready`, a register, is 1 if only a hazard on the sums can still stall the head: no pass runs, or the running pass
        # issues its last row in this cycle; the head waits for no other unit; the table has a free entry; and the tile is
        # loaded. The head has then been there for a cycle.
        room, ready, ready_switch, loaded = Signal(init=1), Signal(), Signal(), Signal()
        stands, waits, full = Signal(), Signal(), Signal()
        m.d.comb += [
            stands.eq(self.i.valid & ~go & (~active | final | (left == 2))),
            waits.eq(self.blocked.bit_select(head.slot, 1)),
            full.eq(valid.bit_select(newest, 1)),
        ]
        m.d.sync += [
            ready.eq(stands & ~waits & ~full & (head.keep | self.coming)),
            ready_switch.eq(stands & ~waits & ~full & ~head.keep & self.coming),
            self.held.eq(stands & waits),
            loaded.eq(self.coming & ~self.switch),
        ]
        m.d.comb += [
            last_row.eq(active & final),
            go.eq(ready & ~conflict.any()),
            self.switch.eq(ready_switch & ~conflict.any()),
            self.i.ready.eq(go),
            self.head_slot.eq(head.slot),
            self.waits_weights.eq(self.i.valid & room & ~self.held & ~head.keep & ~loaded),
            self.waits_sums.eq(self.i.valid & room & ~self.held & ~self.waits_weights & ~go),
            self.row_valid.eq(active),
            self.row.buffer.eq(row_buffer),
            self.row.acc.eq(acc),
            self.row.bias.eq(current.bias),
            self.row.start.eq(current.start),
            self.row.first.eq(first),
            self.row.last.eq(final),
            self.row.last_pass.eq(current.last),
        ]
        with m.If(active):
            m.d.sync += [first.eq(0), left.eq(left - 1), final.eq(left == 2), room.eq(final | (left == 2)), acc.eq(acc + 1)]
            if "bias_rows" in head.shape().members:
                m.d.sync += current.bias.eq(current.bias + current.bias_rows)
            with m.If(left0 == 1):
                m.d.sync += [
                    left0.eq(current.rows0),
                    row_buffer.eq(outer_buffer + current.rows1_stride),
                    outer_buffer.eq(outer_buffer + current.rows1_stride),
                ]
            with m.Else():
                m.d.sync += [left0.eq(left0 - 1), row_buffer.eq(row_buffer + current.rows0_stride)]
        # While `room` is 1, these registers follow the head; they hold a pass while `active` is 1.
        with m.If(room):
            m.d.sync += [
                current.eq(head),
                first.eq(1),
                left.eq(head.rows),
                final.eq(head.rows == 1),
                left0.eq(head.rows0),
                acc.eq(head.acc),
                row_buffer.eq(head.buffer),
                outer_buffer.eq(head.buffer),
            ]
        with m.If(go):
            m.d.sync += [active.eq(1), room.eq(head.rows == 1)]
        with m.Elif(last_row):
            m.d.sync += active.eq(0)
        return m
