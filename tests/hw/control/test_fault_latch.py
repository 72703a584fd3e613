# amaranth: UnusedElaboratable=no
"""Tests that the fault latch outputs a fault one cycle after it occurs. If several sources report a fault, the first source has
priority."""

from amaranth_tpu.hw.control.fault_latch import FaultLatch
from amaranth_tpu.hw.spec.isa import Fault
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def faults(ports, rng, *, sources):
    due, together = None, 0
    for _ in range(300):
        now = [(rng.random() < 0.3, rng.randrange(1, len(Fault)), rng.getrandbits(32)) for _ in range(sources)]
        for index, values in enumerate(now):
            ports.set(**dict(zip((f"i__{index}__valid", f"i__{index}__cause", f"i__{index}__pc"), values)))
        await ports.settle()
        assert ports.get("o__valid") == (due is not None)
        assert due is None or (ports.get("o__cause"), ports.get("o__pc")) == due[1:]
        due = next((fault for fault in now if fault[0]), None)
        together += sum(valid for valid, _, _ in now) > 1
        await ports.tick()
    assert together > 30


def test_first_source_has_priority():
    simulate(FaultLatch(sources=4), faults, seed=seed(), sources=4)
