# amaranth: UnusedElaboratable=no
"""Tests that the delay line outputs its inputs `cycles` cycles later, and that a reset discards values in flight."""

import pytest

from amaranth_tpu.hw.lib.delay_line import DelayLine
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def traffic(ports, rng, *, cycles, width, length):
    sent = []
    for cycle in range(length):
        if rng.random() < 0.01:
            ports.set(i_valid=1)
            await ports.reset()
            sent = []
        sent.append((int(rng.random() < 0.6), rng.getrandbits(width)))
        ports.set(i_valid=sent[-1][0], i_data=sent[-1][1])
        await ports.settle()
        valid, data = sent[-1 - cycles] if len(sent) > cycles else (0, None)
        assert ports.get("o_valid") == valid, f"cycle {cycle}"
        if valid:
            assert ports.get("o_data") == data, f"cycle {cycle}"
        await ports.tick()


@pytest.mark.parametrize("cycles, width", [(2, 1), (2, 7), (3, 12), (4, 5), (5, 9), (16, 11), (33, 8)])
def test_random(cycles, width):
    simulate(DelayLine(cycles=cycles, width=width), traffic, seed=seed(), cycles=cycles, width=width, length=600)


@pytest.mark.parametrize("cycles", [1, 0, -3])
def test_rejects(cycles):
    with pytest.raises(ValueError, match=f"at least 2, not {cycles}"):
        DelayLine(cycles=cycles, width=4)
