# amaranth: UnusedElaboratable=no
"""Tests that the counted stall reason has the priority that the register map documents, for all inputs from the units."""

from itertools import product

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.control.dispatcher import units_of
from amaranth_tpu.hw.control.stall_reasons import StallReasons
from amaranth_tpu.hw.spec.registers import STALLS, stalls_of
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed

#: Input flags, each with its port.
PORTS = {
    "waits_weights": "issue__waits_weights",
    "waits_sums": "issue__waits_sums",
    "shifting": "shifting",
    "idle": "issue__idle",
    "matmul_queued": "dispatch__matmul_queued",
    "at_end": "dispatch__at_end",
}


def reason(waits, flags):
    if flags["waits_weights"]:
        return "shift" if flags["shifting"] else "weights"
    if flags["waits_sums"]:
        return "accumulate"
    for unit in ("load", "activate", "store"):
        if unit in waits:
            return unit
    if flags["idle"] and flags["at_end"] and not flags["matmul_queued"]:
        return "drain"
    return "ring" if "ring" in waits else "fetch"


async def combinations(ports, rng, config):
    reasons, units = stalls_of(config), units_of(config)
    counts = dict.fromkeys(reasons, 0)
    for bits in product((0, 1), repeat=len(PORTS) + len(units)):
        flags, waits = dict(zip(PORTS, bits)), bits[len(PORTS) :]
        ports.set(**{PORTS[name]: bit for name, bit in flags.items()})
        busy = rng.getrandbits(1)
        ports.set(dispatch__waits=sum(bit << index for index, bit in enumerate(waits)), issue__issued=busy)
        await ports.settle()
        stall = ports.get("o__stall")
        assert ports.get("o__busy") == busy
        found = reasons[(stall & -stall).bit_length() - 1] if stall else None
        right = reason({unit for unit, bit in zip(units, waits) if bit}, flags)
        assert found == right, f"{flags}, {waits}: {found}, not {right}"
        counts[right] += 1
    assert all(counts.values())


# promise: counters, one-reason
@pytest.mark.parametrize("ring", [False, True])
def test_every_input_gives_its_reason(ring):
    config = Config(ring=ring)
    assert ("ring" in stalls_of(config)) == ring and [*STALLS][: len(stalls_of(config))] == [*stalls_of(config)]
    simulate(StallReasons(config=config), combinations, seed=seed(), config=config)
