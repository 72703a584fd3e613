"""Comparison of the C model with the Python model, which is the definition, on random valid and damaged programs.

As a command, it compares `programs` programs drawn from `seed`: `python model_comparison.py PROGRAMS SEED`.
"""

import sys
from collections import Counter

import numpy as np

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.c_machine import CMachineRing
from amaranth_tpu.sim.golden.isa_model import MachineFault
from amaranth_tpu.sim.golden.isa_ring import MachineRing
from core_programs import Case, Hazards
from core_runs import FULL, SIZES, SMALL, TINY, image_of

__all__ = ["CONFIGS", "compare", "compare_many", "end_of"]

#: The cores that the tests of the RTL draw, and each with a ring.
CONFIGS = [FULL, SMALL, *(Config(**TINY | sizes) for sizes in SIZES)]
RINGS = [FULL, *(Config(**TINY | sizes | {"ring": True, "ring_depth": 4}) for sizes in SIZES)]


def _data(rng, size):
    """Returns `size` bytes: any bits, or bfloat16 that are normally distributed around a power of two."""
    if rng.random() < 0.3:
        return rng.bytes(size)
    values = rng.normal(size=size // 2) * 2.0 ** rng.integers(-70, 60)
    return values.astype(np.float32).astype(bfloat16).tobytes()


def _damaged(rng, config, image):
    """Returns a program with up to three faults: a changed bit, a field that is 0, larger or random, or two swapped
    instructions."""
    image, step = bytearray(image), config.instruction_bytes
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(len(image) // 2)) * 2
        match rng.integers(4):
            case 0:
                image[place + int(rng.integers(2))] ^= 1 << int(rng.integers(8))
            case 1 if place % step:
                image[place : place + 2] = bytes(2)
            case 2 if place % step:
                image[place] = (image[place] + int(rng.integers(1, 9))) & 0xFF
            case _:
                one, other = (slice(step * int(k), step * int(k) + step) for k in rng.integers(len(image) // step, size=2))
                image[one], image[other] = image[other], image[one]
    return bytes(image)


def end_of(ring):
    """Runs a ring. Returns everything that a program can change: faults, counts, memories, host memory."""
    try:
        ring.run()
    except MachineFault as fault:
        first = fault.cause, fault.pc
    else:
        first = None
    faults = [fault and (fault.cause, fault.pc) for fault in ring.faults]
    states = [
        (
            machine.executed,
            machine.config.ring and machine.refused,
            *map(bytes, (machine.buffer, machine.sums, machine.bias, machine.updates)),
        )
        + tuple(bytes(machine.regions[region]) for region in machine.regions)
        for machine in ring.machines
    ]
    return first, faults, states


def compare(rng, config, cores, *, known=True, runs=2):
    """Compares `runs` programs that follow each other on the same cores; the second one is damaged. Returns the causes of the
    faults; None for a program without a fault. `known` is False to load the whole function table first."""
    hazards, causes = Hazards(rng, config), []
    hazards.has_table = known or not config.table_lanes
    rings = [kind(config, [{}] * cores) for kind in (MachineRing, CMachineRing)]
    for number in range(runs):
        image, found = image_of(config, hazards.make(40, cores)), []
        images = [_damaged(rng, config, image) if number % 2 and rng.random() < 0.7 else image for _ in range(cores)]
        flushes = rng.random() < 0.5
        data = [{Region[name]: _data(rng, size) for name, size in Case.sizes.items()} for _ in range(cores)]
        for ring in rings:
            for machine, own, contents in zip(ring.machines, images, data):
                machine.regions = {Region.MODEL: own} | {region: bytearray(bits) for region, bits in contents.items()}
            found.append(end_of(ring))
            if flushes:
                ring.flush()
        assert found[0][:2] == found[1][:2], f"{config}\n{found[0][:2]} in Python, {found[1][:2]} in C"
        for rank, (python, compiled) in enumerate(zip(found[0][2], found[1][2])):
            wrong = [index for index, pair in enumerate(zip(python, compiled)) if pair[0] != pair[1]]
            assert not wrong, f"{config}\ncore {rank} of {cores}: {wrong} differ of: executed, refused, 4 memories, regions"
        causes.append(found[0][0] and found[0][0][0].name)
    return causes


def compare_many(rng, programs):
    """Compares at least `programs` programs on all configurations, about a third on rings of two or three cores. Returns the
    number of programs by the cause of their fault."""
    causes = Counter()
    while causes.total() < programs:
        cores = int(rng.choice([1, 1, 1, 1, 1, 1, 2, 3]))
        configs = RINGS if cores > 1 else CONFIGS
        config = configs[int(rng.integers(len(configs)))]
        causes.update(compare(rng, config, cores, known=rng.random() < 0.9, runs=3 if cores > 1 else 2))
    return causes


if __name__ == "__main__":
    print(dict(compare_many(np.random.default_rng(int(sys.argv[2])), int(sys.argv[1]))))
