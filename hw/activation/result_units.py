"""The activation unit and the softmax unit, as one."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring

from .activation_unit import ActivationUnit
from .softmax_unit import SoftmaxUnit

__all__ = ["ResultUnits"]


class ResultUnits(wiring.Component):
    """Executes the operations of the :class:`.ActivationUnit` and those of the :class:`.SoftmaxUnit` in order, and has the
    members of the first. A unit begins when the other has ended all that came before; the softmax unit a cycle after that.

    Parameters
    ----------
    n, activate, table_lanes
        As of the activation unit; the layout has `softmax`.
    """

    def __init__(self, *, n, activate, table_lanes=0):
        self._functions = ActivationUnit(n=n, activate=activate, table_lanes=table_lanes)
        self._softmax = SoftmaxUnit(n=n, activate=activate)
        super().__init__(self._functions.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.functions = functions = self._functions
        m.submodules.softmax = softmax = self._softmax

        # Operations in the activation unit: fewer than there are slots; the last that it took counts a cycle later. The turn of
        # the softmax unit comes out of a register, since it chooses the accumulator row and the vector that both units' memories
        # see.
        in_hand, taken = Signal(len(self.port.done_slot) + 1), Signal()
        turn = Signal()
        m.d.sync += [
            taken.eq(functions.port.op.valid & functions.port.op.ready),
            in_hand.eq(in_hand + taken - functions.port.done),
            turn.eq(self.port.op.valid & self.port.op.p.softmax & (in_hand == 0) & ~taken & ~softmax.port.done),
        ]
        m.d.comb += [
            functions.port.op.payload.eq(self.port.op.payload),
            functions.port.op.valid.eq(self.port.op.valid & ~self.port.op.p.softmax),
            softmax.port.op.payload.eq(self.port.op.payload),
            softmax.port.op.valid.eq(turn),
            self.port.op.ready.eq(Mux(self.port.op.p.softmax, softmax.port.op.ready, functions.port.op.ready)),
            self.port.done.eq(functions.port.done | softmax.port.done),
            self.port.done_slot.eq(Mux(softmax.port.done, softmax.port.done_slot, functions.port.done_slot)),
            self.moves.eq(functions.moves | softmax.moves),
            self.acc_row.eq(Mux(turn, softmax.acc_row, functions.acc_row)),
            self.acc_read.eq(Mux(turn, softmax.acc_read, functions.acc_read)),
            self.write.eq(functions.write | softmax.write),
            self.read.eq(functions.read),
            self.row.eq(Mux(turn, softmax.row, functions.row)),
            self.vector.eq(Mux(turn, softmax.vector, functions.vector)),
        ]
        for unit in (functions, softmax):
            m.d.comb += [unit.sums.eq(self.sums), unit.grant.eq(self.grant)]
        m.d.comb += functions.operand.eq(self.operand)
        return m
