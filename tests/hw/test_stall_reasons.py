# amaranth: UnusedElaboratable=no
"""The reasons of a stall: for all that the units may say, the one that counts is the one that the register map names."""

from itertools import product

from amaranth_tpu.hw.control.dispatcher import UNITS
from amaranth_tpu.hw.control.stall_reasons import StallReasons
from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed

FLAGS = ("waits_weights", "waits_sums", "shifting", "idle", "matmul_queued", "at_end")


def reason(waits, flags):
    """What the array waits for."""
    if flags["waits_weights"]:
        return "shift" if flags["shifting"] else "weights"
    if flags["waits_sums"]:
        return "accumulate"
    for unit in ("load", "activate", "store"):
        if unit in waits:
            return unit
    return "drain" if flags["idle"] and flags["at_end"] and not flags["matmul_queued"] else "fetch"


async def combinations(ports, rng):
    counts = dict.fromkeys(STALLS, 0)
    for bits in product((0, 1), repeat=len(FLAGS) + len(UNITS)):
        flags, waits = dict(zip(FLAGS, bits)), bits[len(FLAGS) :]
        ports.set(**flags, waits=sum(bit << index for index, bit in enumerate(waits)))
        await ports.settle()
        stall = ports.get("stall")
        found = list(STALLS)[(stall & -stall).bit_length() - 1] if stall else None
        right = reason({unit for unit, bit in zip(UNITS, waits) if bit}, flags)
        assert found == right, f"{flags}, {waits}: {found}, not {right}"
        counts[right] += 1
    assert all(counts.values())


def test_all():
    simulate(StallReasons(), combinations, seed=seed())
