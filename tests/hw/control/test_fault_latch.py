# amaranth: UnusedElaboratable=no
"""Tests that the fault latch outputs a fault one cycle after it occurs, with the offset of the instruction in the reported slot.
If several sources report a fault, the first source has priority."""

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.control.fault_latch import FaultLatch
from amaranth_tpu.hw.spec.isa import Fault
from amaranth_tpu.hw.spec.operations import transfer_layout
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed

UNITS = ("unit_0", "unit_1", "unit_2")


async def faults(ports, rng, *, slots):
    due, together, offsets = None, 0, {}
    own = rng.getrandbits(32)
    for _ in range(400):
        now = {unit: (rng.random() < 0.3, rng.randrange(1, len(Fault)), rng.randrange(slots)) for unit in UNITS}
        for unit, values in now.items():
            ports.set(**dict(zip((f"{unit}__valid", f"{unit}__cause", f"{unit}__slot"), values)))
        decoder = rng.random() < 0.3, rng.randrange(1, len(Fault)), own
        ports.set(**dict(zip(("decoder__valid", "decoder__cause", "decoder__pc"), decoder)))
        # The slot of a fault is not placed again before its offset is read, one cycle later.
        slot, pc = rng.randrange(slots), rng.getrandbits(32)
        placed = rng.random() < 0.5 and slot not in [one[2] for one in now.values()]
        ports.set(placed__valid=placed, placed__slot=slot, placed__pc=pc)
        await ports.settle()
        assert ports.get("o__valid") == (due is not None)
        assert due is None or (ports.get("o__cause"), ports.get("o__pc")) == due
        due = next(((cause, offsets.get(slot, 0)) for valid, cause, slot in now.values() if valid), None)
        if due is None and decoder[0]:
            due = decoder[1:]
        offsets |= {slot: pc} if placed else {}
        together += sum(valid for valid, *_ in [*now.values(), decoder]) > 1
        await ports.tick()
    assert together > 30


def test_first_source_has_priority():
    config = Config()
    latch = FaultLatch(layouts=[transfer_layout(config)] * len(UNITS), slots=config.in_flight)
    simulate(latch, faults, seed=seed(), slots=config.in_flight)
