"""The outer loops of a matrix multiplication: from one MATMUL to its passes."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["PassGenerator"]


class PassGenerator(wiring.Component):
    """Walks the loops `tiles1` and `tiles0` of a MATMUL; one pass a cycle while its consumer takes them.

    Parameters
    ----------
    matmul, pass_ : layouts
        :func:`hw.operations.matmul_layout` and :func:`hw.operations.pass_layout`.
    """

    def __init__(self, *, matmul, pass_):
        self._copied = [name for name, _ in pass_ if name not in ("buffer", "acc", "bias", "last")]
        super().__init__({
            "i": In(stream.Signature(matmul)),
            "o": Out(stream.Signature(pass_)),
        })

    def elaborate(self, platform):
        m = Module()
        op = Signal.like(self.i.payload)
        busy = Signal()
        outer_buffer, outer_acc = Signal.like(op.buffer), Signal.like(op.acc)
        tile0, tile1 = Signal(16), Signal(16)
        last0, last1 = Signal(), Signal()

        # `op.buffer`, `op.acc` and `op.bias` are those of the present pass; `outer_*` those of the present t1.
        m.d.comb += [
            last0.eq(tile0 == op.tiles0 - 1),
            last1.eq(tile1 == op.tiles1 - 1),
            self.o.valid.eq(busy),
            self.o.p.buffer.eq(op.buffer),
            self.o.p.acc.eq(op.acc),
            self.o.p.bias.eq(op.bias),
            self.o.p.last.eq(last0 & last1),
            *(self.o.p[name].eq(op[name]) for name in self._copied),
            self.i.ready.eq(~busy | (self.o.ready & last0 & last1)),
        ]
        with m.If(self.o.valid & self.o.ready):
            with m.If(~last0):
                m.d.sync += [
                    tile0.eq(tile0 + 1),
                    op.buffer.eq(op.buffer + op.tiles0_stride),
                    op.acc.eq(op.acc + op.tiles0_acc_stride),
                    op.bias.eq(op.bias + 1),
                ]
            with m.Else():
                m.d.sync += [
                    tile0.eq(0),
                    tile1.eq(tile1 + 1),
                    op.buffer.eq(outer_buffer + op.tiles1_stride),
                    op.acc.eq(outer_acc + op.tiles1_acc_stride),
                    op.bias.eq(op.bias - (op.tiles0 - 1)),
                    outer_buffer.eq(outer_buffer + op.tiles1_stride),
                    outer_acc.eq(outer_acc + op.tiles1_acc_stride),
                ]
        with m.If(self.i.ready):
            m.d.sync += [
                busy.eq(self.i.valid),
                op.eq(self.i.payload),
                outer_buffer.eq(self.i.p.buffer),
                outer_acc.eq(self.i.p.acc),
                tile0.eq(0),
                tile1.eq(0),
            ]
        return m
