# amaranth: UnusedElaboratable=no
"""Tests of the two-entry queue in registers, covering order, capacity, one payload a cycle, and no combinational path from input
to output."""

import pytest

from amaranth_tpu.hw.lib.skid_buffer import SkidBuffer
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def traffic(ports, rng, *, offers, takes):
    queue, offered, most, passed = [], None, 0, 0
    for cycle in range(600):
        if offered is None and rng.random() < offers:
            offered = rng.getrandbits(8)
        ports.set(
            i__valid=offered is not None,
            i__payload=rng.getrandbits(8) if offered is None else offered,
            o__ready=rng.random() < takes,
        )
        await ports.settle()
        assert ports.get("i__ready") == (len(queue) < 2), f"cycle {cycle}"
        assert ports.get("o__valid") == bool(queue), f"cycle {cycle}"
        assert not queue or ports.get("o__payload") == queue[0], f"cycle {cycle}"
        accepted = offered is not None and len(queue) < 2
        if queue and ports.get("o__ready"):
            queue.pop(0)
            passed += 1
        if accepted:
            queue.append(offered)
            offered = None
        most = max(most, len(queue))
        await ports.tick()
    return most, passed


@pytest.mark.parametrize("offers, takes", [(1, 1), (0.7, 0.5), (0.3, 0.9)])
def test_random(offers, takes):
    most, passed = simulate(SkidBuffer(payload=8), traffic, seed=seed(), offers=offers, takes=takes)
    assert passed == 599 if offers == takes == 1 else passed > 100
    assert most == 2 or takes >= offers
