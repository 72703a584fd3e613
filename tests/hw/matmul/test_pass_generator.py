# amaranth: UnusedElaboratable=no
"""Tests that the pass generator emits the passes of random operations, one a cycle, as the two loops of the instruction set
define."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.matmul.pass_generator import PassGenerator
from amaranth_tpu.hw.spec.operations import matmul_layout, pass_layout
from amaranth_tpu.sim.rtl.ports import simulate, unpack
from matmuls import offer, passes, random_matmul
from seeds import seed
from suites import slow


def configuration(**changes):
    return Config(n=4, unified_buffer_depth=256, accumulator_depth=64, bias_depth=16, **changes)


async def traffic(ports, rng, *, config, offers, takes, count):
    """Offers operations with probability `offers` and accepts passes with probability `takes` per cycle. Returns the numbers of
    cycles and of passes."""
    layout = pass_layout(config)
    long = {10: (300, 1), 40: (2, 300)}
    pending, offered, due = [random_matmul(rng, config, loops=long.get(index)) for index in range(count)], None, []
    held, taken, first = None, 0, None
    while pending or offered or due:
        if offered is None and pending and rng.random() < offers:
            offered = pending.pop(0)
            ports.set(i__payload=offer(config, offered))
        ports.set(i__valid=offered is not None, o__ready=rng.random() < takes)
        ready = ports.get("o__ready")
        await ports.settle()
        valid, payload = ports.get("o__valid"), ports.get("o__payload")
        assert held is None or valid and payload == held, f"cycle {ports.cycle}: a pass changed while it waited"
        held = payload if valid and not ready else None
        if valid and ready:
            assert due, f"cycle {ports.cycle}: a pass too many"
            found, expected = unpack(layout, payload), due.pop(0)
            assert {name: found[name] for name in expected} == expected, f"cycle {ports.cycle}"
            taken += 1
            first = ports.cycle if first is None else first
            last = ports.cycle
        if offered and ports.get("i__ready"):
            due += passes(offered)
            offered = None
        await ports.tick()
        assert ports.cycle < 200_000, "stuck"
    ports.set(i__valid=0)
    await ports.settle()
    assert not ports.get("o__valid")
    return last - first + 1, taken


def run(config, **options):
    unit = PassGenerator(matmul=matmul_layout(config), pass_=pass_layout(config))
    return simulate(unit, traffic, seed=seed(), config=config, count=80, **options)


# promise: pass-order
@pytest.mark.parametrize("attention", [*slow(False), True])
@pytest.mark.parametrize("offers, takes", [(0.5, 0.5), (0.1, 1), *slow((1, 0.1))])
def test_random(offers, takes, attention):
    run(configuration(attention=attention), offers=offers, takes=takes)


def test_one_pass_a_cycle():
    """The pass generator emits a pass in every cycle, also in the first cycle of the next operation."""
    cycles, taken = run(configuration(), offers=1, takes=1)
    assert cycles == taken
