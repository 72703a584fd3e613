# amaranth: UnusedElaboratable=no
"""Tests of the FIFO of a link, covering order, capacity, latency and throughput in cycles, and its state after a flush."""

import pytest

from amaranth_tpu.hw.ring.link_fifo import LinkFifo
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed
from suites import slow


async def traffic(ports, rng, *, depth, cycles):
    """Checks `cycles` cycles of random traffic against a list. Phases that fill and drain the FIFO alternate, with flushes in
    between."""
    held, ready, seen, alone = [], False, set(), False  # held: elements, each with the cycle of its arrival
    for cycle in range(cycles):
        if cycle % (4 * depth) == 0:
            enters, leaves = rng.choice(((1, 0), (0, 1), (1, 1), (0.9, 0.5), (0.5, 0.9), (0.5, 0.5)))
        flush = rng.random() < 0.02
        offer, take, element = rng.random() < enters, rng.random() < leaves, rng.getrandbits(8)
        ports.set(i__valid=offer, i__payload=element, o__ready=take, flush=flush)
        await ports.settle()
        valid = ports.get("o__valid")
        # An element that arrived alone is valid in the next cycle. Others pass the memory: the first element is valid from the
        # third cycle after its arrival on, so elements that wait leave one a cycle.
        due = held and (alone or cycle - held[0][1] >= 3)
        assert bool(due) <= valid <= bool(held), f"cycle {cycle}: {len(held)} are there"
        assert not valid or ports.get("o__payload") == held[0][0], f"cycle {cycle}"
        if cycle:  # in cycle 0 the FIFO comes out of reset
            assert ports.get("i__ready") == ready, f"cycle {cycle}: {len(held)} of {depth} are there"
        arrives, gone = offer and ports.get("i__ready"), take and valid
        alone = arrives and not held and not flush
        seen.add((len(held), bool(flush)))
        # An entry counts as free a cycle after it is read.
        ready = bool(flush or len(held) + arrives < depth)
        held = [] if flush else held[gone:] + [(element, cycle)] * arrives
        await ports.tick()
    return seen


@pytest.mark.parametrize("depth", [4, *slow(2, 8, 64)])
def test_random(depth):
    seen = simulate(LinkFifo(width=8, depth=depth), traffic, seed=seed(), depth=depth, cycles=1500 + 100 * depth)
    assert {(0, False), (depth, False)} <= seen and max(count for count, flush in seen if flush) > depth / 2, seen
