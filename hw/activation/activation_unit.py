"""The activation unit: accumulators -> maximum of a window -> function -> rounding -> condition -> unified buffer."""

from contextlib import nullcontext
from dataclasses import dataclass

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.comparator import Comparator
from ..lib.hierarchy import instantiate
from ..lib.skid_buffer import SkidBuffer
from ..spec.isa import Format, Function, Task
from ..spec.unit_ports import unit_port
from .activation_lane import ActivationLane
from .function_unit import FunctionUnit
from .index_lane import IndexLane
from .row_walker import RowWalker, step_layout
from .select_lane import SelectLane

__all__ = ["ActivationUnit"]


@dataclass(frozen=True)
class _Asked:
    """What is asked of the unified buffer next, assigned in `domain` while the stages before advance, and what waits for it."""

    write: Signal
    read: Signal
    end: Signal
    vector: Signal
    domain: str


class ActivationUnit(wiring.Component):
    """Executes ACTIVATE, POOL, MULTIPLY, LOAD_TABLE and SELECT operations in order.

    A row of the accumulators is read each cycle, and a vector written each cycle, while `grant` takes them; a window of R rows
    takes R cycles, and one more as binary32. The first vector comes three cycles after the operation, or four after the last row
    of a window of several; the next operation follows without a gap. A vector of the function TABLE comes eight cycles later, and
    one every n / `table_lanes` cycles; between such vectors and others the unit runs empty. It also does before each row of
    MULTIPLY and LOAD_TABLE, and then reads the unified buffer.

    SELECT takes two cycles a row. The first operand is read two cycles after the operation came, or the unit ran empty; the
    first vector is written three cycles later, and then reading and writing take turns: each operand is read before the vector of
    the row before it is written. Where the one is the other's place the unit runs empty before it reads.

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
        self._has_select = "select" in dict(activate)
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
        op, has_select = self.port.op, self._has_select
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
        with m.If(go_on):
            m.d.sync += [
                # Of the format INDEX none, whose vector comes from elsewhere.
                keep.eq(Mux(following.format == Format.INDEX, 0, lanes) if has_select else lanes),
                relu.eq(following.function == Function.RELU),
                cut.eq(following.function == Function.TABLE),
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
            *([] if has_select else [advance.eq(~self.write | self.grant)]),
        ]
        asked = self._wait(m, advance, written) if has_select else _Asked(self.write, self.read, written, self.vector, "sync")
        with nullcontext() if has_select else m.If(advance):
            m.d[asked.domain] += [asked.write.eq(value.valid), asked.end.eq(given), asked.vector.eq(vector)]
        if has_select:
            m.d.comb += kept.eq(keep & self._select(m, platform, walker, go_on, read, following, asked))
        m.d.sync += [self.port.done.eq(self.write & self.grant & written.last), self.port.done_slot.eq(written.slot)]
        m.d.comb += self.moves.eq((self.write & self.grant) | (go_on & read.valid & (len(stages) > 2 or self.table_lanes > 0)))
        if self.table_lanes:
            empty = self._apply_table(m, walker, stages, advance, go_on, value, sums, keep, cut, vector, given, asked)
        else:
            m.d.comb += go_on.eq(advance)
            empty = ~(self.write | Cat(stage.valid for stage in stages).any())
        if has_select:
            with m.If(walker.op.select & ~walker.in_turn & ~empty):
                m.d.comb += walker.hold.eq(1)
        return m

    def _wait(self, m, advance, written):
        """Stage `write` in cores with SELECT: of two places, so that the stages before it hear from a register, a cycle late, to
        wait. What they give in that cycle, be it nothing, has the second place: all is written and read as if they
        had waited at once."""
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
        following = places.i.payload
        return _Asked(following.write, following.read, following.end, following.vector, "comb")

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

    def _select(self, m, platform, walker, go_on, read, following, asked):
        """Reads the operands of SELECT, and returns the lanes that stay.

        The first step of a row leaves stage `read` for the port, while its second step follows, so that the operand comes when
        that one is in stage `passing`, and lanes are known when it is in stage `value`.
        """
        equal, number = Signal(), Signal(8)
        asks, taken, selected = Signal(), Signal(), Signal(self.n)
        m.d.comb += [asks.eq(go_on & read.valid & read.select & ~read.half), asked.read.eq(asks)]
        with m.If(asks):
            m.d.comb += asked.end.row.eq(read.row)
            # The walker is at the second step.
            m.d.sync += [equal.eq(walker.op.equal), number.eq(walker.op.number)]
        m.d.sync += taken.eq(self.read & self.grant)
        for c in range(self.n):
            instantiate(
                m,
                platform,
                SelectLane,
                name=f"select_{c}",
                module="tpu_select_lane",
                take=taken,
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
        if self._has_select:
            # A step that asks for an operand ends here; the others of SELECT, and those of INDEX, pass.
            alone &= ~walker.o.select & (walker.o.format != Format.INDEX)
            passes = read.valid & ~(read.select & ~read.half)
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
            m.d.sync += [number.eq(Mux(counts & ~read.first, number + 1, 0)), relu.eq(counts & (read.function == Function.RELU))]
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

    def _apply_table(self, m, walker, stages, advance, go_on, value, sums, keep, cut, vector, given, asked):
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
        ]
        with nullcontext() if self._has_select else m.If(advance):
            m.d[asked.domain] += asked.write.eq(
                (value.valid & ~to_functions & ~functions.busy) | (functions.valid & functions.last)
            )
            with m.If(functions.valid):
                m.d[asked.domain] += [
                    asked.vector.eq(Cat(self.vector[16 * lanes :], functions.group)),
                    asked.end.eq(functions.tag),
                ]
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
                    m.d[asked.domain] += [asked.end.row.eq(walker.operand), asked.read.eq(1)]
                    m.next = "READ"
            with m.State("READ"):
                if not self._has_select:  # what is asked for stays by itself, and ends with `grant`
                    m.d.sync += asked.end.row.eq(asked.end.row)
                with m.If(self.grant):
                    if not self._has_select:
                        m.d.sync += asked.read.eq(0)
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += [functions.take.eq(1), walker.hold.eq(0)]
                m.next = "WAIT"
        return empty
