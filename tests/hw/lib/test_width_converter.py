# amaranth: UnusedElaboratable=no
"""Tests that the width converter joins words, the first one lowest, and is valid in the cycle of the last word."""

import pytest

from amaranth_tpu.hw.lib.width_converter import WidthConverter
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def traffic(ports, rng, *, width, ratio, pace):
    words, complete = [], 0
    while complete < 20:
        cycle = ports.cycle
        if rng.random() < 0.02:
            ports.set(i_valid=0)
            await ports.reset()
            words = []
        valid, word = int(rng.random() < pace), rng.getrandbits(width)
        ports.set(i_valid=valid, i=word)
        await ports.settle()
        assert ports.get("last") == (len(words) == ratio - 1), f"cycle {cycle}"
        if valid:
            words.append(word)
        assert ports.get("o_valid") == (valid and len(words) == ratio), f"cycle {cycle}"
        if len(words) == ratio:
            assert ports.get("o") == sum(word << width * index for index, word in enumerate(words)), f"cycle {cycle}"
            words = []
            complete += 1
        await ports.tick()


# promise: beat-order
@pytest.mark.parametrize("pace", [0.5, 1])
@pytest.mark.parametrize("width, ratio", [(8, 1), (5, 2), (16, 2), (3, 3), (8, 4), (4, 8)])
def test_random(width, ratio, pace):
    simulate(WidthConverter(width=width, ratio=ratio), traffic, seed=seed(), width=width, ratio=ratio, pace=pace)
