"""The activation unit, the softmax unit and the update unit behind one set of ports."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect, flipped

from ..softmax.lanes_unit import SoftmaxLanesUnit
from ..spec.operations import activate_layout
from .activation_unit import ActivationUnit
from .softmax_unit import SoftmaxUnit
from .update_unit import UpdateUnit

__all__ = ["ResultUnits", "result_units", "softmax_unit"]


def result_units(config):
    """Returns the units between accumulators and unified buffer of a core. With `softmax`, this is a :class:`ResultUnits`;
    without `softmax`, an :class:`.ActivationUnit`."""
    sizes = {"n": config.n, "activate": activate_layout(config), "table_lanes": config.table_lanes}
    if not config.softmax:
        return ActivationUnit(**sizes)
    updates = {"lanes": config.update_lanes, "lead": config.lead, "latency": config.latency} if config.update_lanes else None
    return ResultUnits(**sizes, softmax_lanes=config.softmax_lanes, updates=updates)


def softmax_unit(*, n, activate, lanes):
    """Returns the unit that executes SOFTMAX, with `lanes` elements a cycle."""
    return SoftmaxUnit(n=n, activate=activate) if lanes == 1 else SoftmaxLanesUnit(n=n, activate=activate, lanes=lanes)


class ResultUnits(wiring.Component):
    """The :class:`.ActivationUnit`, a softmax unit and, with `updates`, an :class:`.UpdateUnit` as one unit, which executes the
    operations of all in order.

    Members are the same as for the activation unit, and `biases` and `updates` of the update unit. A unit begins an operation
    when the other units have ended all earlier operations. The softmax unit begins one cycle later than the activation unit
    would.

    Parameters
    ----------
    n, activate, table_lanes
        Parameters of the activation unit; the layout must have `softmax`.
    softmax_lanes : int
        1 for a :class:`.SoftmaxUnit`, more for a :class:`.SoftmaxLanesUnit`.
    updates : dict or None
        `lanes`, `lead` and `latency` of an :class:`.UpdateUnit`.
    """

    def __init__(self, *, n, activate, table_lanes=0, softmax_lanes=1, updates=None):
        self._functions = ActivationUnit(n=n, activate=activate, table_lanes=table_lanes)
        self._softmax = softmax_unit(n=n, activate=activate, lanes=softmax_lanes)
        self._updates = UpdateUnit(n=n, activate=activate, **updates) if updates else None
        more = {name: Out(getattr(self._updates, name).signature) for name in ("biases", "updates")} if updates else {}
        super().__init__({**self._functions.signature.members, **more})

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
        if self._updates:
            m.submodules.updates = self._updates
            self._update(m, functions, (in_hand == 0) & ~taken, turn)
        return m

    def _update(self, m, functions, idle, turn):
        """Connects the update unit. `idle` is 1 if the activation unit has no operation.

        The last assignment to a signal counts: these add the update unit to the two others."""
        updates, op, done = self._updates, self.port.op, self.port.done
        in_hand, began = Signal(len(self.port.done_slot) + 1), updates.port.op.valid & updates.port.op.ready
        busy = in_hand.any()
        m.d.sync += in_hand.eq(in_hand + began - updates.port.done)
        with m.If(busy):
            m.d.comb += [self.sums.row.eq(updates.sums.row), self.sums.read.eq(updates.sums.read)]
            m.d.sync += turn.eq(0)
        with m.If(busy | op.p.update):
            m.d.comb += [functions.port.op.valid.eq(0), op.ready.eq(updates.port.op.ready & op.p.update & idle)]
        with m.If(updates.port.done):
            m.d.comb += self.port.done_slot.eq(updates.port.done_slot)
        m.d.comb += [
            done.eq(functions.port.done | self._softmax.port.done | updates.port.done),
            updates.port.op.payload.eq(op.payload),
            updates.port.op.valid.eq(op.valid & op.p.update & idle),
            updates.sums.data.eq(self.sums.data),
            self.moves.eq(functions.moves | self._softmax.moves | busy),
        ]
        connect(m, updates.biases, flipped(self.biases))
        connect(m, updates.updates, flipped(self.updates))
