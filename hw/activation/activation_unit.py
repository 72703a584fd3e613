"""The activation unit: accumulators -> maximum of a window -> function -> rounding -> condition -> unified buffer."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.comparator import Comparator
from ..lib.hierarchy import instantiate
from ..lib.skid_buffer import SkidBuffer
from ..spec.isa import Format, FunctionCode, Task
from ..spec.unit_ports import unit_port
from .activation_lane import ActivationLane
from .function_unit import FunctionUnit, product_cycles
from .index_lane import IndexLane
from .row_walker import RowWalker, has_operand, step_layout
from .select_lane import SelectLane

__all__ = ["ActivationUnit"]


class ActivationUnit(wiring.Component):
    """Executes ACTIVATE, POOL, MULTIPLY, LOAD_TABLE and SELECT operations in order.

    A row of the accumulators is read each cycle, and a vector written each cycle, while `grant` takes them; a window of R rows
    takes R cycles, and one more as binary32. The first vector comes three cycles after the operation, or four after the last row
    of a window of several; the next operation follows without a gap. A vector of the function TABLE comes eight cycles later, and
    one every n / `table_lanes` cycles; between such vectors and others the unit runs empty.

    Of SELECT, MULTIPLY and LOAD_TABLE each row has an operand, which is read before the vectors of rows before it are written.
    Where it is one of these vectors the unit runs empty before it reads, as it does before the first row, and before each row of
    LOAD_TABLE. The first operand is read two cycles after the operation came, or the unit ran empty. SELECT writes its vector
    three cycles later, and takes two cycles a row; MULTIPLY n / `table_lanes` + 9 cycles later, and takes n / `table_lanes`
    cycles a row, or three if `table_lanes` is n.

    Parameters
    ----------
    n : int
        Lanes.
    activate : layout
        :func:`hw.spec.operations.activate_layout`. Windows, tasks and SELECT are there if it has them.
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
        self._has_select, self._has_operands = (name in dict(activate) for name in ("select", "operand"))
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
        op, has_select, has_operands = self.port.op, self._has_select, self._has_operands
        n = self.n
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
            passing, following, lanes, indices = self._find_largest(m, platform, go_on, walker, read, value, sums)
            stages.append(passing)
        else:
            following, lanes = read, self._lanes(read)
            with m.If(go_on):
                m.d.sync += [value.eq(read), sums.eq(self.sums)]
                if has_operands:
                    m.d.sync += value.valid.eq(read.valid & ~self._asks(read))
        with m.If(go_on):
            m.d.sync += [
                # Of the format INDEX none, whose vector comes from elsewhere.
                keep.eq(Mux(following.format == Format.INDEX, 0, lanes) if has_select else lanes),
                relu.eq(following.function == FunctionCode.RELU),
                cut.eq(following.function == FunctionCode.TABLE),
            ]
        if has_select:
            kept = Signal(n)
            vector = indices | self._round_halves(m, platform, go_on, following, value, sums, relu, kept, cut)
        else:
            vector = self._round(m, platform, value, sums, relu, keep, cut)

        # Stage `write`.
        end = data.StructLayout({"row": step["row"].shape, "slot": step["slot"].shape, "last": 1})
        given, written = Signal(end), Signal(end)
        m.d.comb += [
            *(given[name].eq(value[name]) for name, _ in end),
            self.row.eq(written.row),
            *([] if has_operands else [advance.eq(~self.write | self.grant)]),
        ]
        if has_operands:
            asked = self._wait(m, advance, written)
            m.d.comb += [asked.write.eq(value.valid), asked.end.eq(given), asked.vector.eq(vector)]
            asks, condition = self._ask(m, walker, go_on, read, asked)
            taken, in_turn = Signal(), walker.in_turn
        else:
            with m.If(advance):
                m.d.sync += [self.write.eq(value.valid), written.eq(given), self.vector.eq(vector)]
        if has_select:
            m.d.comb += kept.eq(keep & self._select(m, platform, go_on, following, taken, **condition))
        if has_operands:
            m.d.sync += taken.eq(self.read & self.grant)
        m.d.sync += [self.port.done.eq(self.write & self.grant & written.last), self.port.done_slot.eq(written.slot)]
        m.d.comb += self.moves.eq((self.write & self.grant) | (go_on & read.valid & (len(stages) > 2 or self.table_lanes > 0)))
        empty = ~(self.write | Cat(stage.valid for stage in stages).any())
        if self.table_lanes:
            functions = self._apply_table(m, advance, go_on, value, sums, keep, cut, vector, given, asked)
            empty &= ~functions.busy
            in_turn &= self._multiply(m, functions, walker, advance, read, asks, taken)
        else:
            m.d.comb += go_on.eq(advance)
        if has_operands:
            with m.If(has_operand(walker.op, self.table_lanes) & ~in_turn & ~empty):
                m.d.comb += walker.hold.eq(1)
        return m

    def _wait(self, m, advance, written):
        """Stage `write` in cores that read operands: of two places, so that the stages before it hear from a register, a cycle
        late, to wait. What they give in that cycle, be it nothing, has the second place: all is written and read as if they
        had waited at once. Returns what is asked of the unified buffer next, which they assign."""
        layout = data.StructLayout({"write": 1, "read": 1, "end": written.shape(), "vector": 16 * self.n})
        m.submodules.places = places = SkidBuffer(payload=layout)
        now = places.o.payload
        m.d.comb += [
            places.i.valid.eq(1),
            advance.eq(places.i.ready),
            places.o.ready.eq(~(now.write | now.read) | self.grant),
            self.write.eq(now.write),
            self.read.eq(now.read),
            written.eq(now.end),
            self.vector.eq(now.vector),
        ]
        return places.i.payload

    def _asks(self, step):
        """Whether a step asks for an operand, and gives nothing."""
        return has_operand(step, self.table_lanes) & ~step.half

    def _ask(self, m, walker, go_on, read, asked):
        """Asks for the operand of a row: its first step leaves stage `read` for the port, while its second step follows, so that
        the operand comes in the cycle in which that one has left stage `read`. Returns whether one is asked for, and what SELECT
        is to know of it."""
        asks = Signal()
        names = ["equal", "number", *(["select"] if self.table_lanes else [])] if self._has_select else []
        condition = {name: Signal(len(walker.op[name]), name=name) for name in names}
        m.d.comb += [asks.eq(go_on & read.valid & has_operand(read, self.table_lanes) & ~read.half), asked.read.eq(asks)]
        with m.If(asks):
            m.d.comb += asked.end.row.eq(read.row)
            # The walker is at the second step.
            m.d.sync += [register.eq(walker.op[name]) for name, register in condition.items()]
        return asks, condition

    def _lanes(self, step):
        """Which lanes a step keeps: a bit for each."""
        return Cat(step.lanes >= c + 1 for c in range(self.n))

    def _round(self, m, platform, value, sums, relu, keep, cut):
        """The vector that comes of a row of sums, in cores without SELECT."""
        width = 16 * self.n
        rounded, binary32 = Signal(width), Signal(2 * width)
        for c in range(self.n):
            instantiate(
                m,
                platform,
                lambda: ActivationLane(cuts=bool(self.table_lanes)),
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
        return Mux(value.format == Format.BFLOAT16, rounded, Mux(value.half, binary32[width:], binary32[:width]))

    def _round_halves(self, m, platform, go_on, following, value, sums, relu, keep, cut):
        """The same, with the format PLANES, and +0 in the lanes without `keep`: one of two vectors is always 0."""
        n = self.n
        planes, low, wide = Signal(), Signal(), Signal()
        stays, rounded, gathered = Signal(n), Signal(16 * n), Signal(16 * n)
        with m.If(go_on):
            m.d.sync += [
                planes.eq(following.format == Format.PLANES),
                low.eq((following.format == Format.PLANES) & following.half),
                wide.eq(following.format == Format.BINARY32),
            ]
        for c in range(n):
            instantiate(
                m,
                platform,
                lambda: ActivationLane(cuts=True, halves=True),
                name=f"lane_{c}",
                module="tpu_activation_lane",
                domain=None,
                value=sums.word_select(c, 32),
                relu=relu,
                keep=keep[c],
                cut=cut | planes,
                low=low,
                wide=wide,
                stays=stays[c],
                rounded=rounded.word_select(c, 16),
            )
            # As binary32, a place has half a lane of the lower half of all lanes, and then of the upper one.
            first, second = c // 2, (n + c) // 2
            there = wide & Mux(value.half, stays[second], stays[first])
            word = Mux(value.half, sums.word_select(n + c, 16), sums.word_select(c, 16))
            m.d.comb += gathered.word_select(c, 16).eq(word & there.replicate(16))
        return rounded | gathered

    def _select(self, m, platform, go_on, following, taken, equal, number, select=None):
        """The lanes that SELECT keeps: known when the second step of a row is in stage `value`, as the operand came while it was
        in stage `passing`."""
        selected = Signal(self.n)
        for c in range(self.n):
            instantiate(
                m,
                platform,
                SelectLane,
                name=f"select_{c}",
                module="tpu_select_lane",
                take=taken if select is None else taken & select,
                operand=self.operand.word_select(c, 16),
                equal=equal,
                number=number,
                keep_all=go_on & ~following.select,
                keep=selected[c],
            )
        return selected

    def _find_largest(self, m, platform, go_on, walker, read, value, sums):
        """Drives `value` and `sums`. The rows of a window pass a stage before them; there each is compared with the largest so
        far. A window of one row has no need of it, and overtakes it while it is empty. Returns that stage, what `value` becomes,
        the lanes that this keeps, and, with SELECT, its vector of numbers: 0 but for the format INDEX."""
        passing, lanes = Signal(value.shape()), Signal(self.n)
        row = Signal(32 * self.n, reset_less=True)
        may_overtake, overtakes = Signal(), Signal()
        chosen, larger = Signal(value.shape()), Signal(self.n)
        alone, passes = walker.o.first & walker.o.complete, read.valid
        if self._has_operands:
            # A step that asks for an operand ends here.
            passes = read.valid & ~self._asks(read)
        if self.table_lanes:
            alone &= ~self._asks(walker.o)
        if self._has_select:
            # The others of SELECT, and those of INDEX, pass.
            alone &= ~walker.o.select & (walker.o.format != Format.INDEX)
        m.d.comb += [overtakes.eq(may_overtake & read.valid & ~passing.valid), chosen.eq(Mux(overtakes, read, passing))]
        with m.If(go_on):
            m.d.sync += [
                may_overtake.eq(alone),
                passing.eq(read),
                passing.valid.eq(passes & ~overtakes),
                lanes.eq(self._lanes(read)),
                row.eq(self.sums),
                value.eq(chosen),
                value.valid.eq(chosen.valid & chosen.complete),
            ]
        for c in range(self.n):
            instantiate(
                m,
                platform,
                lambda: Comparator(strict=self._has_select),
                name=f"comparator_{c}",
                module="tpu_comparator",
                domain=None,
                a=row.word_select(c, 32),
                b=sums.word_select(c, 32),
                o=larger[c],
            )
            with m.If(go_on & (overtakes | (passing.valid & (passing.first | larger[c])))):
                m.d.sync += sums.word_select(c, 32).eq(Mux(overtakes, self.sums, row).word_select(c, 32))
        indices = None
        if self._has_select:
            indices = self._number(m, platform, go_on, read, passing, lanes, overtakes, row, larger)
        return passing, chosen, Mux(overtakes, self._lanes(read), lanes), indices

    def _number(self, m, platform, go_on, read, passing, lanes, overtakes, row, larger):
        """Which row of its window is the largest, for the format INDEX: a vector of numbers, which belongs to stage `value`.

        Its rows all pass the stage `passing`, so `number` is that of the row there, and 0 while nothing is there."""
        number, relu, indices = Signal(16), Signal(), Signal(16 * self.n)
        counts = read.valid & (read.format == Format.INDEX)
        with m.If(go_on):
            m.d.sync += [
                number.eq(Mux(counts & ~read.first, number + 1, 0)),
                relu.eq(counts & (read.function == FunctionCode.RELU)),
            ]
        for c in range(self.n):
            instantiate(
                m,
                platform,
                IndexLane,
                name=f"index_{c}",
                module="tpu_index_lane",
                take=go_on & (~passing.valid | passing.first | (larger[c] & lanes[c])),
                number=number,
                value=row.word_select(c, 32),
                relu=relu & lanes[c],
                o=indices.word_select(c, 16),
            )
        return indices

    def _between(self, value, sums):
        """Of each lane what rounding cuts off, 12 bits.

        Where results are binary32, a sum goes with the lane of its upper half; the other lane is not kept.
        """
        n = self.n
        low = [sums.word_select(c, 32)[4:16] for c in range(n)]
        low_halves = Mux(value.half, Cat(low[n // 2 :]), Cat(low[: n // 2]))
        rounds = value.format == Format.BFLOAT16
        return Cat(Mux(rounds, low[c], low_halves.word_select(c // 2, 12)) if c % 2 else low[c] for c in range(n))

    def _apply_table(self, m, advance, go_on, value, sums, keep, cut, vector, given, asked):
        """The function unit stands between the rounding and the stage `write`, for those vectors that need it."""
        n, lanes = self.n, self.table_lanes
        m.submodules.functions = functions = FunctionUnit(n=n, lanes=lanes, tag=given.shape())
        to_functions, blocked = Signal(), Signal()
        halves = Mux(value.half, keep[n // 2 :], keep[: n // 2])
        m.d.comb += [
            to_functions.eq(cut | (value.task != Task.RESULTS)),
            blocked.eq(value.valid & Mux(to_functions, ~functions.ready, functions.busy)),
            go_on.eq(advance & ~blocked),
            functions.advance.eq(advance),
            functions.i_valid.eq(value.valid & to_functions),
            functions.i_vector.eq(vector),
            functions.i_between.eq(self._between(value, sums)),
            functions.i_keep.eq(Mux(value.format == Format.BFLOAT16, keep, Cat(Cat(Const(0, 1), bit) for bit in halves))),
            functions.i_task.eq(value.task),
            functions.i_tag.eq(given),
            asked.write.eq((value.valid & ~to_functions & ~functions.busy) | (functions.valid & functions.last)),
        ]
        with m.If(functions.valid):
            m.d.comb += asked.vector.eq(Cat(self.vector[16 * lanes :], functions.group))
        with m.If(functions.valid & functions.last):
            m.d.comb += asked.end.eq(functions.tag)
        with m.If(functions.loaded & functions.loaded_tag.last):
            m.d.sync += [self.port.done.eq(1), self.port.done_slot.eq(functions.loaded_tag.slot)]
        return functions

    def _multiply(self, m, functions, walker, advance, read, asks, taken):
        """Operands of MULTIPLY and LOAD_TABLE. Their rows do not pass the stage `passing`, so that an operand comes while the
        second step of its row is in stage `value`, and goes into the function unit with it. That one has not to wait there: rows
        follow one another as the function unit takes them. Returns whether it is time for the next row."""
        cycles = product_cycles(self.n, self.table_lanes)
        pause = Signal(range(cycles - 1))
        with m.If(asks & (read.task == Task.MULTIPLY)):
            m.d.sync += pause.eq(cycles - 2)
        with m.Elif(advance & pause.any()):
            m.d.sync += pause.eq(pause - 1)
        op = walker.op
        m.d.comb += [
            functions.operand.eq(self.operand),
            functions.take.eq(taken),
            functions.load.eq(asks & (read.task == Task.LOAD_TABLE)),
            functions.word.eq(walker.word),
            *(getattr(functions, name).eq(op[name]) for name in ("first", "linear_low", "linear_high")),
        ]
        return walker.in_turn & ~pause.any()
