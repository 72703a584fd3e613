"""Contention for the vector port of the unified buffer. Priority: loads, which never wait, then results, then segments of the
ring, then stores."""

from collections import deque
from math import ceil, inf

__all__ = ["VectorPort"]


class VectorPort:
    """The state of the vector port over time. It advances from event to event. At most one instruction of each kind is in flight:
    one that writes results, one ring exchange, and one store.

    `result_end`, `ring_end` and `store_end` are the cycles in which the latest instruction of each kind ended; None while it is
    in flight.

    Parameters
    ----------
    beats : int
        Bus beats per vector. A load uses the port in one of `beats` cycles; a store uses it at most as often.
    """

    def __init__(self, beats):
        self._beats = beats
        self._loads = deque()  # ranges of cycles, [first, end), in which vectors arrive from host memory
        self._now = 0
        self._steps = self._each = 0  # rows that the operation has yet to read, and rows per vector that it writes
        self._pending = 0  # rows until the next vector
        self._exchange, self._share = 0, 1.0  # cycles that the ring still needs, and its share of the port
        self._vectors = 0  # vectors that the store has yet to read
        self._plan = None  # see :meth:`_planned`; None if it has changed
        self.result_end: int | None = 0
        self.ring_end: int | None = 0
        self.store_end: int | None = 0

    def load(self, first, end):
        """Records that vectors are loaded from cycle `first` until cycle `end`. Calls must be in order of time."""
        self._plan = None
        if self._loads and self._loads[-1][1] >= first:
            self._loads[-1][1] = end
        else:
            self._loads.append([first, end])

    def begin_results(self, rows, vectors):
        """Starts an instruction that reads `rows` rows of sums, one per cycle unless stalled. It writes `vectors` vectors at
        equal intervals."""
        self._steps, self._each = rows, rows / vectors if vectors else rows + 1
        self._pending = self._each
        self.result_end = self._plan = None

    def begin_ring(self, cycles, vectors):
        """Starts a ring exchange that takes `cycles` cycles unless stalled. It reads and writes `vectors` vectors at equal
        intervals."""
        self._exchange, self._share = cycles, vectors / cycles
        self.ring_end = self._plan = None

    def begin_store(self, vectors):
        self._vectors, self.store_end, self._plan = vectors, None, None

    def advance(self, now):
        """Advances all instructions to cycle `now`. Returns a cycle before which no instruction ends. Returns None if no
        instruction is in flight."""
        if self._idle:
            self._now = max(self._now, now)
        while self._now < now:
            self._step(now, self._plan or self._planned())
            self._plan = None
        if self._idle:
            return None
        self._plan = self._plan or self._planned()
        _, until, _, least = self._plan
        return min(until, self._now + least)

    def _planned(self):
        """Returns `(taken, until, rates, least)`: the results of the methods of these names in the current cycle."""
        taken, until = self._stretch()
        rates = self._rates(taken)
        return taken, until, rates, self._least(taken, *rates)

    @property
    def _idle(self):
        return self.result_end is not None and self.ring_end is not None and self.store_end is not None

    def _stretch(self):
        """Returns `(taken, until)`: whether loads use the port in the current cycle, and the cycle until which this stays so."""
        while self._loads and self._loads[0][1] <= self._now:
            self._loads.popleft()
        if not self._loads:
            return False, inf
        first, end = self._loads[0]
        return (True, end) if first <= self._now else (False, first)

    def _rates(self, taken):
        """Returns the rates per cycle as (rows of results, cycles of the ring exchange, vectors stored). `taken` is True if loads
        use the port."""
        free = 1 - taken / self._beats
        rows = 0
        if self.result_end is None:
            rows = 1 if not taken or self._beats == 1 and self._pending > 0 else min(1, free * self._each)
            free -= rows / self._each
        exchange = 0
        if self.ring_end is None:
            exchange = max(0, min(1, free / self._share))
            free -= exchange * self._share
        return rows, exchange, max(0, min(free, 1 / self._beats)) if self.store_end is None else 0

    def _least(self, taken, rows, exchange, vectors):
        """Returns the number of cycles until an instruction ends or a rate changes. `rows`, `exchange` and `vectors` are the
        rates."""
        left = inf
        if rows:
            left = self._pending if taken and self._beats == 1 else self._steps / rows
        if exchange:
            left = min(left, self._exchange / exchange)
        if vectors:
            left = min(left, self._vectors / vectors)
        return max(1, ceil(left)) if left < inf else left

    def _step(self, now, plan):
        taken, until, (rows, exchange, vectors), least = plan
        cycles = min(until - self._now, now - self._now, least)
        self._now += cycles
        if rows:
            self._steps -= rows * cycles
            self._pending -= rows * cycles
            if not taken or self._beats > 1:  # else the last vector waits
                self._pending %= self._each
                if self._steps <= 0:
                    self.result_end = self._now
        if exchange:
            self._exchange -= exchange * cycles
            if self._exchange <= 0:
                self.ring_end = self._now
        if vectors:
            self._vectors -= vectors * cycles
            if self._vectors <= 0:
                self.store_end = self._now
