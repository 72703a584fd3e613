"""Deadlock analysis of a program: dispatch, queues, instructions in flight, hazards and free space in the weight FIFO, without
time.

Whether an instruction can proceed depends on which instructions have completed, never on when. One order of events therefore
represents all.
"""

from amaranth_tpu.hw.control.dispatcher import Dispatcher
from amaranth_tpu.hw.matmul.matmul_unit import MatmulUnit
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS

__all__ = ["Progress", "touched"]


def touched(opcode, fields, host_bytes, cores=1):
    """Returns the memory that an instruction accesses: {a region, `buffer`, `acc` or `bias`: (first, last, uses)}.

    `host_bytes` : bytes moved from or to host memory. `cores` : cores in the ring. The function table is not included: only the
    activation unit uses it.
    """
    record, spans = INSTRUCTIONS[opcode], {}
    for span in record.spans:
        if span.is_touched(fields) and span.space != "table":
            first, last = fields[span.base], fields[span.base] + span.length(fields, cores) - 1
            # One range covers both reads and writes.
            others = spans.get(span.space, (first, last, ""))
            spans[span.space] = min(first, others[0]), max(last, others[1]), others[2] + span.use
    if record.transfer:
        spans[fields["region"]] = fields["offset"], fields["offset"] + host_bytes - 1, record.transfer.use
    return spans


def _conflict(one, other):
    return any(
        space in other and first <= other[space][1] and other[space][0] <= last and "w" in uses + other[space][2]
        for space, (first, last, uses) in one.items()
    )


class _Operation:
    """An instruction in flight. `waits_for` : instructions that must complete before it begins. `passes` : passes not yet begun.
    `foreign` : it has begun, and its completion depends on another core."""

    def __init__(self, unit, spans, passes, tiles, act):
        self.unit, self.spans, self.passes, self.tiles, self.act = unit, spans, passes, tiles, act
        self.waits_for, self.begun, self.foreign = set(), False, False


class Progress:
    """The instructions in flight of one run, each as far as it can proceed with the instructions dispatched until now.

    Parameters
    ----------
    config : hw.config.Config
    """

    def __init__(self, config):
        self._in_flight, self._depth = config.in_flight, config.weight_fifo_depth
        self._queues = {unit: [] for unit in Unit if unit is not Unit.CONTROL}
        self._asked = self._coming = self._taken = 0  # tiles: of dispatched LOAD_WEIGHTS; of those begun; used

    def end_foreign(self):
        """Resumes the RING begun last by :meth:`dispatch`: the data that it waited for has arrived."""
        self._queues[Unit.RING][0].foreign = False
        self._advance()

    @property
    def at_rest(self):
        """Returns whether no instruction is in flight."""
        return not any(self._queues.values())

    def dispatch(self, opcode, fields, spans, act):
        """Dispatches an instruction to its unit. Returns whether a slot and a place in the unit's queue are free, or become free.

        `act` is called when the instruction takes effect: before this method returns, in a later call, or never if it cannot
        complete. For a RING it is called when the RING begins, and returns whether to wait for :meth:`end_foreign`.
        """
        unit = INSTRUCTIONS[opcode].unit
        flying = [operation for queue in self._queues.values() for operation in queue]
        if len(flying) == self._in_flight or not self._has_room(unit):
            return False
        passes = tiles = 0
        if unit is Unit.WEIGHTS:
            self._asked += fields["rows"]
            tiles = self._asked  # up to and including its own
        elif unit is Unit.MATMUL:
            passes = fields["tiles0"] * fields["tiles1"]
            tiles = 0 if fields["keep"] else passes
        operation = _Operation(unit, spans, passes, tiles, act)
        operation.waits_for = {other for other in flying if other.unit != unit and _conflict(spans, other.spans)}
        self._queues[unit].append(operation)
        self._advance()
        return True

    def _has_room(self, unit):
        queue = self._queues[unit]
        waiting = len(queue)
        if unit in (Unit.WEIGHTS, Unit.RING) and queue and queue[0].begun:
            # One is in the unit, and the next one at its input, unless the next one waits for another unit.
            waiting -= 2 if waiting > 1 and not queue[1].waits_for else 1
        elif unit is Unit.MATMUL:
            ready = 0
            for operation in queue:
                waiting -= ready < MatmulUnit.ready_passes
                ready += operation.passes
        return waiting < Dispatcher.queue_depth

    def _advance(self):
        before = None
        while before != (before := (self._taken, sum(map(len, self._queues.values())))):
            for queue in self._queues.values():
                while queue and not queue[0].waits_for and self._ends(queue[0]):
                    ended = queue.pop(0)
                    for other in self._queues.values():
                        for operation in other:
                            operation.waits_for.discard(ended)

    def _ends(self, operation):
        """Advances the first instruction of a unit as far as possible. Returns whether it completes."""
        if operation.unit is Unit.WEIGHTS:
            if not operation.begun:
                operation.begun, self._coming = True, operation.tiles
                operation.act()
            # One tile has left the FIFO for the array, where it waits behind the tile in use.
            return operation.tiles <= self._taken + 1 + self._depth
        if operation.unit is Unit.RING:
            if not operation.begun:
                operation.begun, operation.foreign = True, operation.act()
            return not operation.foreign
        if operation.tiles:
            count = min(operation.tiles, self._coming - self._taken)
            self._taken += count
            operation.tiles -= count
            operation.passes -= count
        if not operation.tiles:
            operation.act()
        return not operation.tiles
