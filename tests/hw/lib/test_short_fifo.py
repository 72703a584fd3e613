# amaranth: UnusedElaboratable=no
"""Tests of the short FIFO. Random reads and writes are compared with a Python list."""

import pytest

from amaranth_tpu.hw.lib.short_fifo import ShortFifo
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def traffic(ports, rng, *, offers, takes, depth):
    held, levels = [], set()
    for cycle in range(1000):
        await ports.settle()
        assert (ports.get("w_rdy"), ports.get("r_rdy")) == (len(held) < depth, bool(held)), f"cycle {cycle}"
        assert not held or ports.get("r_data") == held[0], f"cycle {cycle}"
        levels.add(len(held))
        word = rng.getrandbits(12)
        give, take = len(held) < depth and rng.random() < offers, bool(held) and rng.random() < takes
        ports.set(w_en=give, w_data=word, r_en=take)
        held = held[take:] + [word] * give
        await ports.tick()
    return levels


@pytest.mark.parametrize("offers, takes", [(0.9, 0.3), (0.5, 0.5), (1, 1)])
@pytest.mark.parametrize("depth", [2, 4])
def test_agrees_with_a_list(offers, takes, depth):
    levels = simulate(ShortFifo(shape=12, depth=depth), traffic, seed=seed(), offers=offers, takes=takes, depth=depth)
    assert levels == set(range(depth + 1)) or offers == 1
