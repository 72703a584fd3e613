# amaranth: UnusedElaboratable=no
"""Tests of the scoreboard against sets, covering occupied slots and their dependencies, even if ends and allocations coincide."""

import pytest

from amaranth_tpu.hw.control.scoreboard import Scoreboard
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed
from suites import slow


async def traffic(ports, rng, *, slots, ends):
    waiting, unclear = {}, None  # `unclear`: the slot that was allocated without `clear` in the previous cycle
    for _ in range(1500):
        free = [slot for slot in range(slots) if slot not in waiting]
        ended = {slot for slot in waiting if not waiting[slot] and rng.random() < ends}
        slot = rng.choice(free) if free and rng.random() < 0.7 else None
        others = {other for other in waiting if rng.random() < 0.4}
        clear = not others and rng.random() < 0.7
        ports.set(
            allocate=slot is not None,
            slot=slot or 0,
            waits_for=sum(1 << other for other in others),
            clear=clear,
            ended=sum(1 << other for other in ended),
        )
        await ports.settle()
        assert ports.get("occupied") == sum(1 << s for s in waiting)
        for s in waiting:
            assert ports.get("waiting")[s] == sum(1 << other for other in waiting[s]), f"cycle {ports.cycle}: slot {s}"
            assert ports.get("blocked") >> s & 1 == (bool(waiting[s]) or s == unclear)
        unclear = None if clear else slot
        if slot is not None:
            waiting[slot] = others
        waiting = {s: waits - ended for s, waits in waiting.items() if s not in ended}
        await ports.tick()
    await ports.reset()
    assert ports.get("occupied") == 0


@pytest.mark.parametrize("slots, ends", [(4, 0.5), *slow((16, 0.1)), (32, 0.9)])
def test_dependencies_agree_with_sets(slots, ends):
    simulate(Scoreboard(slots=slots), traffic, seed=seed(), slots=slots, ends=ends)
