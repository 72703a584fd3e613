"""Tests that the datasheet's text defines the instructions: an interpreter from the text alone gives the golden model's memories,
on random programs with every instruction and format."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.rtl.number_classes import numbers
from amaranth_tpu.sim.verification.programs import SIZES as BYTES
from amaranth_tpu.sim.verification.programs import Hazards
from core_runs import FULL, SIZES, TINY, image_of
from suites import slow
from text_machine import TextMachine

OTHERS = [Config(**TINY | sizes) for sizes in SIZES if not sizes.get("weight_formats")]


def compare(rng, config, programs, length):
    machine, hazards, text = Machine(config), Hazards(rng, config), TextMachine(config, {})
    for number in range(programs):
        regions = {name: numbers(rng, size // 2, 0.1, 16).astype(np.uint16).tobytes() for name, size in BYTES.items()}
        program = hazards.make(length)
        regions["MODEL"] = image_of(config, program)
        machine.regions = {Region[name]: bytearray(data) for name, data in regions.items()}
        machine.run()
        text.regions = {name: bytearray(data) for name, data in regions.items()}
        text.run()
        for name, data in text.regions.items():
            assert data == machine.regions[Region[name]], f"program {number}: {name} differs"
        for name, memory in {"buffer": machine.buffer, "acc": machine.sums, "bias": machine.bias}.items():
            assert np.array_equal(getattr(text, name), memory), f"program {number}: {name} differs"


@pytest.mark.parametrize("config, programs, length", [(FULL, 6, 60), *slow((FULL, 60, 100), *((one, 10, 60) for one in OTHERS))])
def test_random_programs_give_the_golden_models_memories(rng, config, programs, length):
    compare(rng, config, programs, length)
