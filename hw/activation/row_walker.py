"""The address generator of the activation unit: from an operation to the accumulator rows that it reads, one a cycle."""

from functools import reduce
from operator import or_

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.isa import Format, FunctionCode, Task

__all__ = ["UNDER_WAY", "RowWalker", "has_operand", "step_layout"]

#: Most rows of MULTIPLY in flight, from the read of the operand to the write of the vector; a power of two.
UNDER_WAY = 8


def step_layout(activate):
    """Returns the layout of a step, which reads one row of the accumulators.

    `first` marks the first row of a window. `complete` marks the last row of a window, which gives a vector. `row` is the row of
    this vector in the unified buffer, `half` marks the upper half of a binary32 row, and `last` the last vector of the operation.

    A row with an operand takes two steps, too. The first step requests the operand from `row`. The second step (`half`) gives
    the vector.
    """
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
    """Returns a signal that is 1 if the rows of an operation, or of a step, have an operand. Rows of SELECT have an operand. In
    cores with `tasks`, rows of MULTIPLY and LOAD_TABLE have one too."""
    selects = [row.select] if "select" in dict(row.shape()) else []
    return reduce(or_, [*selects, row.task != Task.RESULTS] if tasks else selects)


def _way(again, across, down, left0, left1):
    """Returns the flags of a step: the one-hot `way` to the next step, as in :meth:`RowWalker._choose_way`, and its summaries.

    `whole` is 1 for the last two ways. `complete` marks the last row of a window, and `last` the last step of the operation.
    `across`, `down`, `left0` and `left1` say that the step is the last of these loops; `again` repeats the last row of a window.
    """
    complete = across & down
    whole = complete & ~again
    ways = Cat(~across, across & ~down, complete & again, whole & ~left0, whole & left0)
    return {"way": ways, "whole": whole, "complete": complete, "last": whole & left0 & left1}


def _taken(now, numbers):
    """Returns a signal that is 1 if one of the ways `numbers` is taken. It is computed from as few flags as possible."""

    def flags(numbers):
        whole = {3, 4} <= numbers
        return [now.whole] * whole + [now.way[number] for number in sorted(numbers - ({3, 4} if whole else set()))]

    some, others = flags(numbers), flags({*range(5)} - numbers)
    return Cat(some).any() if len(some) <= len(others) else ~Cat(others).any()


class RowWalker(wiring.Component):
    """The address generator of the activation unit. It walks the windows of each operation, and the rows of each window.

    Throughput is one row a cycle. The first row comes in the cycle in which the operation arrives, and the next operation follows
    without a gap.

    A window is a single row unless the layout has larger windows. The last row of a window is read twice if its result has two
    vectors. A row with an operand is read twice, too: once for the operand, and once for the result.

    Parameters
    ----------
    activate : layout
        :func:`hw.spec.operations.activate_layout`.

    Members
    -------
    i : stream of activate, in
    there : 1, out
        `op` is valid.
    op : activate, out
        The current operation, unchanged.
    o : step, out
        :func:`step_layout`; valid unless `hold`.
    acc : accumulator row, out
        The row that the step reads.
    advance : 1, in
        Ends the step, unless `hold`.
    hold : 1, in
        Stalls the walker: this cycle has no step.
    in_turn : 1, out
        Only with tasks or SELECT. The previous step belongs to the same operation, and the operand of this step has no hazard:
        it is not one of the vectors in flight.
    word : place in the function table, out
        Only with tasks. Place of the words, counted in vectors.
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
        idle = Signal(init=1)  # equals ~running, with a low fan-out: for the flags, which are on the critical path
        last_half, last, moves = Signal(), Signal(), Signal()

        # The state of the walk: the start of an operation, or a register.
        start = self._start()
        cursor = data.StructLayout({"half": 1, **{name: value.shape() for name, value in start.items()}})
        now, following, register = Signal(cursor), Signal(cursor), Signal(cursor)

        def either(name, first, later):
            flag = name in ("select", "task", "twice", "way") or name in cursor.members and cursor[name].width == 1
            return Mux(idle, first, later) if flag else Mux(running, later, first)

        m.d.comb += [
            *(now[name].eq(either(name, value, register[name])) for name, value in start.items()),
            now.half.eq(register.half),  # 0 at a start: every operation ends with a whole row
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
        """Returns a signal that is 1 if the last row of a window is read twice, for cores without SELECT."""
        return op.format | has_operand(op, True) if self._has_tasks else op.format

    def _asks(self, op, now):
        return has_operand(op, self._has_tasks) & ~now.half

    def _row(self, op, now):
        result = now.row
        if self._has_select:
            to_second = Mux(op.format == Format.PLANES, op.rows, 1)
            result = now.row + Mux(now.half & ~has_operand(op, self._has_tasks), to_second, 0)
        return Mux(self._asks(op, now), now.operand, result) if self._has_operands else result

    def _start(self):
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
        """Returns the ways to the next step, each as the variables that it changes.

        The ways are: the next accumulator row across the window; the next line down the window; the same row again; any new
        window; and, together with this, the next window of the same outer row, or the first window of the next outer row.
        `outer`, `window` and `window_row` are the first accumulator rows of the current outer row, window and window line.
        """
        op = self.op
        # With SELECT, `row` stays at the first vector of a result. A result with an operand has a single vector.
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
        """Drives the next step in cores with SELECT, from the one-hot `way` that the previous step computed."""
        in_row, to_row, again, to_any_window, to_window, to_outer_row = self._ways(now)
        ways = [in_row, to_row, again, to_any_window | to_window, to_any_window | to_outer_row]
        stays = {name: now[name] for way in ways for name in way} | {"first": Const(0)}
        for way in ways:
            ends = (way.get(name, now[name]) for name in ("last_across", "last_down", "last_left0", "last_left1"))
            way |= _way(self.op.twice & ~way.get("half", now.half), *ends)
        m.d.comb += self.o.first.eq(now.first)
        for name in ways[0] | stays:
            choices = {}  # a value, and the ways that choose it
            for number, way in enumerate(ways):
                value = way.get(name, stays.get(name))
                choices.setdefault(id(value), (value, set()))[1].add(number)
            width = len(following[name])
            chosen = (Value.cast(value)[:width] & _taken(now, on).replicate(width) for value, on in choices.values())
            m.d.comb += following[name].eq(reduce(or_, chosen))

    def _walk_operands(self, m, now, following):
        """Drives the address of the next operand. It advances after the first step of a row, as the second step compares it.

        `outer_operand` is the address of the first operand of the current outer row."""
        with m.If(now.half):
            m.d.comb += following.operand.eq(now.operand)
        if self._has_select:
            with m.Elif(now.last_left0):
                stride = self.op.operand_stride
                m.d.comb += [following[name].eq(now.outer_operand + stride) for name in ("operand", "outer_operand")]

    def _goes_elsewhere(self, op, now):
        """Returns a signal for the second step of a row. It is 1 if no vector in flight is written to the operand of the next
        row.

        With SELECT one vector is in flight, the vector of this row. With MULTIPLY there are several: the vector of this row, and
        the vectors of the preceding rows at successive lower addresses. With LOAD_TABLE there is none."""
        elsewhere = now.row != now.operand
        if self._has_tasks:
            product = (op.task == Task.LOAD_TABLE) | (now.row - now.operand)[exact_log2(UNDER_WAY) :].any()
            elsewhere = Mux(op.select, elsewhere, product) if self._has_select else product
        return elsewhere
