"""The activation unit and the softmax unit behind one set of ports."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring

from ..softmax.lanes_unit import SoftmaxLanesUnit
from ..spec.operations import activate_layout
from .activation_unit import ActivationUnit
from .softmax_unit import SoftmaxUnit

__all__ = ["ResultUnits", "result_units", "softmax_unit"]


def result_units(config):
    """Returns the units between accumulators and unified buffer of a core. With `softmax`, this is a :class:`ResultUnits`;
    without `softmax`, an :class:`.ActivationUnit`."""
    sizes = {"n": config.n, "activate": activate_layout(config), "table_lanes": config.table_lanes}
    return ResultUnits(**sizes, softmax_lanes=config.softmax_lanes) if config.softmax else ActivationUnit(**sizes)


def softmax_unit(*, n, activate, lanes):
    """Returns the unit that executes SOFTMAX, with `lanes` elements a cycle."""
    return SoftmaxUnit(n=n, activate=activate) if lanes == 1 else SoftmaxLanesUnit(n=n, activate=activate, lanes=lanes)


class ResultUnits(wiring.Component):
    """The :class:`.ActivationUnit` and a softmax unit as one unit, which executes the operations of both in order.

    Members are the same as for the activation unit. A unit begins an operation when the other unit has ended all earlier
    operations. The softmax unit begins one cycle later than the activation unit would.

    Parameters
    ----------
    n, activate, table_lanes
        Parameters of the activation unit; the layout must have `softmax`.
    softmax_lanes : int
        1 for a :class:`.SoftmaxUnit`, more for a :class:`.SoftmaxLanesUnit`.
    """

    def __init__(self, *, n, activate, table_lanes=0, softmax_lanes=1):
        self._functions = ActivationUnit(n=n, activate=activate, table_lanes=table_lanes)
        self._softmax = softmax_unit(n=n, activate=activate, lanes=softmax_lanes)
        super().__init__(self._functions.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.functions = functions = self._functions
        m.submodules.softmax = softmax = self._softmax

        # `in_hand` counts the operations in the activation unit, fewer than there are slots; a taken operation is counted one
        # cycle later. `turn`, which selects the softmax unit, is a register: it selects the accumulator row and the vector, on
        # long paths to the memories.
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
            self.sums.row.eq(Mux(turn, softmax.sums.row, functions.sums.row)),
            self.sums.read.eq(Mux(turn, softmax.sums.read, functions.sums.read)),
            self.buffer.write.eq(functions.buffer.write | softmax.buffer.write),
            self.buffer.read.eq(functions.buffer.read),
            self.buffer.row.eq(Mux(turn, softmax.buffer.row, functions.buffer.row)),
            self.buffer.vector.eq(Mux(turn, softmax.buffer.vector, functions.buffer.vector)),
        ]
        for unit in (functions, softmax):
            m.d.comb += [unit.sums.data.eq(self.sums.data), unit.buffer.grant.eq(self.buffer.grant)]
        m.d.comb += functions.buffer.operand.eq(self.buffer.operand)
        return m
