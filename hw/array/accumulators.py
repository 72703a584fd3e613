"""The accumulators: rows of binary32 sums that enter the array again at the top, and rows of biases."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..arithmetic.float_formats import without_minus_zero
from ..lib.hierarchy import instantiate
from ..lib.memories import NO_COLLISIONS
from ..spec.memory_ports import bias_port, bias_rows_port, pass_port, sums_edge, sums_port

__all__ = ["AccumulatorColumn", "Accumulators"]


def _control(depth, bias_depth):
    """Returns `{name: width}` of the control signals that move through the columns, one column per cycle."""
    members = pass_port(bits_for(depth - 1), bits_for(bias_depth - 1)).members
    return {name: member.shape for name, member in members.items()}


class AccumulatorColumn(wiring.Component):
    """The sums and biases of one column. Control signals enter at ports `*_i` and leave for the next column one cycle later.

    Parameters and members are the same as in :class:`Accumulators`, for one lane: `top`, `bottom` and `out` have 32 bits.
    """

    def __init__(self, *, depth, bias_depth, latency, bias_halves, bias_reads=False):
        self.bias_reads = bias_reads
        self.depth = depth
        self.bias_depth = bias_depth
        self.latency = latency
        self.bias_halves = bias_halves
        self.control = _control(depth, bias_depth)
        super().__init__(
            {
                **{f"{name}_i": In(width) for name, width in self.control.items()},
                **{f"{name}_o": Out(width) for name, width in self.control.items()},
                "top": Out(32),
                "bottom": In(32),
                "out_row": In(bits_for(depth - 1)),
                "out_read": In(1),
                "out": Out(32),
                "bias_write": In(2 if bias_halves else 1),
                "bias_write_row": In(bits_for(bias_depth - 1)),
                "bias_data": In(16 if bias_halves else 32),
                **(
                    {"bias_out_row": In(bits_for(bias_depth - 1)), "bias_out_read": In(1), "bias_out": Out(32)}
                    if bias_reads
                    else {}
                ),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for name in self.control:
            m.d.sync += getattr(self, f"{name}_o").eq(getattr(self, f"{name}_i"))

        m.submodules.sums = sums = Memory(shape=32, depth=self.depth, init=[], attrs=NO_COLLISIONS)
        write, read, out = sums.write_port(), sums.read_port(), sums.read_port()
        m.submodules.biases = biases = Memory(shape=32, depth=self.bias_depth, init=[], attrs=NO_COLLISIONS)
        bias_write = biases.write_port(granularity=16 if self.bias_halves else None)
        bias_read = biases.read_port()
        m.d.comb += [
            write.addr.eq(self.write_row_i),
            write.en.eq(self.write_i),
            write.data.eq(without_minus_zero(self.bottom)),
            read.addr.eq(self.read_row_i),
            read.en.eq(1),
            bias_read.addr.eq(self.bias_row_i),
            bias_read.en.eq(1),
            out.addr.eq(self.out_row),
            out.en.eq(self.out_read),
            self.out.eq(out.data),
            bias_write.addr.eq(self.bias_write_row),
            bias_write.en.eq(self.bias_write),
            bias_write.data.eq(Cat(self.bias_data, self.bias_data) if self.bias_halves else self.bias_data),
        ]
        # Registers next to the memories, whose data arrives late in the cycle.
        start, bias, sum_ = Signal(reset_less=True), Signal(32, reset_less=True), Signal(32, reset_less=True)
        m.d.sync += [start.eq(self.start_o), bias.eq(bias_read.data), sum_.eq(read.data)]
        if self.bias_reads:
            bias_out = biases.read_port()
            m.d.comb += [bias_out.addr.eq(self.bias_out_row), bias_out.en.eq(self.bias_out_read), self.bias_out.eq(bias_out.data)]
        top = Signal(32, reset_less=True)
        m.d["sync" if self.latency == 3 else "comb"] += top.eq(Mux(start, bias, sum_))
        m.d.comb += self.top.eq(top)
        return m


class Accumulators(wiring.Component):
    """`depth` rows of `n` binary32 sums and `bias_depth` rows of biases.

    Column c works c cycles after column 0, in step with the array. The control signals are skewed from column to column, so
    the sums need no skew registers. `edge.top[0]` appears `latency` cycles after `passes.read_row`. `edge.bottom[0]` is written
    in the cycle of `passes.write`, with +0 for -0: so products with 0 change no sum, and programs may add them or leave them out.
    The third port reads whole rows.

    Parameters
    ----------
    n : int
        Columns.
    depth : int
        Rows of sums.
    bias_depth : int
        Rows of biases.
    latency : int
        Read latency in cycles: 2, or 3 with a second register between the memory and the array.
    bias_halves : bool
        True to write biases in halves of 16 bits.
    bias_reads : bool
        True to add the port `updates`.

    Members
    -------
    passes : pass port, in
        See :func:`hw.spec.memory_ports.pass_port`.
    edge : sums edge, out
        To the array; see :func:`hw.spec.memory_ports.sums_edge`.
    results : sums port, in
        The third port; see :func:`hw.spec.memory_ports.sums_port`.
    biases : bias port, in
        See :func:`hw.spec.memory_ports.bias_port`.
    updates : bias rows port, in
        See :func:`hw.spec.memory_ports.bias_rows_port`.
    """

    def __init__(self, *, n, depth, bias_depth, latency, bias_halves=False, bias_reads=False):
        if latency not in (2, 3):
            raise ValueError(f"latency must be 2 or 3, not {latency!r}")
        self.n = n
        self.latency = latency
        self.depth = depth
        self.bias_depth = bias_depth
        self.bias_halves = bias_halves
        self.bias_reads = bias_reads
        super().__init__(
            {
                "passes": In(pass_port(bits_for(depth - 1), bits_for(bias_depth - 1))),
                "edge": Out(sums_edge(n)),
                "results": In(sums_port(bits_for(depth - 1), n)),
                "biases": In(bias_port(bits_for(bias_depth - 1), n, halves=bias_halves)),
                **({"updates": In(bias_rows_port(bits_for(bias_depth - 1), n))} if bias_reads else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        control = {name: getattr(self.passes, name) for name in _control(self.depth, self.bias_depth)}
        sizes = {name: getattr(self, name) for name in ("depth", "bias_depth", "latency", "bias_halves", "bias_reads")}
        results, biases = self.results, self.biases
        bias_rows = [biases.row] * 2
        if self.bias_halves:
            bias_rows = [biases.row.word_select(side, len(biases.row) // 2) for side in range(2)]
        for c in range(self.n):
            reads = {}
            if self.bias_reads:
                updates = self.updates
                reads = {"bias_out_row": updates.row, "bias_out_read": updates.read, "bias_out": updates.data.word_select(c, 32)}
            right = {name: Signal(len(value), name=f"{name}_{c}") for name, value in control.items()}
            instantiate(
                m,
                platform,
                lambda: AccumulatorColumn(**sizes),
                name=f"column_{c}",
                module="tpu_accumulator_column",
                **{f"{name}_i": value for name, value in control.items()},
                **{f"{name}_o": value for name, value in right.items()},
                top=self.edge.top.word_select(c, 32),
                bottom=self.edge.bottom.word_select(c, 32),
                out_row=results.row,
                out_read=results.read,
                out=results.data.word_select(c, 32),
                bias_write=biases.write.word_select(c, 2) if self.bias_halves else biases.write,
                bias_write_row=bias_rows[2 * c // self.n],
                bias_data=biases.data.word_select(c, 16 if self.bias_halves else 32),
                **reads,
            )
            control = right
        return m
