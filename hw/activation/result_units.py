"""The activation unit and the softmax unit, as one."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring

from .activation_unit import ActivationUnit
from .softmax_unit import SoftmaxUnit

__all__ = ["ResultUnits"]


class ResultUnits(wiring.Component):
    """Executes the operations of the :class:`.ActivationUnit` and those of the :class:`.SoftmaxUnit` in order, and has the
    members of the first. A unit begins when the other has ended all that came before.

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

        # What the activation unit has in hand: less than the window has slots.
        in_hand = Signal(len(self.done_slot) + 1)
        turn = Signal()
        m.d.sync += in_hand.eq(in_hand + (functions.i.valid & functions.i.ready) - functions.done)
        m.d.comb += [
            turn.eq(self.i.valid & self.i.p.softmax & (in_hand == 0)),
            functions.i.payload.eq(self.i.payload),
            functions.i.valid.eq(self.i.valid & ~self.i.p.softmax),
            softmax.i.payload.eq(self.i.payload),
            softmax.i.valid.eq(turn),
            self.i.ready.eq(Mux(self.i.p.softmax, softmax.i.ready, functions.i.ready)),
            self.done.eq(functions.done | softmax.done),
            self.done_slot.eq(Mux(turn, softmax.done_slot, functions.done_slot)),
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
