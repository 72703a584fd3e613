"""The activation unit: accumulators -> function -> rounding -> unified buffer."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .hierarchy import instantiate
from .isa import Format, Function

__all__ = ["ActivationLane", "ActivationUnit"]


class ActivationLane(wiring.Component):
    """The function and the rounding of one lane; combinational.

    `value` is a sum as the cells make it: no subnormal, and every NaN 0x7FC00000. `keep` at 0 makes the lane +0.
    `rounded` is bfloat16, to nearest, ties to even; a sum that is no subnormal cannot round to one.
    """

    def __init__(self):
        super().__init__({
            "value": In(32), "function": In(Function), "keep": In(1),
            "binary32": Out(32), "rounded": Out(16),
        })

    def elaborate(self, platform):
        m = Module()
        negative = self.value[31]
        with m.If(self.keep & ~((self.function == Function.RELU) & negative)):
            m.d.comb += self.binary32.eq(self.value)
        # Infinities and the NaN have no low bits: they never round.
        high, low = self.binary32[16:], self.binary32[:16]
        up = low[15] & (low[:15].any() | high[0])
        m.d.comb += self.rounded.eq(high + up)
        return m


class ActivationUnit(wiring.Component):
    """Executes ACTIVATE operations in order.

    One vector a cycle while `grant` takes them: a row a cycle as bfloat16, a row in two cycles as binary32. The first
    vector comes three cycles after the operation, and the next operation follows without a gap.

    Parameters
    ----------
    n : int
        Lanes.
    activate : layout
        :func:`hw.operations.activate_layout`.

    Members
    -------
    i : stream of operations; `done`, `done_slot` : the last vector of the operation with this slot was written a cycle ago.
    acc_row, acc_read, sums : to the accumulators.
    write, row, vector, grant : to the unified buffer; a vector is written in a cycle in which `write` and `grant` are 1.
    """

    def __init__(self, *, n, activate):
        self.n = n
        tag = activate["tag"].shape
        super().__init__({
            "i": In(stream.Signature(activate)), "done": Out(1), "done_slot": Out(tag["slot"].shape),
            "acc_row": Out(activate["acc"].shape), "acc_read": Out(1), "sums": In(32 * n),
            "write": Out(1), "row": Out(activate["row"].shape), "vector": Out(16 * n), "grant": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        advance = Signal()

        # Stage `issue`: the next row of the operation that runs, or the first of one that comes. `half` is the upper half of
        # a binary32 row; `rows`, `acc` and `row` are what is left to do, and where.
        op, held = Signal.like(self.i.payload), Signal.like(self.i.payload)
        running = Signal()
        half = Signal()
        last_half = Signal()
        last = Signal()
        m.d.comb += [
            op.eq(Mux(running, held, self.i.payload)),
            last_half.eq((op.format == Format.BFLOAT16) | half),
            last.eq(last_half & (op.rows == 1)),
            self.acc_row.eq(op.acc),
            self.acc_read.eq(advance),
            self.i.ready.eq(advance & ~running),
        ]
        # Stage `read`: the memory gives the sums. Stage `round`: they stand in a register, rounding follows.
        step = data.StructLayout({"valid": 1, "last": 1, "half": 1, "op": op.shape()})
        issued, read, value = Signal(step), Signal(step), Signal(step)
        sums = Signal(32 * self.n, reset_less=True)
        m.d.comb += [
            issued.valid.eq(running | self.i.valid),
            issued.last.eq(last),
            issued.half.eq(half),
            issued.op.eq(op),
        ]
        with m.If(advance):
            m.d.sync += [
                running.eq(issued.valid & ~last),
                half.eq(issued.valid & ~last_half),
                held.eq(op),
                held.row.eq(op.row + 1),
                read.eq(issued), value.eq(read), sums.eq(self.sums),
            ]
            with m.If(last_half):
                m.d.sync += [held.rows.eq(op.rows - 1), held.acc.eq(op.acc + 1)]
        rounded = Signal(16 * self.n)
        binary32 = Signal(32 * self.n)
        keep = Signal(self.n)
        m.d.comb += keep.eq(Cat(value.op.lanes >= c + 1 for c in range(self.n)))
        for c in range(self.n):
            instantiate(m, platform, ActivationLane, name=f"lane_{c}", module="tpu_activation_lane", clocked=False,
                        value=sums.word_select(c, 32), function=value.op.function, keep=keep[c],
                        rounded=rounded.word_select(c, 16), binary32=binary32.word_select(c, 32))

        # Stage `write`: the vector waits for the unified buffer.
        write_last = Signal()
        slot = Signal.like(op.tag.slot)
        with m.If(advance):
            m.d.sync += [
                self.write.eq(value.valid),
                write_last.eq(value.last),
                slot.eq(value.op.tag.slot),
                self.row.eq(value.op.row),
                self.vector.eq(Mux(value.op.format == Format.BFLOAT16, rounded,
                                   Mux(value.half, binary32[16 * self.n:], binary32[:16 * self.n]))),
            ]
        m.d.comb += advance.eq(~self.write | self.grant)
        m.d.sync += [self.done.eq(self.write & self.grant & write_last), self.done_slot.eq(slot)]
        return m
