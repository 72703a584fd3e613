"""The inner loops of a matrix multiplication: from passes to rows, one a cycle, when weights and sums are ready."""

from amaranth import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["RowIssuer"]


class RowIssuer(wiring.Component):
    """The address generator of the inner loops of a MATMUL. It issues the rows of each pass, and holds a pass back until its
    operation waits for no other unit, its tile is loaded and its sums have left the array.

    A pass that starts from biases takes the row `bias` for all its rows, or, with `bias_rows`, for its first one and then the
    next ones.

    Once a pass has begun it takes a row every cycle; the next pass can follow in the very next one, but after a pass of a
    single row one cycle later. `switch` comes one cycle before the first row of a pass with new weights.

    Sums that go on from what an earlier pass left must have been written before they are read again. The passes whose
    rows are still in the array stand in a table of eight. A new pass that shares accumulator rows with one of them
    waits until that one's first row is written, if it reaches each shared row no sooner than the older pass did, and
    else until its last row is written. `written_first` and `written_last` report these moments, in order.

    Parameters
    ----------
    pass_ : layout
        :func:`hw.spec.operations.pass_layout`.

    Members
    -------
    i : stream of pass_, in
    blocked : slots, in
        The operations, by slot, that wait for other units.
    held : 1, out
        The next pass waits for other units.
    head_slot : slot, out
        The slot of its operation.
    coming : 1, in
    switch : 1, out
        From and to the weight FIFO; see :class:`hw.array.weight_fifo.WeightFifo`.
    row_valid : 1, out
        A row enters the array.
    row : row_layout, out
        The vector `buffer`, and the sums `acc` or, with `start`, the biases `bias`.
    written_first, written_last : 1, in
        The first, or last, row of the oldest pass that lacks it is written.
    waits_weights, waits_sums : 1, out
        Why else the next pass does not begin.
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

        # Passes in the array: a ring, filled at `newest`, whose first rows are written at `unwritten`, emptied at `oldest`.
        size = self.in_flight
        entries = [
            Signal(data.StructLayout({"low": len(head.acc), "high": len(head.rows)}), name=f"entry_{i}") for i in range(size)
        ]
        valid, unstarted = Signal(size), Signal(size)
        newest, unwritten, oldest = (Signal(range(size), name=name) for name in ("newest", "unwritten", "oldest"))
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
            m.d.sync += [unstarted.bit_select(unwritten, 1).eq(0), unwritten.eq(unwritten + 1)]
        with m.If(self.written_last):
            m.d.sync += [valid.bit_select(oldest, 1).eq(0), oldest.eq(oldest + 1)]

        # `conflict` is one cycle old, so it counts once the head has been there for a cycle. It may report an entry that has
        # just left the table. It misses none: an entry enters the table with a new head.
        conflict = Signal(2)
        m.d.sync += conflict.eq(Cat(~head.start & blocks.word_select(part, size).any() for part in range(2)))

        # The running pass.
        active = Signal()
        current = Signal.like(head)
        row_buffer, outer_buffer = Signal.like(head.buffer), Signal.like(head.buffer)
        acc = Signal.like(head.acc)
        left, left0 = Signal.like(head.rows), Signal.like(head.rows0)
        first, final = Signal(), Signal()
        # `ready` says, from a register, that only sums may still hold the head: no pass runs, or it issues its last row in this
        # cycle; the head waits for no other unit; the table has a free entry; and the tile is loaded. The head has then been
        # there for a cycle.
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
        # While `room` is 1, these registers follow the head; `active` tells whether they hold a pass.
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
