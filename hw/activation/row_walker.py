"""The loops of the activation unit: from an operation to the accumulator rows that it reads, one a cycle."""

from amaranth import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..spec.isa import Format, Function, Task

__all__ = ["RowWalker", "step_layout"]


def step_layout(activate):
    """A row that is read: whether it is the `first` of its window, and whether it makes the window `complete`, so that a vector
    comes of it; and of this vector the `row` of the unified buffer, whether it is the upper `half` of a binary32 row, and the
    `last` of its operation."""
    return data.StructLayout(
        {
            "valid": 1,
            "first": 1,
            "complete": 1,
            "half": 1,
            "last": 1,
            "row": activate["row"].shape,
            "task": Task,
            "function": Function,
            "format": activate["format"].shape,
            "lanes": activate["lanes"].shape,
            "slot": activate["tag"].shape["slot"].shape,
        }
    )


class RowWalker(wiring.Component):
    """The address generator of the activation unit. It walks the windows of each operation, and the rows of each window: the
    first row in the cycle in which the operation comes, the next operation without a gap.

    A window is a single row unless the layout has larger ones. The last row of a window is read twice for a result in
    binary32, once for each half.

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
    operand : row of the unified buffer, out
        With tasks: the row that the step reads.
    word : place in the function table, out
        With tasks: where it goes, counted in vectors.
    """

    def __init__(self, *, activate):
        self._has_windows, self._has_tasks = ("single" in dict(activate), "task" in dict(activate))
        super().__init__(
            {
                "i": In(stream.Signature(activate)),
                "there": Out(1),
                "op": Out(activate),
                "o": Out(step_layout(activate)),
                "acc": Out(activate["acc"].shape),
                "advance": In(1),
                "hold": In(1),
                **({"operand": Out(activate["operand"].shape), "word": Out(activate["word"].shape)} if self._has_tasks else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op, held, running = self.op, Signal.like(self.op), Signal()
        last_half, last, moves = Signal(), Signal(), Signal()

        # Where the walk is: at its beginning, or where a register says.
        start = self._start()
        cursor = data.StructLayout({"half": 1, **{name: value.shape() for name, value in start.items()}})
        now, following, register = Signal(cursor), Signal(cursor), Signal(cursor)
        m.d.comb += [
            *(now[name].eq(Mux(running, register[name], value)) for name, value in start.items()),
            now.half.eq(register.half),  # every operation ends with a whole row
            following.eq(now),
            op.eq(Mux(running, held, self.i.payload)),
            self.there.eq(running | self.i.valid),
            moves.eq(self.advance & ~self.hold),
            self.i.ready.eq(moves & ~running),
            last_half.eq((op.format == Format.BFLOAT16) | now.half),
            self.acc.eq(now.acc),
            self.o.valid.eq(self.there & ~self.hold),
            self.o.half.eq(now.half),
            self.o.last.eq(last),
            self.o.row.eq(now.row),
            self.o.task.eq(op.task if self._has_tasks else Task.RESULTS),
            *(self.o[name].eq(op[name]) for name in ("function", "format", "lanes")),
            self.o.slot.eq(op.tag.slot),
        ]
        with m.If(moves):
            m.d.sync += [running.eq(self.there & ~last), held.eq(op), register.eq(following)]
            m.d.sync += register.half.eq(self.there & following.half)
        if self._has_tasks:
            # These have no windows, and each row one vector.
            m.d.comb += [
                *(getattr(self, name).eq(now[name]) for name in ("operand", "word")),
                *(following[name].eq(now[name] + 1) for name in ("operand", "word")),
            ]
        (self._walk_windows if self._has_windows else self._walk_rows)(m, now, following, last_half, last)
        return m

    def _start(self):
        """Every variable of the walk, and what it begins with."""
        op = self.i.p
        start = {"acc": op.acc, "row": op.row, "left0": op.rows}
        if self._has_tasks:
            start |= {"operand": op.operand, "word": op.word}
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
            following.row.eq(now.row + 1),
        ]
        with m.If(last_half):
            m.d.comb += [following.left0.eq(now.left0 - 1), following.acc.eq(now.acc + 1)]

    def _walk_windows(self, m, now, following, last_half, last):
        """`outer`, `window` and `window_row` are where the present outer row, window, and row of the window begin."""
        op = self.op

        def count(name):
            m.d.comb += [following[name].eq(now[name] - 1), following[f"last_{name}"].eq(now[name] == 2)]

        def begin(name, value):
            m.d.comb += [following[name].eq(value), following[f"last_{name}"].eq(op.single[name])]

        def go_to(acc, *levels):
            m.d.comb += [following[name].eq(acc) for name in ("acc", *levels)]

        m.d.comb += [
            self.o.first.eq(now.first),
            self.o.complete.eq(now.last_across & now.last_down),
            last.eq(self.o.complete & last_half & now.last_left0 & now.last_left1),
            following.first.eq(0),
        ]
        with m.If(~now.last_across):
            count("across")
            go_to(now.acc + op.window0_stride)
        with m.Elif(~now.last_down):
            begin("across", op.window0)
            count("down")
            go_to(now.window_row + op.window1_stride, "window_row")
        with m.Elif(~last_half):
            m.d.comb += [following.half.eq(1), following.row.eq(now.row + 1), following.first.eq(now.first)]
        with m.Else():
            begin("across", op.window0)
            begin("down", op.window1)
            m.d.comb += [following.half.eq(0), following.first.eq(1)]
            with m.If(~now.last_left0):
                count("left0")
                go_to(now.window + op.rows0_stride, "window_row", "window")
                m.d.comb += following.row.eq(now.row + 1)
            with m.Else():
                begin("left0", op.rows)
                count("left1")
                go_to(now.outer + op.rows1_stride, "window_row", "window", "outer")
                m.d.comb += [
                    following.row.eq(now.outer_row + op.buffer_stride),
                    following.outer_row.eq(now.outer_row + op.buffer_stride),
                ]
