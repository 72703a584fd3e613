"""The third pass of the softmax unit: from stored exponentials (powers) and quotients to vectors of the unified buffer."""

from amaranth import Cat, EnableInserter, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..spec.isa import Format
from ..spec.memory_ports import client_port
from .group_counter import GroupCounter
from .layouts import FACTOR, QUOTIENT
from .result_lane import ResultLane

__all__ = ["ResultWriter"]


class ResultWriter(wiring.Component):
    """Writes the results of each row, in order, a group a cycle. A binary32 group takes two cycles, one for each half of its
    lanes.

    All registers stall without `advance`, while a vector waits for the buffer.

    ```
    cycle     0      1      2      3      4      5          a row with four groups in a vector
    quotients x                                             taken with the last group of the row before
    read             g0     g1     g2     g3
    powers                         g0     g1     g2         two cycles after `read`
    result                                g0     g1         into the lanes of the vector; `write` follows g3
    ```

    Parameters
    ----------
    n : int
        Elements of a vector.
    lanes : int
        Elements of a group.
    operation : layout
        :func:`hw.spec.operations.activate_layout`.
    normalize : bool
        See :class:`.ResultLane`.

    Members
    -------
    op, run, end, mask : in
        See :class:`.GroupReader`.
    quotients : stream of QUOTIENT, in
        One for each row; with `normalize`, a FACTOR.
    readable : 1, in
        The powers of a group can be read.
    read : 1, out
    powers, halvings : 16 lanes and 8 lanes, in
    negatives : lanes, in
        Only with `normalize`.
    advance : 1, out
    buffer : client port, out
    done : 1, out
        The operation has ended.
    """

    def __init__(self, *, n, lanes, operation, normalize=False):
        self.n = n
        self.normalize = normalize
        self.by = FACTOR if normalize else QUOTIENT
        self.lanes = lanes
        self.groups = n // lanes
        super().__init__(
            {
                "op": In(operation),
                "run": In(1),
                "end": In(range(self.groups)),
                "mask": In(lanes),
                "quotients": In(stream.Signature(self.by)),
                "readable": In(1),
                "read": Out(1),
                "powers": In(16 * lanes),
                "halvings": In(8 * lanes),
                **({"negatives": In(lanes)} if normalize else {}),
                "advance": Out(1),
                "buffer": Out(client_port(operation["row"].shape, n)),
                "done": Out(1),
            }
        )

    def elaborate(self, platform):
        top, m = Module(), Module()
        top.submodules.moving = EnableInserter(self.advance)(m)
        top.d.comb += self.advance.eq(~self.buffer.write | self.buffer.grant)
        flags, by = self._issue(top, m)
        for stage in range(2):
            moved, quotient = Signal.like(flags, name=f"flags_{stage + 1}"), Signal(self.by, name=f"by_{stage + 1}")
            m.d.sync += [moved.eq(flags), quotient.eq(by)]
            flags, by = moved, quotient
        results = []
        placed = Signal.like(flags, name="placed")
        m.d.sync += placed.eq(flags)
        for lane in range(self.lanes):
            m.submodules[f"lane_{lane}"] = result = ResultLane(normalize=self.normalize)
            m.d.comb += [
                result.power.eq(self.powers.word_select(lane, 16)),
                result.halvings.eq(self.halvings.word_select(lane, 8)),
                result.by.eq(by),
                result.keep.eq(placed.keep[lane]),
                *([result.negative.eq(self.negatives[lane])] if self.normalize else []),
            ]
            results.append(result.result)
        self._place(m, placed, results)
        return top

    def _issue(self, top, m):
        """Reads groups of exponentials from the memory. Returns the flags of the group that is being read, and the quotient of
        its row."""
        op, wide = self.op, self.op.format == Format.BINARY32
        m.submodules.counter = counter = GroupCounter(groups=self.groups, tiles=op.rows1.shape())
        layout = data.StructLayout({"valid": 1, "upper": 1, "keep": self.lanes, "tile": 1, "row": 1, "done": 1})
        flags, by = Signal(layout, name="flags_0"), Signal(self.by, name="by_0", reset_less=True)
        active, pads, upper, left = Signal(), Signal(), Signal(), Signal.like(op.rows, reset_less=True)
        # `pads`: the groups after the last element of the row.
        last_elements = counter.last_tile & (counter.group == self.end)
        needs, whole = ~pads & ~upper, ~wide | upper
        m.d.comb += [
            flags.valid.eq(active & (self.readable | ~needs)),
            flags.upper.eq(upper),
            flags.keep.eq(Mux(pads, 0, self.mask | (~last_elements).replicate(self.lanes))),
            flags.tile.eq(counter.tile_end & whole),
            flags.row.eq(counter.last & whole),
            flags.done.eq(flags.row & (left == 1)),
            counter.step.eq(flags.valid & whole),
            counter.tiles.eq(op.rows1),
            counter.end.eq(self.groups - 1),
        ]
        takes = ~active | (flags.valid & flags.row)
        top.d.comb += [self.read.eq(flags.valid & needs & self.advance), self.quotients.ready.eq(takes & self.advance)]
        with m.If(takes):
            m.d.sync += [active.eq(self.quotients.valid), by.eq(self.quotients.payload)]
        with m.If(flags.valid):
            m.d.sync += upper.eq(wide & ~upper)
            with m.If(whole):
                m.d.sync += pads.eq(pads | last_elements)
            with m.If(flags.row):
                m.d.sync += [pads.eq(0), left.eq(left - 1)]
        with m.If(~self.run):
            m.d.sync += left.eq(op.rows)
        return flags, by

    def _place(self, m, flags, results):
        op, wide = self.op, self.op.format == Format.BINARY32
        # A binary32 takes two places; the lower place stays 0.
        half = self.lanes // 2
        slots = []
        for lane in range(self.lanes):
            spread = Mux(flags.upper, results[half + lane // 2], results[lane // 2]) if lane % 2 else 0
            slots.append(Mux(wide, spread, results[lane])[:16])
        place, second = Signal(self.groups, init=1), Signal()
        vector = Signal(16 * self.n, reset_less=True)
        row, tile, vector_row = (Signal.like(op.row, name=name, reset_less=True) for name in ("row", "tile", "vector_row"))
        last = Signal(reset_less=True)
        full, next_row = place[-1], Signal.like(op.row)
        width = 16 * self.lanes
        with m.If(flags.valid):
            m.d.sync += place.eq(place.rotate_left(1))
            for index in range(self.groups):
                with m.If(place[index]):
                    m.d.sync += vector.word_select(index, width).eq(Cat(slots))
        m.d.comb += [next_row.eq(row + 1 + wide), self.buffer.row.eq(vector_row), self.buffer.vector.eq(vector)]
        with m.If(~self.run):
            m.d.sync += [row.eq(op.row), tile.eq(op.row)]
        with m.Elif(flags.valid & full):
            m.d.sync += second.eq(wide & ~second)
            with m.If(flags.row):
                m.d.sync += [row.eq(next_row), tile.eq(next_row)]
            with m.Elif(flags.tile):
                m.d.sync += tile.eq(tile + op.buffer_stride)
        m.d.sync += [
            self.buffer.write.eq(flags.valid & full),
            vector_row.eq(tile + second),
            last.eq(flags.done),
            self.done.eq(self.buffer.write & last),
        ]
