"""The activation unit: accumulators -> maximum of a window -> function -> rounding -> condition -> unified buffer."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..arithmetic.comparator import Comparator
from ..lib.hierarchy import instantiate
from ..lib.skid_buffer import SkidBuffer
from ..spec.isa import TABLE_SETTINGS, Format, FunctionCode, Task
from ..spec.memory_ports import client_port, sums_port
from ..spec.unit_ports import unit_port
from .activation_lane import ActivationLane
from .function_unit import FunctionUnit, entry_cycles, product_cycles
from .index_lane import IndexLane
from .row_walker import RowWalker, has_operand, step_layout
from .select_lane import SelectLane

__all__ = ["ActivationUnit"]


class ActivationUnit(wiring.Component):
    """The unit that executes ACTIVATE, POOL, MULTIPLY, LOAD_TABLE and SELECT operations, in order.

    Throughput is one row of the accumulators and one vector a cycle. The unit stalls while `grant` is 0. A window of R rows takes
    R cycles, and one more for a binary32 result. The first vector comes three cycles after the operation, or four cycles after
    the last row of a window with several rows. In cores with neither windows nor operands, each comes four cycles after its row.
    The next operation follows without a gap. Operation A has two rows here, in a core with windows::

        cycle           0    1    2    3    4    5
        port.op         A    B    B    ..
        port.op.ready   1    0    1    ..
        sums.row        a0   a1   b0   b1   ..
        sums.data       -    a0   a1   b0   b1   ..
        buffer.write    0    0    0    1    1    1
        buffer.vector   -    -    -    a0   a1   b0
        port.done       0    0    0    0    0    1

    A vector of the function TABLE comes eight cycles later, and one every n / `table_lanes` cycles. The pipeline drains between
    such vectors and others.

    Each row of SELECT, MULTIPLY and LOAD_TABLE has an operand. It is read before the vectors of earlier rows are written. If the
    operand is one of these vectors (a read-after-write hazard), the pipeline drains first. It also drains before the first row of
    an operation. The first operand is read two cycles after the operation arrived, or the
    pipeline drained. SELECT writes its vector three cycles later, and takes two cycles a row. MULTIPLY writes its vector
    n / `table_lanes` + 9 cycles later. It takes n / `table_lanes` cycles a row, or three if `table_lanes` is n.
    LOAD_TABLE takes n / 2 cycles a row, at least two.

    Parameters
    ----------
    n : int
        Lanes.
    activate : layout
        :func:`hw.spec.operations.activate_layout`. Its fields select the hardware for windows, tasks and SELECT.
    table_lanes : int
        Lanes that the function table serves at a time.

    Members
    -------
    port : unit port of activate, in
        See :func:`hw.spec.unit_ports.unit_port`; `done` comes one cycle after the last write.
    sums : sums port, out
        To the accumulators; see :func:`hw.spec.memory_ports.sums_port`.
    buffer : client port, out
        To the vector port of the unified buffer; see :func:`hw.spec.memory_ports.client_port`.
    moves : 1, out
        A row moves: the unit is not stalled.
    """

    def __init__(self, *, n, activate, table_lanes=0):
        self.n = n
        self.table_lanes = table_lanes
        self._activate = activate
        self._has_select, self._has_operands = (name in dict(activate) for name in ("select", "operand"))
        super().__init__(
            {
                "port": In(unit_port(activate)),
                "sums": Out(sums_port(activate["acc"].shape, n)),
                "buffer": Out(client_port(activate["row"].shape, n)),
                "moves": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op, has_select, has_operands = self.port.op, self._has_select, self._has_operands
        n = self.n
        # `advance` is 0 while the last stage waits for the unified buffer. `go_on` is 0 as well while a vector waits for the
        # function unit.
        advance, go_on = Signal(), Signal()
        m.submodules.walker = walker = RowWalker(activate=self._activate)
        m.d.comb += [
            walker.i.payload.eq(op.payload),
            walker.i.valid.eq(op.valid),
            op.ready.eq(walker.i.ready),
            walker.advance.eq(go_on),
            self.sums.row.eq(walker.acc),
            self.sums.read.eq(go_on),
        ]

        # Stage `read`: the memory outputs the sums. Stage `value`: a register holds the sums, or the largest sums of a window.
        step = step_layout(self._activate)
        read, value = Signal(step), Signal(step)
        sums, keep, relu, cut = Signal(32 * n, reset_less=True), Signal(n), Signal(), Signal()
        stages = [read, value]
        with m.If(go_on):
            m.d.sync += read.eq(walker.o)
        if "single" in dict(self._activate):
            passing, following, lanes, indices = self._find_largest(m, platform, go_on, walker, read, value, sums)
            stages.append(passing)
        elif has_operands:
            following, lanes = read, self._lanes(read)
            with m.If(go_on):
                m.d.sync += [value.eq(read), sums.eq(self.sums.data), value.valid.eq(read.valid & ~self._asks(read))]
        else:
            # One more stage, whose register can be next to the memory: its data arrives late in the cycle.
            following, row = Signal(step, name="passing"), Signal(32 * n, reset_less=True)
            lanes = self._lanes(following)
            stages.append(following)
            with m.If(go_on):
                m.d.sync += [following.eq(read), row.eq(self.sums.data), value.eq(following), sums.eq(row)]
        with m.If(go_on):
            m.d.sync += [
                # The format INDEX keeps no lane here: its vector comes from the index lanes.
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
            self.buffer.row.eq(written.row),
            *([] if has_operands else [advance.eq(~self.buffer.write | self.buffer.grant)]),
        ]
        if has_operands:
            asked = self._wait(m, advance, written)
            m.d.comb += [asked.write.eq(value.valid), asked.end.eq(given), asked.vector.eq(vector)]
            asks, condition = self._ask(m, walker, go_on, read, asked)
            taken, in_turn = Signal(), walker.in_turn
        else:
            with m.If(advance):
                m.d.sync += [self.buffer.write.eq(value.valid), written.eq(given), self.buffer.vector.eq(vector)]
        if has_select:
            m.d.comb += kept.eq(keep & self._select(m, platform, go_on, following, taken, **condition))
        if has_operands:
            m.d.sync += taken.eq(self.buffer.read & self.buffer.grant)
        m.d.sync += [
            self.port.done.eq(self.buffer.write & self.buffer.grant & written.last),
            self.port.done_slot.eq(written.slot),
        ]
        m.d.comb += self.moves.eq(
            (self.buffer.write & self.buffer.grant) | (go_on & read.valid & (len(stages) > 2 or self.table_lanes > 0))
        )
        empty = ~(self.buffer.write | Cat(stage.valid for stage in stages).any())
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
        """Builds stage `write` in cores that read operands. Returns the next request to the unified buffer, to be driven.

        The stage is a skid buffer, so that the stall of earlier stages comes from a register, one cycle late. The output of the
        earlier stages in that cycle, even an empty output, takes the second place. Reads and writes are the same as with an
        immediate stall."""
        layout = data.StructLayout({"write": 1, "read": 1, "end": written.shape(), "vector": 16 * self.n})
        m.submodules.places = places = SkidBuffer(payload=layout)
        now = places.o.payload
        m.d.comb += [
            places.i.valid.eq(1),
            advance.eq(places.i.ready),
            places.o.ready.eq(~(now.write | now.read) | self.buffer.grant),
            self.buffer.write.eq(now.write),
            self.buffer.read.eq(now.read),
            written.eq(now.end),
            self.buffer.vector.eq(now.vector),
        ]
        return places.i.payload

    def _asks(self, step):
        return has_operand(step, self.table_lanes) & ~step.half

    def _ask(self, m, walker, go_on, read, asked):
        """Requests the operand of a row. Returns a signal that is 1 for a request, and the registers of the condition of SELECT.

        The first step of the row leaves stage `read` as the request, and the second step follows. The operand arrives while the
        second step is in the stage after `read`."""
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
        return Cat(step.lanes >= c + 1 for c in range(self.n))

    def _round(self, m, platform, value, sums, relu, keep, cut):
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
        """Returns the vector for a row of sums, in cores with SELECT, which have the format PLANES. Lanes without `keep` are +0.

        The vector is the OR of a 16-bit and a binary32 result, of which one is always 0."""
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
            # A binary32 result has two vectors: the lower half of the lanes, then the upper half. A lane takes two places.
            first, second = c // 2, (n + c) // 2
            there = wide & Mux(value.half, stays[second], stays[first])
            word = Mux(value.half, sums.word_select(n + c, 16), sums.word_select(c, 16))
            m.d.comb += gathered.word_select(c, 16).eq(word & there.replicate(16))
        return rounded | gathered

    def _select(self, m, platform, go_on, following, taken, equal, number, select=None):
        """Returns a bit for each lane, which is 1 if SELECT keeps the lane. The bits are valid while the second step of a row is
        in stage `value`, as the operand arrives while that step is in stage `passing`."""
        selected = Signal(self.n)
        for c in range(self.n):
            instantiate(
                m,
                platform,
                SelectLane,
                name=f"select_{c}",
                module="tpu_select_lane",
                take=taken if select is None else taken & select,
                operand=self.buffer.operand.word_select(c, 16),
                equal=equal,
                number=number,
                keep_all=go_on & ~following.select,
                keep=selected[c],
            )
        return selected

    def _find_largest(self, m, platform, go_on, walker, read, value, sums):
        """Drives `value` and `sums` with the largest row of each window.

        The rows of a window pass an extra stage, `passing`, where each is compared with the largest row so far. A window of one
        row bypasses this stage while it is empty. Returns the stage, the next step in `value`, the lanes that this step keeps,
        and, with SELECT, the vector of indices. That vector is 0 except for the format INDEX."""
        passing, lanes = Signal(value.shape()), Signal(self.n)
        row = Signal(32 * self.n, reset_less=True)
        may_overtake, overtakes = Signal(), Signal()
        chosen, larger = Signal(value.shape()), Signal(self.n)
        alone, passes = walker.o.first & walker.o.complete, read.valid
        if self._has_operands:
            # A step that requests an operand ends here.
            passes = read.valid & ~self._asks(read)
        if self.table_lanes:
            alone &= ~self._asks(walker.o)
        if self._has_select:
            # Second steps of SELECT, and rows of the format INDEX, pass the extra stage.
            alone &= ~walker.o.select & (walker.o.format != Format.INDEX)
        m.d.comb += [overtakes.eq(may_overtake & read.valid & ~passing.valid), chosen.eq(Mux(overtakes, read, passing))]
        with m.If(go_on):
            m.d.sync += [
                may_overtake.eq(alone),
                passing.eq(read),
                passing.valid.eq(passes & ~overtakes),
                lanes.eq(self._lanes(read)),
                row.eq(self.sums.data),
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
                newest = Mux(overtakes, self.sums.data.word_select(c, 32), row.word_select(c, 32))
                m.d.sync += sums.word_select(c, 32).eq(newest)
        indices = None
        if self._has_select:
            indices = self._number(m, platform, go_on, read, passing, lanes, overtakes, row, larger)
        return passing, chosen, Mux(overtakes, self._lanes(read), lanes), indices

    def _number(self, m, platform, go_on, read, passing, lanes, overtakes, row, larger):
        """Returns the indices of the largest rows for the format INDEX, a vector of stage `value`.

        All rows of this format pass the stage `passing`. `number` is the index of the row in this stage, and 0 if the stage is
        empty."""
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

    def _between(self, m, value, sums):
        """Returns the 12 bits of each lane that rounding discards.

        For binary32 results, the bits belong to the lane with the upper half of the sum; the other lane is not kept.
        """
        n = self.n
        low = [sums.word_select(c, 32)[4:16] for c in range(n)]
        low_halves = Signal(12 * n // 2)  # a signal, as each slice of an expression repeats it in the export
        m.d.comb += low_halves.eq(Mux(value.half, Cat(low[n // 2 :]), Cat(low[: n // 2])))
        rounds = value.format == Format.BFLOAT16
        return Cat(Mux(rounds, low[c], low_halves.word_select(c // 2, 12)) if c % 2 else low[c] for c in range(n))

    def _apply_table(self, m, advance, go_on, value, sums, keep, cut, vector, given, asked):
        """Connects the function unit between rounding and stage `write`, for the vectors that need it. Returns the unit."""
        n, lanes = self.n, self.table_lanes
        m.submodules.functions = functions = FunctionUnit(n=n, lanes=lanes, tag=given.shape())
        to_functions, blocked = Signal(), Signal()
        halves = Signal(n // 2)
        m.d.comb += [
            halves.eq(Mux(value.half, keep[n // 2 :], keep[: n // 2])),
            to_functions.eq(cut | (value.task != Task.RESULTS)),
            blocked.eq(value.valid & Mux(to_functions, ~functions.ready, functions.busy)),
            go_on.eq(advance & ~blocked),
            functions.advance.eq(advance),
            functions.i_valid.eq(value.valid & to_functions),
            functions.i_vector.eq(vector),
            functions.i_between.eq(self._between(m, value, sums)),
            functions.i_keep.eq(Mux(value.format == Format.BFLOAT16, keep, Cat(Cat(Const(0, 1), bit) for bit in halves))),
            functions.i_task.eq(value.task),
            functions.i_tag.eq(given),
            asked.write.eq((value.valid & ~to_functions & ~functions.busy) | (functions.valid & functions.last)),
        ]
        with m.If(functions.valid):
            m.d.comb += asked.vector.eq(Cat(self.buffer.vector[16 * lanes :], functions.group))
        with m.If(functions.valid & functions.last):
            m.d.comb += asked.end.eq(functions.tag)
        with m.If(functions.loaded & functions.loaded_tag.last):
            m.d.sync += [self.port.done.eq(1), self.port.done_slot.eq(functions.loaded_tag.slot)]
        return functions

    def _multiply(self, m, functions, walker, advance, read, asks, taken):
        """Connects the operands of MULTIPLY and LOAD_TABLE. Returns a signal that is 1 if the next row may begin.

        Rows of these operations bypass the stage `passing`. So an operand arrives while the second step of its row is in stage
        `value`, and both enter the function unit together. That step never stalls, as rows begin at the rate at which the
        function unit takes them."""
        products, entries = product_cycles(self.n, self.table_lanes), entry_cycles(self.n)
        pause = Signal(range(max(products, entries) - 1))
        with m.If(asks & (read.task != Task.RESULTS)):
            m.d.sync += pause.eq(Mux(read.task == Task.LOAD_TABLE, entries, products) - 2)
        with m.Elif(advance & pause.any()):
            m.d.sync += pause.eq(pause - 1)
        op = walker.op
        m.d.comb += [
            functions.operand.eq(self.buffer.operand),
            functions.take.eq(taken),
            functions.load.eq(asks & (read.task == Task.LOAD_TABLE)),
            functions.word.eq(walker.word),
            *(getattr(functions, name).eq(op[name]) for name in TABLE_SETTINGS),
        ]
        return walker.in_turn & ~pause.any()
