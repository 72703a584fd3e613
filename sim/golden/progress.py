"""Deadlock analysis of a program. It models dispatch, queues, instructions in flight, hazards and free space in the weight FIFO,
without time.

Whether an instruction can proceed depends only on which instructions have completed, not on the time of their completion. It is
therefore enough to simulate one order of events.
"""

from amaranth_tpu.hw.array.weight_unpacker import WeightUnpacker
from amaranth_tpu.hw.control.dispatcher import Dispatcher
from amaranth_tpu.hw.matmul.matmul_unit import MatmulUnit
from amaranth_tpu.hw.spec.codes import WeightFormat
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS

__all__ = ["Progress", "touched"]


def touched(opcode, fields, host_bytes, cores=1):
    """Returns the memory that an instruction accesses: {space: (first, last, uses)}. The space is a region, `buffer`, `acc` or
    `bias`. `uses` contains "r" for reads and "w" for writes.

    `host_bytes` is the number of bytes moved from or to host memory, and `cores` the number of cores in the ring. The function
    table is not included, because only the activation unit uses it.
    """
    record, spans = INSTRUCTIONS[opcode], {}
    for span in record.spans:
        if span.is_touched(fields) and span.space != "table":
            first, last = fields[span.base], fields[span.base] + span.length(fields, cores) - 1
            # One range covers the reads and the writes of a space.
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
    """An instruction in flight.

    `waits_for` : instructions that must complete before it begins. `passes` : passes not yet begun. `foreign` : True if it has
    begun, and its completion depends on another core.
    """

    def __init__(self, unit, spans, passes, tiles, act):
        self.unit, self.spans, self.passes, self.tiles, self.act = unit, spans, passes, tiles, act
        self.waits_for, self.begun, self.foreign = set(), False, False


class Progress:
    """The instructions in flight of one program. Each has advanced as far as it can with the instructions dispatched until now.

    Parameters
    ----------
    config : hw.config.Config
    """

    def __init__(self, config):
        self._config, self._in_flight, self._tile = config, config.in_flight, 1
        self._queues = {unit: [] for unit in Unit if unit is not Unit.CONTROL}
        self._asked = self._coming = self._taken = 0  # tiles requested by dispatched LOAD_WEIGHTS; by begun ones; tiles used

    def end_foreign(self):
        """Resumes the RING that :meth:`dispatch` began last: its data from the other cores has arrived."""
        self._queues[Unit.RING][0].foreign = False
        self._advance()

    @property
    def at_rest(self):
        """Returns True if no instruction is in flight."""
        return not any(self._queues.values())

    def dispatch(self, opcode, fields, spans, act):
        """Dispatches an instruction to its unit. Returns False if the program is deadlocked: the instruction cannot get one of
        the slots for instructions in flight, or space in the queue of its unit.

        `act` is called when the instruction takes effect: before this method returns, in a later call, or never if the
        instruction cannot complete. For a RING, `act` is called when the RING begins, and returns True if the RING must wait for
        :meth:`end_foreign`.
        """
        unit = INSTRUCTIONS[opcode].unit
        flying = [operation for queue in self._queues.values() for operation in queue]
        if len(flying) == self._in_flight or not self._has_room(unit):
            return False
        passes = tiles = 0
        if unit is Unit.WEIGHTS:
            self._asked += fields["rows"]
            self._tile = max(self._tile, WeightFormat(fields.get("weight_format", 0)).vectors(self._config.n, 1))
            tiles = self._asked  # tiles needed up to and including this instruction
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
            # The unit executes the first, and holds the second at its input, unless the second waits for another unit.
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
        """Advances the first instruction in the queue of a unit as far as possible. Returns True if it completes."""
        if operation.unit is Unit.WEIGHTS:
            if not operation.begun:
                operation.begun, self._coming = True, operation.tiles
                operation.act()
            # One tile has left the FIFO: the array holds it until the tile in use is released. A core that decodes weights has a
            # buffer before the FIFO, too. Each of its tiles counts as the largest one of the program.
            buffered = WeightUnpacker.depth // self._tile if self._config.weight_formats else 0
            return operation.tiles <= self._taken + 1 + self._config.weight_fifo_depth + buffered
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
