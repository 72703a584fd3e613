"""A simulated ring of ring units, each with a memory, over links with latency."""

from collections import deque

import numpy as np
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect, flipped

from amaranth_tpu.hw.ring.ring_unit import RingUnit
from amaranth_tpu.hw.spec.operations import ring_layout
from amaranth_tpu.sim.rtl.ports import pack


class RingUnits(wiring.Component):
    """Several ring units in one design; members unit_0, unit_1, ... contain the ports of each unit."""

    def __init__(self, *, config, size):
        self.units = [RingUnit(config=config) for _ in range(size)]
        super().__init__({f"unit_{rank}": Out(unit.signature) for rank, unit in enumerate(self.units)})

    def elaborate(self, platform):
        m = Module()
        for rank, unit in enumerate(self.units):
            m.submodules[f"unit_{rank}"] = unit
            connect(m, flipped(getattr(self, f"unit_{rank}")), unit)
        return m


class _Unit:
    """Memory, vector port and link of one unit, as the bench models them."""

    def __init__(self, name, memory):
        self.name, self.memory, self.operand = name, memory, 0
        self.link = deque()  # (cycle from which it may be taken, data, user, last) on the way to this unit
        self.sent = self.received = self.reads = self.writes = self.taken = 0
        self.started = self.done = False
        self.moved = False  # a vector was read, written or sent in the previous cycle
        self.unseen = 0  # cycles in which only `moves` is 1: a task without a received vector began

    def check_events(self, get):
        """Checks that `events.moves` is 1 if a vector was read, written, sent or taken in the previous cycle."""
        moves, takes = get("events__moves"), get("events__takes")
        assert moves or not (self.moved or takes), f"{self.name}: a vector moved, and `moves` is 0"
        self.taken += takes
        self.unseen += moves and not (self.moved or takes)
        self.moved = False


def _sent(ports, unit):
    return tuple(ports.get(f"{unit.name}__sent__{channel}") for channel in ("tdata", "tuser", "tlast"))


async def run_bucket(ports, rng, config, bucket, *, latency=0, stall=0.0, grant=1.0, late=0, limit=None):
    """Runs one operation in all units, which may start up to `late` cycles apart.

    A link delays each vector by `latency` cycles. `stall` is the probability that a link stalls in a cycle, and `grant` the
    probability that the vector port is free.

    Returns
    -------
    cycles, units
        Cycles from the first start to the last end (None if nothing moves for `limit` cycles), and the units.

    Raises
    ------
    AssertionError
        If `events.moves` does not follow a vector that was read, written, sent or taken.
    """
    size = bucket.size
    units = [_Unit(f"unit_{rank}", memory.copy()) for rank, memory in enumerate(bucket.memories)]
    starts = [rng.randrange(late + 1) for _ in units]
    op = pack(ring_layout(config), tag={"slot": 1}, **bucket.fields)
    for rank, unit in enumerate(units):
        ports.set(
            **{f"{unit.name}__{name}": value for name, value in dict(running=1, position__rank=rank, position__size=size).items()}
        )
    quiet, offered = 0, [False] * size
    begin = ports.cycle
    while True:
        now = ports.cycle
        for rank, unit in enumerate(units):
            inputs = dict(
                port__op__valid=not unit.started and now >= begin + starts[rank],
                port__op__payload=op,
                buffer__operand=unit.operand,
                buffer__grant=rng.random() < grant,
            )
            ports.set(**{f"{unit.name}__{name}": value for name, value in inputs.items()})
        await ports.settle()
        for rank, unit in enumerate(units):
            before = units[rank - 1]
            if latency == 0 and not unit.link and ports.get(f"{before.name}__sent__tvalid"):
                unit.link.append((now, *_sent(ports, before)))
        for rank, unit in enumerate(units):
            # A vector stays offered until it is accepted.
            offered[rank] = bool(unit.link) and unit.link[0][0] <= now and (offered[rank] or rng.random() >= stall)
            drawn = (rng.getrandbits(width) for width in (config.vector_width, 8, 1))
            data, user, last = unit.link[0][1:] if offered[rank] else drawn
            inputs = dict(received__tvalid=offered[rank], received__tdata=data, received__tuser=user, received__tlast=last)
            ports.set(**{f"{unit.name}__{name}": value for name, value in inputs.items()})
        await ports.settle()
        for rank, unit in enumerate(units):
            after = units[(rank + 1) % size]
            if latency == 0:  # a wire
                ready = offered[(rank + 1) % size] and ports.get(f"{after.name}__received__tready")
            else:
                ready = len(after.link) <= latency and rng.random() >= stall
            ports.set(**{f"{unit.name}__sent__tready": ready})
        await ports.settle()
        arrived = False
        for rank, unit in enumerate(units):

            def of(name, unit=unit):
                return ports.get(f"{unit.name}__{name}")

            unit.check_events(of)
            if of("port__op__valid") and of("port__op__ready"):
                unit.started = True
            if of("sent__tvalid") and of("sent__tready"):
                if latency:
                    units[(rank + 1) % size].link.append((now + latency, *_sent(ports, unit)))
                unit.sent, unit.moved = unit.sent + 1, True
            if offered[rank] and of("received__tready"):
                unit.link.popleft()
                unit.received, arrived, offered[rank] = unit.received + 1, True, False
            if of("buffer__grant") and of("buffer__read"):
                unit.operand = int.from_bytes(unit.memory[of("buffer__row")].tobytes(), "little")
                unit.reads, unit.moved = unit.reads + 1, True
            elif of("buffer__grant") and of("buffer__write"):
                unit.memory[of("buffer__row")] = np.frombuffer(
                    of("buffer__vector").to_bytes(config.vector_bytes, "little"), np.uint16
                )
                unit.writes, unit.moved = unit.writes + 1, True
            elif rng.random() < 0.3:
                unit.operand = rng.getrandbits(config.vector_width)
            if of("port__done"):
                assert of("port__done_slot") == 1
                unit.done = True
        if all(unit.done for unit in units):
            await ports.tick()
            return now - begin, units
        quiet = 0 if arrived or any(unit.moved for unit in units) else quiet + 1
        if limit is not None and quiet > limit:
            return None, units
        await ports.tick()
