"""The reader of the softmax unit: from accumulator rows to groups of keys."""

from functools import reduce
from operator import or_

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.memory_ports import sums_port
from .group_counter import GroupCounter
from .layouts import ordered_key

__all__ = ["GroupReader"]


class GroupReader(wiring.Component):
    """Reads the rows of an operation, a group of `lanes` elements a cycle.

    Each row is read once. With `again`, each row is read three times: for the search, for the sum and for the results; with
    `normalize`, it is read once more, for the squares.

    ```
    cycle     0        1        2        3          four groups of one accumulator row
    sums.read x
    sums.data          held until the next read
    pairs                       g0       g1         one lane of each two
    keys                                 g0  g1 ..  valid with `o_valid`
    ```

    Parameters
    ----------
    n : int
        Elements of an accumulator row.
    lanes : int
        Elements of a group, a power of two up to n.
    operation : layout
        :func:`hw.spec.operations.activate_layout`.

    Members
    -------
    op : operation, in
        Constant while `run` is 1.
    run : 1, in
        An operation is in progress. It is 0 for at least one cycle before each operation.
    again : 1, in
    end : in
        Index of the last group in the last tile.
    mask : lanes, in
        Lanes of the last group that have an element.
    may_begin, may_keep : 1, in
        `may_begin`: the next row may begin. `may_keep`: a place is free for a group of the passes that `o_keep` marks.
    begins, keeps : 1, out
        `begins`: a row begins. `keeps`: a group with `o_keep` is read.
    sums : sums port, out
    o_valid, o_first, o_last : 1, out
        `o_valid`: a group of a row is present. `o_first`, `o_last`: it is the first or the last group of the row.
    o_search, o_keep : 1, out
        `o_search`: the group is for the search. `o_keep`: the group is for the sum or the results.
    keys : 32 lanes, out
        The elements as :func:`.ordered_key`; 0 for lanes without an element.
    """

    #: Cycles from the read of a group to its keys.
    latency = 3

    def __init__(self, *, n, lanes, operation):
        self.n = n
        self.lanes = lanes
        self.groups = n // lanes
        self.normalize = "normalize" in dict(operation)
        flags = ("valid", "first", "last", "search", "keep")
        super().__init__(
            {
                "op": In(operation),
                "run": In(1),
                "again": In(1),
                "end": In(range(self.groups)),
                "mask": In(lanes),
                "may_begin": In(1),
                "may_keep": In(1),
                "begins": Out(1),
                "keeps": Out(1),
                "sums": Out(sums_port(operation["acc"].shape, n)),
                **{f"o_{name}": Out(1) for name in flags},
                "keys": Out(32 * lanes),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op = self.op
        m.submodules.counter = counter = GroupCounter(groups=self.groups, tiles=op.rows1.shape())
        turn, first = Signal(2), Signal(init=1)  # the pass over the row: 0, or with `again`, 0 to 2
        left, read = Signal.like(op.rows), Signal()
        searching, keep = turn == 0, (turn != 0) | ~self.again
        m.d.comb += [
            read.eq(self.run & left.any() & (~(searching & first) | self.may_begin) & (~keep | self.may_keep)),
            self.begins.eq(read & searching & first),
            self.keeps.eq(read & keep),
            counter.step.eq(read),
            counter.tiles.eq(op.rows1),
            counter.end.eq(self.end),
            self.sums.read.eq(read & (counter.group == 0)),
        ]
        self._walk(m, counter, read, first, left, turn)

        # The elements of the group that was read, one of each two lanes, then one of all lanes.
        chosen, mask = Signal(self.groups, reset_less=True), Signal(self.lanes, reset_less=True)
        m.d.sync += [chosen.eq(1 << counter.group), mask.eq(self.mask | (~counter.last).replicate(self.lanes))]
        names = ("valid", "first", "last", "search", "keep")
        flags = Cat(read, first, counter.last, searching, keep)
        pair_mask = Signal(self.lanes, reset_less=True)
        m.d.sync += pair_mask.eq(mask)
        for stage in range(self.latency):
            moved = Signal(len(names), name=f"flags_{stage}")
            m.d.sync += moved.eq(flags)
            flags = moved
        m.d.comb += [getattr(self, f"o_{name}").eq(flag) for name, flag in zip(names, flags)]
        width = 32 * self.lanes
        rows = [self.sums.data.word_select(g, width) & chosen[g].replicate(width) for g in range(self.groups)]
        if self.groups == 1:
            rows = [self.sums.data]
        pairs = [Signal(width, name=f"pair_{index}", reset_less=True) for index in range(-(-self.groups // 2))]
        m.d.sync += [pair.eq(reduce(or_, rows[2 * index : 2 * index + 2])) for index, pair in enumerate(pairs)]
        keys, group = Signal(width, reset_less=True), reduce(or_, pairs)
        for lane in range(self.lanes):
            key = ordered_key(group.word_select(lane, 32))
            m.d.sync += keys.word_select(lane, 32).eq(key & pair_mask[lane].replicate(32))
        m.d.comb += self.keys.eq(keys)
        return m

    def _walk(self, m, counter, read, first, left, turn):
        op = self.op
        row, acc = Signal.like(op.acc, reset_less=True), Signal.like(op.acc, reset_less=True)
        m.d.comb += self.sums.row.eq(acc)
        with m.If(~self.run):
            m.d.sync += [row.eq(op.acc), acc.eq(op.acc), left.eq(op.rows)]
        with m.Elif(read):
            m.d.sync += first.eq(counter.last)
            with m.If(counter.tile_end):
                m.d.sync += acc.eq(acc + op.rows1_stride)
            with m.If(counter.last):
                m.d.sync += [turn.eq(turn + 1), acc.eq(row)]
                with m.If(~self.again | (turn == (2 + op.normalize if self.normalize else 2))):
                    m.d.sync += [turn.eq(0), row.eq(row + 1), acc.eq(row + 1), left.eq(left - 1)]
