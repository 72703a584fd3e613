"""The timing model of a program: an event-driven simulation of the units, the bus and the array, without data.

The compiler uses it to compare schedules and to order instructions. It is an estimate: no computed value depends on it.
"""

from collections import deque
from heapq import heappop, heappush
from math import inf

from amaranth_tpu.hw.array.transposer import Transposer
from amaranth_tpu.hw.bus.axi_reader import LOAD_LIMIT, OUTSTANDING_READS
from amaranth_tpu.hw.bus.burst_splitter import MAX_BURST
from amaranth_tpu.hw.control.decoder import decode_cycles
from amaranth_tpu.hw.control.dispatcher import Dispatcher
from amaranth_tpu.hw.control.fetch_unit import FetchUnit
from amaranth_tpu.hw.cycles import PASSES, in_array, result_cycles, results_register, update_latency
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode

from ...rtl.host_memory import DEFAULT_HOST
from .alone import alone_cycles, exchange
from .shared_memory import SharedMemory
from .tile_path import TilePath
from .units import ACTIVATE, LOAD, MATMUL, RING, STORE, UNITS, WEIGHTS, Timeline, turnaround
from .vector_port import VectorPort

__all__ = ["simulate"]

_DISPATCH = 6  # cycles per instruction, plus one for each in flight
_START, _END = 13, 9  # cycles around a run: start until fetch and decode, last completion until interrupt
# Cycles from the last vector or tile to the start of a dependent operation. Results: with and without dispatch between the two;
# stores: after the memory's response, beside the latency of their reads; loads; tiles: from arrival to use by the array; ring
# exchanges.
_RESULTS, _RESULTS_IDEAL, _STORED, _LOADED, _TILE, _EXCHANGED = 11, 6, 8, 2, 2, 4


class _Run:
    def __init__(self, ops, config, memory, ideal, limit, cores):
        self.ops, self.config, self.latency, self.ideal, self.limit = ops, config, memory.latency, ideal, limit
        self.cores, latency = cores, memory.latency
        self.shared = SharedMemory(memory, config) if memory.beat_cycles(config) else None  # None: not shared
        self.rows = sum(op.passes * op.rows for op in ops if op.unit == MATMUL)
        self.beats = config.beats_per_vector
        self.wake = [0, _START + latency]
        self.starts = [0] * len(ops)
        self.queues = [deque() for _ in range(UNITS)]
        self.done = [[] for _ in range(UNITS)]  # completion times, by unit
        self.blocks = [([], 0)] * UNITS  # per unit: the completions that its next operation waits for, and the number needed
        self.free = [0] * UNITS
        self.begin_at: float = 0  # no operation begins earlier; infinity: no operation waits for a time
        self.flight, self.completed, self.decode = [], 0, decode_cycles(config)
        self.dispatched, self.next_dispatch = 0, 0 if ideal else _START + latency
        self.full_until: float = 0  # no instruction is dispatched before; infinity: dispatch waits for a queue
        self.bus_free = _START + latency if ideal else 0
        self.held_until: float = 0  # no burst is granted before, unless a unit starts or the array takes a tile
        self.data_free = 0
        self.bursts, self.load_bursts = deque(), deque()  # when the data of requested bursts has arrived; of loads, with beats
        self.load_beats = 0  # in `load_bursts`
        self.tiles = TilePath(config)
        self.room_at = 0  # the last cycle for which a load was to wait for room
        self.load, self.load_bias = 0, False  # vectors that the current load has yet to request
        # Whether the load is transposed, and when all vectors of earlier transposed loads have left the transposer.
        self.load_transposed, self.transposed_end = False, 0
        self.tiles_wanted, self.tiles_asked, self.tiles_taken = 0, 0, 0
        self.segments = deque()  # tile counts at which a LOAD_WEIGHTS completes
        self.arrivals = deque()
        # The array does nothing before `pass_at`: the start of the next pass if its accumulator row `pass_acc` is known, and
        # infinity while no tile arrives.
        self.pass_at: float = 0
        self.matmul, self.passes, self.pass_acc = None, 0, None
        self.array_free, self.shift_free, self.busy, self.begun = 0, 0, 0, []
        self.recent = deque()
        self.leaves, self.in_array = deque(maxlen=PASSES), in_array(config)  # when the latest passes have left the array
        self.turnaround = turnaround(config)
        # Cycles from the last vector to the completion of the instruction, as seen by its dependents.
        results = results_register(config) + (_RESULTS_IDEAL if ideal else _RESULTS)
        self.after = {ACTIVATE: results, STORE: latency + _STORED + config.port_latency, RING: _EXCHANGED}
        # The port, the cycle from which it has to advance, and the last one for which it was to wake.
        self.port, self.port_at, self.port_wake = VectorPort(self.beats), inf, None
        self.taken = [False] * UNITS  # units that still execute their previous instruction

    def run(self):
        now, wake, count, taken = 0, self.wake, len(self.ops), self.taken
        limit = inf if self.limit is None else self.limit - _END - self.rows
        while wake:
            now, progress = heappop(wake), True
            while wake and wake[0] == now:
                heappop(wake)
            while progress:
                progress = now >= self.next_dispatch and now >= self.full_until and self.dispatched < count and self.dispatch(now)
                if now >= self.port_at:
                    progress |= self.move(now)
                if now >= self.begin_at:
                    progress |= self.begin(now)
                if now >= self.pass_at and taken[MATMUL]:
                    progress |= self.array(self.matmul, now)
                if now >= self.bus_free and now >= self.held_until and (taken[LOAD] or taken[WEIGHTS]):
                    progress |= self.bus(now)
            if now - self.busy >= limit:
                return None
        if any(self.queues) or self.dispatched < count or taken[MATMUL]:
            return None
        return Timeline(now + _END, self.starts, self.busy, self.done, self.begun)

    def at(self, time):
        heappush(self.wake, time)
        return True

    def complete(self, unit, time):
        self.begin_at, self.completed = 0, self.completed + 1
        self.full_until = min(self.full_until, time)
        self.done[unit].append(time)
        heappush(self.flight, time)
        self.at(time)

    def dispatch(self, now):
        op = self.ops[self.dispatched]
        if not self.ideal:
            while self.flight and self.flight[0] <= now:
                heappop(self.flight)
            flight = self.dispatched - self.completed + len(self.flight)
            if flight >= self.config.in_flight:
                self.full_until = self.flight[0] if self.flight else inf
                return False
            if len(self.queues[op.unit]) >= Dispatcher.queue_depth:
                self.full_until = inf
                return False
            following = self.ops[min(self.dispatched + 1, len(self.ops) - 1)]
            self.next_dispatch = now + max(_DISPATCH + flight, self.decode[following.opcode])
            beats = self.config.instruction_bytes // self.config.bus_bytes
            self.data_free = max(self.data_free, now) + beats
            if self.shared:
                self.next_dispatch = max(self.next_dispatch, self.shared.occupy(now, beats, 1 / FetchUnit.group))
            self.at(self.next_dispatch)
        queue = self.queues[op.unit]
        if not queue:  # another head, which may begin
            self.begin_at = 0
        queue.append((self.dispatched, op))
        self.dispatched += 1
        return True

    def blocked_until(self, unit, op, now):
        """Returns the time at which the dependencies of the instruction `op`, the next on its unit, have completed; infinity if
        this is not known yet."""
        done, need = self.blocks[unit]
        if need and (len(done) < need or done[need - 1] > now):
            return done[need - 1] if len(done) >= need else inf
        for other, need in op.waits:
            done = self.done[other]
            if len(done) < need or done[need - 1] > now:
                self.blocks[unit] = done, need
                return done[need - 1] if len(done) >= need else inf
        self.blocks[unit] = [], 0
        return 0

    def begin(self, now):
        """Starts the instructions at the heads of the units' queues that need not wait. Returns True if any started. `begin_at`
        is the earliest time at which another may start, unless an instruction is dispatched or completes before."""
        self.begin_at, taken, began = inf, self.taken, False
        for unit, queue in enumerate(self.queues):
            if taken[unit] or not queue:
                continue
            index, op = queue[0]
            until = self.free[unit]
            if until <= now:  # else its dependencies are not needed yet
                until = self.blocked_until(unit, op, now)
            if unit == LOAD and not op.fields.get("transpose"):  # waits for transposed loads
                until = max(until, self.transposed_end + _LOADED)
            if until > now:
                if until < self.begin_at:
                    self.begin_at = until
                continue
            queue.popleft()
            self.full_until = self.held_until = 0
            self.starts[index], began = now, True
            self.start(unit, op, now)
            if self.free[unit] > now:  # else the unit is taken until the instruction completes
                self.begin_at = min(self.begin_at, self.free[unit])
        return began

    def start(self, unit, op, now):
        self.taken[unit] = True
        if unit == LOAD:
            self.load_bias, self.load_transposed = op.opcode is Opcode.LOAD_BIAS, bool(op.fields.get("transpose"))
            self.load_at = op.fields.get("offset", 0) // self.config.vector_bytes
            self.load = op.rows * INSTRUCTIONS[op.opcode].vectors(self.config.n, op.fields)
        elif unit == WEIGHTS:
            self.tiles_wanted += op.rows
            self.segments.append(self.tiles_wanted)
            self.tiles.begin(op)
        elif unit == MATMUL:
            self.matmul, self.passes, self.pass_at = op, 0, 0
        elif self.ideal or op.opcode in (Opcode.UPDATE, Opcode.STORE_UPDATE):  # updates do not use the vector port
            self.taken[unit] = False
            self.free[unit] = now + alone_cycles(op, self.config, self.cores)
            self.at(self.free[unit])
            later = update_latency(self.config) if op.opcode is Opcode.UPDATE and not self.ideal else 0
            self.complete(unit, self.free[unit] + self.after[unit] + later)
        else:
            self.port.advance(now)
            self.port_at = now
            if unit == STORE:
                self.port.begin_store(op.rows)
                self.stored = op.rows * self.beats
            elif unit == RING:
                self.port.begin_ring(*exchange(op, self.config, self.cores))
            else:
                self.port.begin_results(*result_cycles(self.config, op.opcode, op.fields))

    def move(self, now):
        """Advances the instructions that use the buffer's vector port: results, ring exchanges and stores."""
        port, progress = self.port, False
        wake = port.advance(now)
        self.port_at = inf if wake is None else now + 1
        for unit, end in ((ACTIVATE, port.result_end), (RING, port.ring_end), (STORE, port.store_end)):
            if end is not None and self.taken[unit]:
                if unit == STORE and self.shared:
                    end = self.shared.occupy(end, self.stored, -(-self.stored // MAX_BURST))
                self.complete(unit, end + self.after[unit])
                self.taken[unit], progress = False, True
        if wake not in (None, self.port_wake):
            self.port_wake = wake
            self.at(wake)
        return progress

    def array(self, op, now):
        """Advances the passes of the current MATMUL `op`: finds the start of the next pass, or starts it now."""
        if self.pass_acc is None:
            start = max(now, self.array_free)
            if len(self.leaves) == PASSES:
                start = max(start, self.leaves[0])
            if not op.keep:
                if not self.arrivals:
                    self.pass_at = inf
                    return False
                start = max(start, self.arrivals[0] + _TILE, self.shift_free)
            acc = op.acc + self.passes % op.tiles0 * op.acc_stride
            while self.recent and self.recent[0][0] + self.recent[0][2] + self.turnaround <= now + 1:
                self.recent.popleft()
            end = acc + op.rows
            for begun, base, rows in self.recent:
                if base < end and acc < base + rows:
                    start = max(start, begun + self.turnaround + (0 if acc <= base else rows - 1))
            self.pass_at, self.pass_acc = start, acc
            return True if start == now else self.at(start)
        acc, self.pass_acc = self.pass_acc, None
        self.array_free = now + max(2, op.rows)
        self.leaves.append(now + op.rows - 1 + self.in_array)
        self.busy += op.rows
        self.begun.append(now)
        if not op.keep:
            self.arrivals.popleft()
            self.tiles_taken, self.held_until = self.tiles_taken + 1, 0
            self.shift_free = now + self.config.tile_cycles
        self.recent.append((now, acc, op.rows))
        self.passes += 1
        self.at(self.array_free)
        if self.passes == op.passes:
            self.complete(MATMUL, now + op.rows - 1 + self.turnaround + self.config.n)
            self.taken[MATMUL] = False
        return True

    def bus(self, now):
        """Grants the bus to one read burst of weights or of a load. Returns True if any event occurred. Addresses are issued one
        per cycle; data returns in order, one beat per cycle."""
        while self.bursts and self.bursts[0] <= now:
            self.bursts.popleft()
        if len(self.bursts) >= OUTSTANDING_READS:
            self.held_until = self.bursts[0]
            return False
        held = self.tiles_asked - self.tiles_taken
        tiles = 0
        if self.tiles_asked < self.tiles_wanted:
            tiles = min(self.tiles.a_burst, self.tiles_wanted - self.tiles_asked, self.tiles.depth)
            tiles = tiles if held + tiles <= self.tiles.depth + 1 else 0
        loading = self.taken[LOAD]
        room = self.room_for_load(now) if loading else now
        loads = loading and room == now
        if tiles and (not loads or self.tiles.is_urgent(held, self.arrivals, now)):
            if self.pass_at == inf:
                self.pass_at = now
            for number in range(tiles):
                arrival = self.deliver(now, self.tiles.vectors, number == 0)
                self.tiles_asked += 1
                self.arrivals.append(self.tiles.pass_on(arrival))
                while self.segments and self.segments[0] <= self.tiles_asked:
                    self.segments.popleft()
                    self.complete(WEIGHTS, arrival)
            self.taken[WEIGHTS] = self.tiles_asked < self.tiles_wanted
        elif loads:
            block = max(1, MAX_BURST // self.beats)
            vectors = min(self.load, block - self.load_at % block)
            self.load_at += vectors
            arrival = self.deliver(now, vectors)
            later = Transposer.latency + self.config.n - 1 if self.load_transposed else 0
            if not self.load_bias:
                self.port.load(arrival - vectors * self.beats + later, arrival + later)
                if self.port_at < inf:
                    self.port_at = now
            self.load_bursts.append((arrival, vectors * self.beats))
            self.load_beats += vectors * self.beats
            self.load -= vectors
            if self.load_transposed:
                self.transposed_end = arrival + later
            if not self.load:
                self.taken[LOAD] = False
                self.complete(LOAD, arrival + later + _LOADED)
        else:
            if loading and room != self.room_at:
                self.room_at = room
                self.at(room)
            self.held_until = room if loading else inf
            return False
        self.bursts.append(self.data_free)
        self.at(self.data_free)
        self.bus_free = now + 1
        return self.at(self.bus_free)

    def room_for_load(self, now):
        """Returns the cycle from which there is room for another burst of a load."""
        while self.load_bursts and self.load_bursts[0][0] <= now:
            self.load_beats -= self.load_bursts.popleft()[1]
        excess = self.load_beats - LOAD_LIMIT + MAX_BURST
        for arrival, beats in self.load_bursts:
            if 0 < excess <= beats:
                return max(now, arrival - beats + excess)
            excess -= beats
        return now

    def deliver(self, now, vectors, bursts=1):
        """Reserves the bus for `vectors` vectors, with which `bursts` bursts begin. Returns the time of the last beat."""
        beats = vectors * self.beats
        self.data_free = max(self.data_free, now + self.latency) + beats
        if self.shared:
            self.data_free = max(self.data_free, self.shared.occupy(now + self.latency, beats, bursts))
        return self.data_free


def simulate(ops, config, memory=DEFAULT_HOST, ideal=False, limit=None, cores=1):
    """Simulates instructions in the given order. Returns the Timeline, or None as soon as it is certain that the program takes
    `limit` cycles or more, or that it deadlocks.

    `memory` is a :class:`.HostMemory`. If `ideal` is True, all instructions are dispatched at once to unlimited queues, and each
    unit has its own vector port: sorting by the resulting start times gives the better schedule. `cores`: cores of the ring.
    """
    return _Run(ops, config, memory, ideal, limit, cores).run()
