"""The loops of the activation unit: from an operation to the accumulator rows that it reads, one a cycle."""

from functools import reduce
from operator import or_

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.isa import Format, FunctionCode, Task

__all__ = ["UNDER_WAY", "RowWalker", "has_operand", "step_layout"]

#: So many rows of MULTIPLY are under way at most, from an operand that is read to the vector that is written; a power of two.
UNDER_WAY = 8


def step_layout(activate):
    """A row that is read: whether it is the `first` of its window, and whether it makes the window `complete`, so that a vector
    comes of it; and of this vector the `row` of the unified buffer, whether it is the upper `half` of a binary32 row, and the
    `last` of its operation.

    A row that has an operand is read twice, too: the first step asks for it, at `row`, the second one (`half`) gives the
    vector."""
    return data.StructLayout(
        {
            "valid": 1,
            "first": 1,
            "complete": 1,
            "half": 1,
            "last": 1,
            "row": activate["row"].shape,
            "task": Task,
            "function": FunctionCode,
            "format": activate["format"].shape,
            "lanes": activate["lanes"].shape,
            "slot": activate["tag"].shape["slot"].shape,
            **({"select": 1} if "select" in dict(activate) else {}),
        }
    )


def has_operand(row, tasks):
    """Whether the rows of an operation, or the row of a step, have an operand: those of SELECT, and in cores with `tasks` of
    MULTIPLY and LOAD_TABLE."""
    selects = [row.select] if "select" in dict(row.shape()) else []
    return reduce(or_, [*selects, row.task != Task.RESULTS] if tasks else selects)


def _way(again, across, down, left0, left1):
    """Which way leads on from a step where so much ends, as of :meth:`RowWalker._choose_way`, a bit for each, and whether it is
    one of the last two; whether a window is complete with the step, and whether this is the operation's last. The last row of
    a window is there `again`."""
    complete = across & down
    whole = complete & ~again
    ways = Cat(~across, across & ~down, complete & again, whole & ~left0, whole & left0)
    return {"way": ways, "whole": whole, "complete": complete, "last": whole & left0 & left1}


def _taken(now, numbers):
    """Whether one of these ways is taken, from as few flags as tell it."""

    def flags(numbers):
        whole = {3, 4} <= numbers
        return [now.whole] * whole + [now.way[number] for number in sorted(numbers - ({3, 4} if whole else set()))]

    some, others = flags(numbers), flags({*range(5)} - numbers)
    return Cat(some).any() if len(some) <= len(others) else ~Cat(others).any()


class RowWalker(wiring.Component):
    """The address generator of the activation unit. It walks the windows of each operation, and the rows of each window: the
    first row in the cycle in which the operation comes, the next operation without a gap.

    A window is a single row unless the layout has larger ones. The last row of a window is read twice for a result of two
    vectors, once for each, and a row that has an operand once for that and once for its result.

    Parameters
    ----------
    activate : layout
        :func:`hw.spec.operations.activate_layout`.

    Members
    -------
    i : stream of activate, in
    there : 1, out
        There is an operation.
    op : activate, out
        The operation, as it came.
    o : step, out
        :func:`step_layout`; valid unless `hold`.
    acc : accumulator row, out
        The row that the step reads.
    advance : 1, in
        Ends the step, unless `hold`.
    hold : 1, in
        There is no step in this cycle.
    in_turn : 1, out
        With tasks or SELECT: the step before was this operation's, and what this one reads is none of the vectors that are still
        to be written; 0 before each row of LOAD_TABLE.
    word : place in the function table, out
        With tasks: where it goes, counted in vectors.
    """

    def __init__(self, *, activate):
        fields = dict(activate)
        self._has_windows, self._has_tasks, self._has_select = (name in fields for name in ("single", "task", "select"))
        self._has_operands = "operand" in fields
        super().__init__(
            {
                "i": In(stream.Signature(activate)),
                "there": Out(1),
                "op": Out(activate),
                "o": Out(step_layout(activate)),
                "acc": Out(activate["acc"].shape),
                "advance": In(1),
                "hold": In(1),
                **({"in_turn": Out(1)} if self._has_operands else {}),
                **({"word": Out(activate["word"].shape)} if self._has_tasks else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op, held, running = self.op, Signal.like(self.op), Signal()
        idle = Signal(init=1)  # not `running`, which many see: for the flags, which decide what happens
        last_half, last, moves = Signal(), Signal(), Signal()

        # Where the walk is: at its beginning, or where a register says.
        start = self._start()
        cursor = data.StructLayout({"half": 1, **{name: value.shape() for name, value in start.items()}})
        now, following, register = Signal(cursor), Signal(cursor), Signal(cursor)

        def either(name, first, later):
            flag = name in ("select", "task", "twice", "way") or name in cursor.members and cursor[name].width == 1
            return Mux(idle, first, later) if flag else Mux(running, later, first)

        m.d.comb += [
            *(now[name].eq(either(name, value, register[name])) for name, value in start.items()),
            now.half.eq(register.half),  # every operation ends with a whole row
            following.eq(now),
            *(op[name].eq(either(name, self.i.p[name], held[name])) for name, _ in op.shape()),
            self.there.eq(running | self.i.valid),
            moves.eq(self.advance & ~self.hold),
            self.i.ready.eq(moves & ~running),
            *([] if self._has_select else [last_half.eq(now.half | ~self._is_twice(op))]),
            self.acc.eq(now.acc),
            self.o.valid.eq(self.there & ~self.hold),
            self.o.half.eq(now.half),
            self.o.last.eq(last),
            self.o.row.eq(self._row(op, now)),
            self.o.task.eq(op.task if self._has_tasks else Task.RESULTS),
            *(self.o[name].eq(op[name]) for name in ("function", "format", "lanes")),
            self.o.slot.eq(op.tag.slot),
        ]
        with m.If(~running):
            m.d.sync += held.eq(self.i.payload)
        with m.If(moves):
            m.d.sync += [running.eq(self.there & ~last), idle.eq(~self.there | last), register.eq(following)]
            m.d.sync += register.half.eq(self.there & following.half)
        if self._has_operands:
            m.d.comb += following.operand.eq(now.operand + 1)
        if self._has_tasks:
            m.d.comb += [self.word.eq(now.word), following.word.eq(now.word + now.half)]
        if not self._has_select:
            (self._walk_windows if self._has_windows else self._walk_rows)(m, now, following, last_half, last)
        else:
            self._choose_way(m, now, following)
            m.d.comb += [self.o.select.eq(op.select), self.o.complete.eq(now.complete), last.eq(now.last)]
        if self._has_operands:
            self._walk_operands(m, now, following)
            with m.If(moves):
                m.d.sync += self.in_turn.eq(self.there & ~last & (~now.half | self._goes_elsewhere(op, now)))
        return m

    def _is_twice(self, op):
        """Whether the last row of a window is read twice, without SELECT."""
        return op.format | has_operand(op, True) if self._has_tasks else op.format

    def _asks(self, op, now):
        """Whether a step asks for an operand."""
        return has_operand(op, self._has_tasks) & ~now.half

    def _row(self, op, now):
        """Row of the unified buffer that a step reads or writes."""
        result = now.row
        if self._has_select:
            to_second = Mux(op.format == Format.PLANES, op.rows, 1)
            result = now.row + Mux(now.half & ~has_operand(op, self._has_tasks), to_second, 0)
        return Mux(self._asks(op, now), now.operand, result) if self._has_operands else result

    def _start(self):
        """Every variable of the walk, and what it begins with."""
        op = self.i.p
        start = {"acc": op.acc, "row": op.row, "left0": op.rows}
        if self._has_tasks:
            start |= {"operand": op.operand, "word": op.word}
        if self._has_select:
            start |= {"operand": op.operand, "outer_operand": op.operand}
            start |= _way(op.twice, *(op.single[name] for name in ("across", "down", "left0", "left1")))
        if self._has_windows:
            start |= {
                "outer": op.acc,
                "window": op.acc,
                "window_row": op.acc,
                "outer_row": op.row,
                "left1": op.rows1,
                "across": op.window0,
                "down": op.window1,
                "first": Const(1, 1),
                **{f"last_{name}": op.single[name] for name in ("left0", "left1", "across", "down")},
            }
        return start

    def _walk_rows(self, m, now, following, last_half, last):
        m.d.comb += [
            self.o.first.eq(1),
            self.o.complete.eq(1),
            last.eq(last_half & (now.left0 == 1)),
            following.half.eq(~last_half),
            following.row.eq(now.row + (~self._asks(self.op, now) if self._has_tasks else 1)),
        ]
        with m.If(last_half):
            m.d.comb += [following.left0.eq(now.left0 - 1), following.acc.eq(now.acc + 1)]

    def _ways(self, now):
        """The ways to the following step, as what changes: to the next row in a row of the window, to the next row of the window,
        to the same row again, to any window, and with that to the next one or to one of the next outer row.

        `outer`, `window` and `window_row` are where the present outer row, window, and row of the window begin."""
        op = self.op
        # With SELECT `row` stays at a result's first vector, and with an operand there is no other.
        second, to_next = now.row + (~self._asks(op, now) if self._has_tasks else 1), 1
        if self._has_select:
            second, to_next = now.row, op.buffer_step

        def count(name):
            return {name: now[name] - 1, f"last_{name}": now[name] == 2}

        def begin(name, value):
            return {name: value, f"last_{name}": op.single[name]}

        def go_to(acc, *levels):
            return {name: acc for name in ("acc", *levels)}

        begin_row, begin_window = begin("across", op.window0), begin("down", op.window1)
        return (
            count("across") | go_to(now.acc + op.window0_stride),
            begin_row | count("down") | go_to(now.window_row + op.window1_stride, "window_row"),
            {"half": Const(1), "row": second, "first": now.first},
            begin_row | begin_window | {"half": Const(0), "first": Const(1)},
            count("left0") | go_to(now.window + op.rows0_stride, "window_row", "window") | {"row": now.row + to_next},
            begin("left0", op.rows)
            | count("left1")
            | go_to(now.outer + op.rows1_stride, "window_row", "window", "outer")
            | {name: now.outer_row + op.buffer_stride for name in ("row", "outer_row")},
        )

    def _walk_windows(self, m, now, following, last_half, last):
        m.d.comb += [
            self.o.first.eq(now.first),
            self.o.complete.eq(now.last_across & now.last_down),
            last.eq(self.o.complete & last_half & now.last_left0 & now.last_left1),
            following.first.eq(0),
        ]
        in_row, to_row, again, to_any_window, to_window, to_outer_row = (
            [following[name].eq(value) for name, value in way.items()] for way in self._ways(now)
        )
        with m.If(~now.last_across):
            m.d.comb += in_row
        with m.Elif(~now.last_down):
            m.d.comb += to_row
        with m.Elif(~last_half):
            m.d.comb += again
        with m.Else():
            m.d.comb += to_any_window
            with m.If(~now.last_left0):
                m.d.comb += to_window
            with m.Else():
                m.d.comb += to_outer_row

    def _choose_way(self, m, now, following):
        """The same with SELECT, where `way` was found with the step before."""
        in_row, to_row, again, to_any_window, to_window, to_outer_row = self._ways(now)
        ways = [in_row, to_row, again, to_any_window | to_window, to_any_window | to_outer_row]
        stays = {name: now[name] for way in ways for name in way} | {"first": Const(0)}
        for way in ways:
            ends = (way.get(name, now[name]) for name in ("last_across", "last_down", "last_left0", "last_left1"))
            way |= _way(self.op.twice & ~way.get("half", now.half), *ends)
        m.d.comb += self.o.first.eq(now.first)
        for name in ways[0] | stays:
            choices = {}  # a value, and on which ways
            for number, way in enumerate(ways):
                value = way.get(name, stays.get(name))
                choices.setdefault(id(value), (value, set()))[1].add(number)
            width = len(following[name])
            chosen = (Value.cast(value)[:width] & _taken(now, on).replicate(width) for value, on in choices.values())
            m.d.comb += following[name].eq(reduce(or_, chosen))

    def _walk_operands(self, m, now, following):
        """After a row's first step the next row's operand takes its place, so that the second step can tell where it is.
        `outer_operand` is where the operands of the present outer row begin."""
        with m.If(now.half):
            m.d.comb += following.operand.eq(now.operand)
        if self._has_select:
            with m.Elif(now.last_left0):
                stride = self.op.operand_stride
                m.d.comb += [following[name].eq(now.outer_operand + stride) for name in ("operand", "outer_operand")]

    def _goes_elsewhere(self, op, now):
        """Whether what is under way at the second step of a row goes elsewhere than to the next row's operand: with SELECT this
        row's vector, with MULTIPLY the vectors of some rows. Those of rows before are as many rows before this one."""
        elsewhere = now.row != now.operand
        if self._has_tasks:
            product = (op.task == Task.MULTIPLY) & (now.row - now.operand)[exact_log2(UNDER_WAY) :].any()
            elsewhere = Mux(op.select, elsewhere, product) if self._has_select else product
        return elsewhere
