"""Tests that the datasheet's text defines the instructions: an interpreter from the text alone gives the golden model's memories,
on random programs with every instruction and format."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import Format, FunctionCode, Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.rtl.number_classes import numbers
from amaranth_tpu.sim.verification.programs import SIZES as BYTES
from amaranth_tpu.sim.verification.programs import Hazards
from core_runs import FULL, SIZES, TINY, image_of
from suites import slow
from text_machine import TextMachine, flushed

OTHERS = [Config(**TINY | sizes) for sizes in SIZES if not sizes.get("weight_formats")]


def compare(rng, config, machine, text, program):
    """Runs a program on both, on random regions, and compares all memories."""
    regions = {name: numbers(rng, size // 2, 0.1, 16).astype(np.uint16).tobytes() for name, size in BYTES.items()}
    regions["MODEL"] = image_of(config, program)
    machine.regions = {Region[name]: bytearray(data) for name, data in regions.items()}
    text.regions = {name: bytearray(data) for name, data in regions.items()}
    machine.run()
    text.run()
    for name, data in text.regions.items():
        assert data == machine.regions[Region[name]], f"{name} differs after {program}"
    for name, memory in {"buffer": machine.buffer, "acc": machine.sums, "bias": machine.bias}.items():
        assert np.array_equal(getattr(text, name), memory), f"{name} differs after {program}"


def drawn(rng, hazards, opcode):
    """Returns an instruction with random codes of all kinds, or None if it does not fit the memories."""
    record = hazards.records[opcode]
    given = {
        name: codes[rng.integers(len(codes))] for name in ("format", "function", "condition") if (codes := record.codes_of(name))
    }
    if given.get("function") is FunctionCode.TABLE and given["format"] in (Format.PLANES, Format.INDEX):
        given["function"] = FunctionCode.RELU
    if "buffer_step" in record.widths and rng.random() < 0.5:
        given["buffer_step"] = 0
    fields = hazards.draw(opcode, **given)
    return fields and (opcode, fields | ({"number": hazards.below(6)} if "number" in fields else {}))


@pytest.mark.parametrize("config, programs, length", [(FULL, 6, 60), *slow((FULL, 60, 100), *((one, 10, 60) for one in OTHERS))])
def test_random_programs_give_the_golden_models_memories(rng, config, programs, length):
    machine, hazards, text = Machine(config), Hazards(rng, config), TextMachine(config, {})
    for _ in range(programs):
        compare(rng, config, machine, text, hazards.make(length))


@pytest.mark.parametrize("count", [400, *slow(10_000)])
def test_results_in_all_formats_give_the_golden_models_memories(rng, count):
    """Instructions of the activation unit, on sums and rows with all classes of numbers and few different ones."""
    machine, hazards, text = Machine(FULL), Hazards(rng, FULL), TextMachine(FULL, {})
    opcodes = [opcode for opcode, record in hazards.records.items() if record.unit is Unit.ACTIVATE]
    few = np.array([0, 1 << 31, 0x3F800000, 0x3F808000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000], np.uint32)
    program = [drawn(rng, hazards, Opcode.LOAD_TABLE)]
    for number in range(count):
        for mine, other in ((text.acc, machine.sums), (text.bias, machine.bias)):
            values = rng.choice(few, mine.shape) if number % 2 else flushed(numbers(rng, mine.shape, 0.2))
            mine[:], other[:] = values, values
        rows = rng.choice(np.array([3, 0x103, 0x8003, 0, 1, 0x3F80], np.uint16), text.buffer.shape)
        text.buffer[:], machine.buffer[:] = rows, rows
        program.append(drawn(rng, hazards, opcodes[number % len(opcodes)]))
        compare(rng, FULL, machine, text, [*filter(None, program), (Opcode.HALT, {})])
        program = []
