"""A bench of one ring unit whose link leads back to itself, or carries prepared vectors, with checks of the unit's invariants."""

import functools
from collections import deque

import numpy as np

from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.hw.spec.operations import ring_layout
from amaranth_tpu.sim.golden.arithmetic import add
from amaranth_tpu.sim.rtl.ports import pack

#: Signals that may follow `running` by some cycles, all outside a run.
_TRAILING = 2


def looped(mode, vectors, rank, size):
    """Returns the vectors that a core in a ring with itself receives, from the vectors that it reads: uint16, in the shape of
    :func:`sim.golden.ring.exchange`."""
    total = vectors
    if mode is not RingMode.ALL_GATHER:
        words = np.ascontiguousarray(vectors).view("<u4")
        total = functools.reduce(add, (words[(rank - step) % size] for step in range(size))).view("<u2")
    return total if mode is RingMode.REDUCE_SCATTER else np.stack([total] * size)


class RingLoop:
    """A model of the memory, vector port and link of one ring unit, simulated cycle by cycle.

    Parameters
    ----------
    ports, rng
        The bench's ports and random generator.
    config : Config
    size : int
        Cores of the ring: 1 or 2. In a ring of two the neighbour sends what the core itself would send.

    Attributes
    ----------
    memory : uint16 (rows, n)
    link : deque
        Vectors in flight to the unit, each with its marks (`tuser`, `tlast`).
    loop : bool
        True if sent vectors return to the unit.
    stale : bool
        True if the next sent vector is dropped.
    faulty : bool
        True if faults are allowed. A fault ends the run; its cause and slot are stored in `fault`.
    taken : int
        Number of vectors that the unit has accepted from the link.
    came : list
        The accepted vectors.
    """

    def __init__(self, ports, rng, config, size):
        self.ports, self.rng, self.config, self.size = ports, rng, config, size
        self.memory, self.link, self.came = None, deque(), []
        self.loop, self.stale, self.faulty, self.fault, self.taken = True, False, False, None, 0
        self.marks = ["tlast", "tuser"] if any("tuser" in name for name in ports._handles) else ["tlast"]
        self.operand, self.offer, self.idle = 0, None, _TRAILING
        self.grant = self.moves = 1.0

    async def cycle(self, running, **inputs):
        """Simulates one clock cycle. Returns the names of its events: "taken" if an operation was accepted, "done" if it
        ended."""
        ports, rng, width = self.ports, self.rng, self.config.vector_width
        self.idle = 0 if running else self.idle + 1
        comes, leaves = bool(self.link), rng.random() < self.moves
        data, *marks = self.link[0] if comes else (rng.getrandbits(width), *(0 for _ in self.marks))
        ports.set(
            running=running, buffer__operand=self.operand, buffer__grant=rng.random() < self.grant, sent__tready=leaves, **inputs
        )
        ports.set(received__tvalid=comes, received__tdata=data)
        ports.set(**{f"received__{name}": mark for name, mark in zip(self.marks, marks)})
        await ports.settle()
        offer = [ports.get(f"sent__{name}") for name in ("tdata", *self.marks)] if ports.get("sent__tvalid") else None
        where = f"cycle {ports.cycle}, {self.idle} after a run"
        assert self.offer is None or offer == self.offer, f"{where}: {self.offer} was offered and not taken, then {offer}"
        if self.idle > _TRAILING:
            assert offer is None or self.offer is not None, f"{where}: a new offer"
            busy = [
                name
                for name in ("buffer__read", "buffer__write", "events__takes", "port__done", "port__op__ready")
                if ports.get(name)
            ]
            assert not busy, f"{where}: {busy}"
        if ports.get("fault__valid"):
            assert self.faulty, f"{where}: a fault"
            self.fault = ports.get("fault__cause"), ports.get("fault__slot")
        self.taken += ports.get("events__takes")
        self.offer = offer if offer and not leaves else None
        if offer and leaves and self.stale:
            self.stale = False
        elif offer and leaves and self.loop:
            # The neighbour is on the other segment of two.
            self.link.append((*offer[:2], *(mark ^ 1 for mark in offer[2:])))
        if comes and ports.get("received__tready"):
            self.came.append(self.link.popleft())
        row = ports.get("buffer__row")
        if ports.get("buffer__grant") and ports.get("buffer__read"):
            self.operand = int.from_bytes(self.memory[row].tobytes(), "little")
        elif ports.get("buffer__grant") and ports.get("buffer__write"):
            self.memory[row] = np.frombuffer(ports.get("buffer__vector").to_bytes(width // 8, "little"), np.uint16)
        elif rng.random() < 0.3:
            self.operand = rng.getrandbits(width)
        events = {"taken": ports.get("port__op__valid") and ports.get("port__op__ready"), "done": ports.get("port__done")}
        await ports.tick()
        return {name for name, now in events.items() if now}

    async def run(self, fields, rank, *, start=0, length=None, limit=2000, slot=1):
        """Runs one operation, which is offered in cycle `start` and later, until it ends or for `length` cycles. Returns True if
        the operation ended."""
        op = pack(ring_layout(self.config), tag={"slot": slot}, **fields)
        waits = True
        for cycle in range(limit if length is None else length):
            valid = waits and cycle >= start
            events = await self.cycle(
                1, position__rank=rank, position__size=self.size, port__op__valid=valid, port__op__payload=op
            )
            waits = waits and "taken" not in events
            if "done" in events:
                return True
            if self.fault:
                return False
        assert length is not None, f"{fields} hangs"
        # It is still offered in the first cycle outside the run.
        events = await self.cycle(0, port__op__valid=waits and length >= start)
        self.ports.set(port__op__valid=0)
        return "done" in events

    async def rest(self, cycles, flush=False):
        for _ in range(cycles):
            await self.cycle(0, position__flush=flush, port__op__valid=0)
        self.ports.set(position__flush=0)
