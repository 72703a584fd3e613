"""The activation unit: accumulators -> maximum of a window -> function -> rounding -> unified buffer."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.comparator import Comparator
from ..lib.hierarchy import instantiate
from ..spec.isa import Format, Function, Task
from ..spec.unit_ports import unit_port
from .function_unit import FunctionUnit
from .row_walker import RowWalker, step_layout

__all__ = ["ActivationLane", "ActivationUnit"]


class ActivationLane(wiring.Component):
    """The function and the rounding of one lane; combinational.

    `value` is a sum as the cells make it: no subnormal, and every NaN 0x7FC00000. `keep` at 0 makes the lane +0, and so does a
    negative sum with `relu`. `rounded` is bfloat16, to nearest, ties to even; a sum that is no subnormal cannot round to one.
    With `cut` it is the next bfloat16 towards 0.

    Parameters
    ----------
    table : bool
        Whether there is `cut`.

    Members
    -------
    value : 32, in
        binary32.
    relu, keep, cut : 1, in
    binary32 : 32, out
    rounded : 16, out
        bfloat16.
    """

    def __init__(self, *, table=False):
        super().__init__(
            {
                "value": In(32),
                "relu": In(1),
                "keep": In(1),
                **({"cut": In(1)} if table else {}),
                "binary32": Out(32),
                "rounded": Out(16),
            }
        )
        self._cut = self.cut if table else Const(0)

    def elaborate(self, platform):
        m = Module()
        stays = self.keep & ~(self.relu & self.value[31])
        # Infinities and the NaN have no low bits: they never round.
        high, low = self.value[16:], self.value[:16]
        up = ~self._cut & low[15] & (low[:15].any() | high[0])
        m.d.comb += [
            self.rounded.eq((high & stays.replicate(16)) + (up & stays)),
            self.binary32.eq(self.value & stays.replicate(32)),
        ]
        return m


class ActivationUnit(wiring.Component):
    """Executes ACTIVATE, POOL, MULTIPLY and LOAD_TABLE operations in order.

    A row of the accumulators is read each cycle, and a vector written each cycle, while `grant` takes them; a window of R rows
    takes R cycles, and one more as binary32. The first vector comes three cycles after the operation, or four after the last row
    of a window of several; the next operation follows without a gap. A vector of the function TABLE comes eight cycles later, and
    one every n / `table_lanes` cycles; between such vectors and others the unit runs empty. It also does before each row of
    MULTIPLY and LOAD_TABLE, and then reads the unified buffer.

    Parameters
    ----------
    n : int
        Lanes.
    activate : layout
        :func:`hw.spec.operations.activate_layout`. Windows and tasks are there if it has them.
    table_lanes : int
        Lanes that the function table serves at a time.

    Members
    -------
    port : unit port of activate, in
        See :func:`hw.spec.unit_ports.unit_port`; `done` comes one cycle after the end.
    acc_row : accumulator row, out
    acc_read : 1, out
    sums : 32 n, in
        The row, one cycle after `acc_read`.
    write : 1, out
        Asks for `vector` to be written to `row`.
    read : 1, out
        Asks for `row` to be read.
    row : row of the unified buffer, out
    vector : 16 n, out
    grant : 1, in
        What is asked for happens in this cycle.
    operand : 16 n, in
        The row that was read, one cycle later.
    moves : 1, out
        Something was read or written.
    """

    def __init__(self, *, n, activate, table_lanes=0):
        self.n = n
        self.table_lanes = table_lanes
        self._activate = activate
        super().__init__(
            {
                "port": In(unit_port(activate)),
                "acc_row": Out(activate["acc"].shape),
                "acc_read": Out(1),
                "sums": In(32 * n),
                "write": Out(1),
                "read": Out(1),
                "row": Out(activate["row"].shape),
                "vector": Out(16 * n),
                "grant": In(1),
                "operand": In(16 * n),
                "moves": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op = self.port.op
        n, width = self.n, 16 * self.n
        # The vector at the end waits for the unified buffer, and with it all before it; vectors may wait for others, too.
        advance, go_on = Signal(), Signal()
        m.submodules.walker = walker = RowWalker(activate=self._activate)
        m.d.comb += [
            walker.i.payload.eq(op.payload),
            walker.i.valid.eq(op.valid),
            op.ready.eq(walker.i.ready),
            walker.advance.eq(go_on),
            self.acc_row.eq(walker.acc),
            self.acc_read.eq(go_on),
        ]

        # Stage `read`: the memory gives the sums. Stage `value`: they stand in a register, or else the largest of a window.
        step = step_layout(self._activate)
        read, value = Signal(step), Signal(step)
        sums, keep, relu, cut = Signal(32 * n, reset_less=True), Signal(n), Signal(), Signal()
        stages = [read, value]
        with m.If(go_on):
            m.d.sync += read.eq(walker.o)
        if "single" in dict(self._activate):
            passing, following = self._find_largest(m, platform, go_on, read, value, sums)
            stages.append(passing)
        else:
            following = read
            with m.If(go_on):
                m.d.sync += [value.eq(read), sums.eq(self.sums)]
        with m.If(go_on):
            m.d.sync += [
                keep.eq(Cat(following.lanes >= c + 1 for c in range(n))),
                relu.eq(following.function == Function.RELU),
                cut.eq(following.function == Function.TABLE),
            ]

        rounded, binary32 = Signal(width), Signal(2 * width)
        for c in range(n):
            instantiate(
                m,
                platform,
                lambda: ActivationLane(table=bool(self.table_lanes)),
                name=f"lane_{c}",
                module="tpu_activation_lane",
                domain=None,
                value=sums.word_select(c, 32),
                relu=relu,
                keep=keep[c],
                **({"cut": cut} if self.table_lanes else {}),
                rounded=rounded.word_select(c, 16),
                binary32=binary32.word_select(c, 32),
            )
        vector = Mux(value.format == Format.BFLOAT16, rounded, Mux(value.half, binary32[width:], binary32[:width]))

        # Stage `write`.
        end = data.StructLayout({"row": step["row"].shape, "slot": step["slot"].shape, "last": 1})
        given, written = Signal(end), Signal(end)
        m.d.comb += [
            *(given[name].eq(value[name]) for name, _ in end),
            self.row.eq(written.row),
            advance.eq(~self.write | self.grant),
        ]
        with m.If(advance):
            m.d.sync += [self.write.eq(value.valid), written.eq(given), self.vector.eq(vector)]
        m.d.sync += [self.port.done.eq(self.write & self.grant & written.last), self.port.done_slot.eq(written.slot)]
        m.d.comb += self.moves.eq((self.write & self.grant) | (go_on & read.valid & (len(stages) > 2 or self.table_lanes > 0)))
        if self.table_lanes:
            self._apply_table(m, walker, stages, advance, go_on, value, sums, keep, cut, vector, given, written)
        else:
            m.d.comb += go_on.eq(advance)
        return m

    def _find_largest(self, m, platform, go_on, read, value, sums):
        """Drives `value` and `sums`. The rows of a window pass a stage before them; there each is compared with the largest so
        far. A window of one row has no need of it, and overtakes it while it is empty. Returns that stage, and what `value`
        becomes."""
        passing = Signal(value.shape())
        row = Signal(32 * self.n, reset_less=True)
        overtakes, chosen, larger = Signal(), Signal(value.shape()), Signal(self.n)
        m.d.comb += [
            overtakes.eq(read.valid & read.first & read.complete & ~passing.valid),
            chosen.eq(Mux(overtakes, read, passing)),
        ]
        with m.If(go_on):
            m.d.sync += [
                passing.eq(read),
                passing.valid.eq(read.valid & ~overtakes),
                row.eq(self.sums),
                value.eq(chosen),
                value.valid.eq(chosen.valid & chosen.complete),
            ]
        for c in range(self.n):
            instantiate(
                m,
                platform,
                Comparator,
                name=f"comparator_{c}",
                module="tpu_comparator",
                domain=None,
                a=row.word_select(c, 32),
                b=sums.word_select(c, 32),
                o=larger[c],
            )
            with m.If(go_on & (overtakes | (passing.valid & (passing.first | larger[c])))):
                m.d.sync += sums.word_select(c, 32).eq(Mux(overtakes, self.sums, row).word_select(c, 32))
        return passing, chosen

    def _apply_table(self, m, walker, stages, advance, go_on, value, sums, keep, cut, vector, given, written):
        """The function unit stands between the rounding and the stage `write`, for those vectors that need it."""
        n, lanes = self.n, self.table_lanes
        m.submodules.functions = functions = FunctionUnit(n=n, lanes=lanes, tag=given.shape())
        to_functions, blocked = Signal(), Signal()
        # Where results are binary32, a sum goes with the lane of its upper half; the other lane is not kept.
        low = [sums.word_select(c, 32)[4:16] for c in range(n)]
        halves = Mux(value.half, keep[n // 2 :], keep[: n // 2])
        low_halves = Mux(value.half, Cat(low[n // 2 :]), Cat(low[: n // 2]))
        between = [
            Mux(value.format == Format.BFLOAT16, low[c], low_halves.word_select(c // 2, 12)) if c % 2 else low[c]
            for c in range(n)
        ]
        m.d.comb += [
            to_functions.eq(cut | (value.task != Task.RESULTS)),
            blocked.eq(value.valid & Mux(to_functions, ~functions.ready, functions.busy)),
            go_on.eq(advance & ~blocked),
            functions.advance.eq(advance),
            functions.i_valid.eq(value.valid & to_functions),
            functions.i_vector.eq(vector),
            functions.i_between.eq(Cat(between)),
            functions.i_keep.eq(Mux(value.format == Format.BFLOAT16, keep, Cat(Cat(Const(0, 1), bit) for bit in halves))),
            functions.i_task.eq(value.task),
            functions.i_tag.eq(given),
        ]
        with m.If(advance):
            m.d.sync += self.write.eq((value.valid & ~to_functions & ~functions.busy) | (functions.valid & functions.last))
            with m.If(functions.valid):
                m.d.sync += [self.vector.eq(Cat(self.vector[16 * lanes :], functions.group)), written.eq(functions.tag)]
        with m.If(functions.loaded & functions.loaded_tag.last):
            m.d.sync += [self.port.done.eq(1), self.port.done_slot.eq(functions.loaded_tag.slot)]

        # MULTIPLY and LOAD_TABLE read a vector before each of their rows, when all before it has been written.
        op, empty = walker.op, Signal()
        m.d.comb += [
            empty.eq(~(self.write | functions.busy | Cat(stage.valid for stage in stages).any())),
            walker.hold.eq(op.task != Task.RESULTS),
            functions.operand.eq(self.operand),
            functions.load.eq(op.task == Task.LOAD_TABLE),
            functions.word.eq(walker.word),
            *(getattr(functions, name).eq(op[name]) for name in ("first", "linear_low", "linear_high")),
        ]
        with m.FSM(name="operand"):
            with m.State("WAIT"):
                with m.If(walker.there & (op.task != Task.RESULTS) & empty):
                    m.d.sync += [written.row.eq(walker.operand), self.read.eq(1)]
                    m.next = "READ"
            with m.State("READ"):
                m.d.sync += written.row.eq(written.row)
                with m.If(self.grant):
                    m.d.sync += self.read.eq(0)
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += [functions.take.eq(1), walker.hold.eq(0)]
                m.next = "WAIT"
