# amaranth: UnusedElaboratable=no
"""Tests of the operation queue. Random reads and writes are compared with a Python list: order of the slots, and number of free
entries."""

import pytest

from amaranth_tpu.hw.control.operation_queue import OperationQueue
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def traffic(ports, rng, *, offers, takes, depth):
    queue, levels = [], set()
    for cycle in range(1500):
        await ports.settle()
        assert ports.get("w_rdy") == (len(queue) < depth), f"cycle {cycle}"
        assert ports.get("r_rdy") == bool(queue), f"cycle {cycle}"
        assert not queue or ports.get("r_slot") == queue[0], f"cycle {cycle}"
        levels.add(len(queue))
        slot = rng.getrandbits(4)
        give, take = len(queue) < depth and rng.random() < offers, bool(queue) and rng.random() < takes
        ports.set(w_en=give, w_slot=slot, r_en=take)
        queue = queue[take:] + [slot] * give
        await ports.tick()
    return levels


@pytest.mark.parametrize("offers, takes", [(0.5, 0.5), (0.9, 0.3), (0.3, 0.9), (1, 1)])
@pytest.mark.parametrize("depth", [2, 4])
def test_queue_agrees_with_a_list(offers, takes, depth):
    queue = OperationQueue(slot=4, depth=depth)
    levels = simulate(queue, traffic, seed=seed(), offers=offers, takes=takes, depth=depth)
    assert levels == set(range(depth + 1)) or offers != takes or offers == 1
