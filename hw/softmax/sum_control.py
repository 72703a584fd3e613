"""The control of the second pass. It selects the group that enters the lanes, and delays the flags of the groups in flight."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .aligner import Aligner
from .group_counter import GroupCounter
from .layouts import GROUP, SCALE
from .softmax_lane import SoftmaxLane

__all__ = ["SumControl"]


class SumControl(wiring.Component):
    """Sends the groups of each row through the lanes once. With `again`, it sends the groups twice: first for the sum, and then
    for the powers; with `thrice`, it then sends them once more.

    A group takes one cycle. In a row with a left shift, it takes 1 + `left` cycles, so nothing in the lanes stalls.

    ```
    cycle     0      1      2      3      4      5          one row of two groups, then another one
    scale.p   s0                   s1                       taken with the last group of the row before
    read             g0     g1            h0     h1
    lanes.key                      g0     g1                two cycles after `read`
    ```

    Parameters
    ----------
    groups : int
        Groups of a tile.
    tiles : shape
    align, later : int
        Cycles from the key of a group to its `base`, and from the output `loaded` to `powered`. Defaults: the latencies of
        :class:`.SoftmaxLane`.
    normalize : bool
        True to add the member `thrice`.

    Members
    -------
    tiles, end : in
        See :class:`.GroupCounter`.
    again, thrice : 1, in
    scale : stream of SCALE, in
    readable, may_keep, may_add : 1, in
        `readable`: a group can be read. `may_keep`: a place is free for the powers of the group. `may_add`: a place is free for
        the sum that the group completes.
    read, keeps, adds : 1, out
        `read`: a group is read. `keeps`: the group takes a place for its powers. `adds`: the group takes a place for a sum.
    common, base, load : out
        Inputs of the lanes; see :class:`.SoftmaxLane`.
    loaded, powered, added : GROUP, out
        `loaded`: the group whose distance is in its register. `powered`: the group whose `power` is at the outputs of the
        lanes. `added`: the group whose `term` is at the outputs.
    """

    def __init__(self, *, groups, tiles, align=Aligner.latency, later=None, normalize=False):
        self.groups = groups
        self.align = align
        self.later = SoftmaxLane.power_latency - Aligner.latency - 1 if later is None else later
        self.normalize = normalize
        super().__init__(
            {
                "tiles": In(tiles),
                "end": In(range(groups)),
                "again": In(1),
                "scale": In(stream.Signature(SCALE)),
                **{name: In(1) for name in ("readable", "may_keep", "may_add")},
                **{name: Out(1) for name in ("read", "keeps", "adds")},
                "common": Out(8),
                "base": Out(28),
                "load": Out(1),
                **({"thrice": In(1), "loaded": Out(GROUP)} if normalize else {}),
                "powered": Out(GROUP),
                "added": Out(GROUP),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.counter = counter = GroupCounter(groups=self.groups, tiles=self.tiles.shape())
        scale, active, second, first = Signal(SCALE, reset_less=True), Signal(), Signal(), Signal(init=1)
        pause = Signal(len(scale.left))
        sums, keeps = ~second, second | ~self.again
        ends = self.read & counter.last
        takes = ends & keeps
        if self.normalize:
            third = Signal()
            more = self.thrice & self.again & second & ~third  # a pass follows that keeps the groups once more
            takes &= ~more
        m.d.comb += [
            self.read.eq(
                active & (pause == 0) & self.readable & (~keeps | self.may_keep) & (~(sums & counter.last) | self.may_add)
            ),
            self.keeps.eq(self.read & keeps),
            self.adds.eq(ends & sums),
            self.scale.ready.eq(~active | takes),
            counter.step.eq(self.read),
            counter.tiles.eq(self.tiles),
            counter.end.eq(self.end),
        ]
        with m.If(self.scale.ready):
            m.d.sync += [active.eq(self.scale.valid), scale.eq(self.scale.payload)]
        with m.If(self.read):
            m.d.sync += [first.eq(counter.last), pause.eq(scale.left)]
        with m.Elif(pause != 0):
            m.d.sync += pause.eq(pause - 1)
        with m.If(ends & self.again):
            if self.normalize:
                m.d.sync += [second.eq(~second | more), third.eq(more)]
            else:
                m.d.sync += second.eq(~second)

        # The flags of a group, up to the register of the distance.
        group = Signal(GROUP, name="group_0")
        m.d.comb += [
            group.valid.eq(self.read),
            group.first.eq(first),
            group.last.eq(counter.last),
            group.adds.eq(sums),
            group.keeps.eq(keeps),
            group.infinite.eq(scale.infinite),
        ]
        numbers, left = scale.common, scale.left
        base = scale.base
        for stage in range(1, 3 + self.align):
            moved, shift, value = (
                Signal(GROUP, name=f"group_{stage}"),
                Signal(5, name=f"left_{stage}", reset_less=True),
                Signal(28, name=f"base_{stage}", reset_less=True),
            )
            m.d.sync += [moved.eq(group), shift.eq(left), value.eq(base)]
            group, left, base = moved, shift, value
            if stage <= 2:
                common = Signal(8, name=f"common_{stage}", reset_less=True)
                m.d.sync += common.eq(numbers)
                numbers = common
        m.d.comb += [self.common.eq(numbers), self.base.eq(base), self.load.eq(group.valid)]
        self._shift(m, group, left)
        return m

    def _shift(self, m, group, left):
        """Drives the flags of the groups after the stage that computes the distance. A group stays in that stage for `left` more
        cycles."""
        held, steps = Signal(GROUP, name="held"), Signal(len(left))
        with m.If(group.valid):
            m.d.sync += [held.eq(group), steps.eq(left)]
        with m.Elif(steps != 0):
            m.d.sync += steps.eq(steps - 1)
        with m.Else():
            m.d.sync += held.valid.eq(0)
        moved = Signal(GROUP, name="shifted")
        m.d.comb += [moved.eq(held), moved.valid.eq(held.valid & (steps == 0))]
        if self.normalize:
            m.d.comb += self.loaded.eq(moved)
        for stage in range(self.later):
            later = Signal(GROUP, name=f"powered_{stage}")
            m.d.sync += later.eq(moved)
            moved = later
        m.d.comb += self.powered.eq(moved)
        m.d.sync += self.added.eq(moved)
