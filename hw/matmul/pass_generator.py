"""The outer loops of a matrix multiplication: from one MATMUL to its tile passes."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["PassGenerator"]


class PassGenerator(wiring.Component):
    """The address generator of the outer loops of a MATMUL, `tiles1` and `tiles0`.

    The first pass is valid one cycle after the operation is taken. Throughput is one pass a cycle while `o` is ready; the next
    operation follows without a gap.

    Parameters
    ----------
    matmul, pass_ : layouts
        :func:`hw.spec.operations.matmul_layout` and :func:`hw.spec.operations.pass_layout`.

    Members
    -------
    i : stream of matmul, in
    o : stream of pass_, out
    """

    def __init__(self, *, matmul, pass_):
        self._copied = [name for name, _ in pass_ if name not in ("buffer", "acc", "bias", "end", "last", "slot")]
        super().__init__({"i": In(stream.Signature(matmul)), "o": Out(stream.Signature(pass_))})

    def elaborate(self, platform):
        m = Module()
        op = Signal.like(self.i.payload)
        busy = Signal()
        outer_buffer, outer_acc, bias = Signal.like(op.buffer), Signal.like(op.acc), Signal.like(op.bias)
        left0 = Signal.like(op.tiles0)
        last0, last1 = Signal(), Signal()
        final = Signal()  # equals last0 & last1, without logic before `i.ready`

        # `op.buffer`, `op.acc` and `bias` are the addresses of the current pass, `outer_*` the addresses of the first pass of the
        # current outer iteration; `op.tiles1` counts the outer iterations that remain.
        m.d.comb += [
            self.o.valid.eq(busy),
            self.o.p.buffer.eq(op.buffer),
            self.o.p.acc.eq(op.acc),
            self.o.p.bias.eq(bias),
            self.o.p.end.eq(op.acc + op.rows),
            self.o.p.last.eq(final),
            self.o.p.slot.eq(op.tag.slot),
            *(self.o.p[name].eq(op[name]) for name in self._copied),
            self.i.ready.eq(~busy | (self.o.ready & final)),
        ]
        with m.If(self.o.valid & self.o.ready):
            with m.If(~last0):
                m.d.sync += [
                    left0.eq(left0 - 1),
                    last0.eq(left0 == 2),
                    final.eq((left0 == 2) & last1),
                    op.buffer.eq(op.buffer + op.tiles0_stride),
                    op.acc.eq(op.acc + op.tiles0_acc_stride),
                    bias.eq(bias + 1),
                ]
            with m.Else():
                m.d.sync += [
                    left0.eq(op.tiles0),
                    last0.eq(op.single0),
                    op.tiles1.eq(op.tiles1 - 1),
                    last1.eq(op.tiles1 == 2),
                    final.eq(op.single0 & (op.tiles1 == 2)),
                    op.buffer.eq(outer_buffer + op.tiles1_stride),
                    op.acc.eq(outer_acc + op.tiles1_acc_stride),
                    bias.eq(op.bias),
                    outer_buffer.eq(outer_buffer + op.tiles1_stride),
                    outer_acc.eq(outer_acc + op.tiles1_acc_stride),
                ]
        with m.If(self.i.ready):
            m.d.sync += [
                busy.eq(self.i.valid),
                op.eq(self.i.payload),
                outer_buffer.eq(self.i.p.buffer),
                outer_acc.eq(self.i.p.acc),
                bias.eq(self.i.p.bias),
                left0.eq(self.i.p.tiles0),
                last0.eq(self.i.p.single0),
                last1.eq(self.i.p.single1),
                final.eq(self.i.p.single0 & self.i.p.single1),
            ]
        return m
