"""Tests of cores whose registers and memories are unknown at power-up, as in an ASIC. The testbench watches all outputs for
unknown bits in every cycle."""

import re

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from amaranth_tpu.sim.verification.programs import Hazards, initialisation, revelation
from core_networks import network_runs
from core_programs import Case, check_hazards, with_known_table
from core_runs import FULL, SIZES, TINY, MemoryBuilder, op, run


def without_initial_values(config):
    """Returns the core's Verilog without initial values, so that every register and memory is unknown before the reset."""
    text, blocks = re.subn(r"^  initial begin\n(    [^\n]*;\n)*  end\n", "", verilog_of(config), flags=re.MULTILINE)
    assert blocks and "initial" not in text
    return text


def of_unknown_data(hazards):
    """Returns a program that computes with unknown rows, because it does not initialise them. It neither writes nor sends them.
    SOFTMAX is not in it, as its cycles depend on the data."""
    program, first = hazards.make(24), initialisation(hazards.config)
    assert program[: len(first)] == first
    left_out = (Opcode.STORE, Opcode.STORE_UPDATE, Opcode.RING, Opcode.LOAD_TABLE, Opcode.SOFTMAX)
    return [word for word in program[len(first) :] if word[0] not in left_out]


def drawn(hazards, opcodes):
    fields = [(opcode, hazards.draw(opcode)) for opcode in opcodes]
    return [op(opcode, **some) for opcode, some in fields if some]  # None if it does not fit


def of_everything(hazards, length):
    """Returns a program that stores all results, with every instruction of the activation unit near its end."""
    program, end = hazards.make(length, cores=2), len(revelation(hazards.config))
    last = [
        opcode for opcode, record in hazards.records.items() if record.unit is Unit.ACTIVATE and opcode is not Opcode.LOAD_TABLE
    ]
    hazards.rng.shuffle(last)
    return [*program[:-end], *drawn(hazards, last), *program[-end:]]


def softmax(hazards):
    """Returns a program that is busy with SOFTMAX for most of its time."""
    return [*initialisation(hazards.config), *drawn(hazards, [Opcode.SOFTMAX] * 8), op(Opcode.HALT)]


def check_resets(rng, config, verilog, rounds, length, memory):
    """Resets the core in the middle of programs: twice by a register and once by `aresetn`. The next program must give the
    machine model's memory."""
    host, machine = MemoryBuilder(rng), Machine(config)
    verilog = with_known_table(verilog, machine)
    hazards, runs, cases = Hazards(rng, config, known_table=True), [], []
    for number in range(rounds):
        hazards.has_table = True
        for moment, make, most in (("abort", of_unknown_data, 200), ("cut", of_unknown_data, 100), ("abort", softmax, 300)):
            stopped = Case(rng, host, machine, make(hazards), ring=(0, 1)).run
            moment = {moment: int(rng.integers(5, most)), "cut_answers": False, "cut_cycles": 1, "until_quiet": 1000}
            runs.append(stopped | moment)
        hazards.has_table = number > 0
        cases.append(Case(rng, host, machine, of_everything(hazards, length), ring=(int(rng.integers(2)), 2)))
        runs.append(cases[-1].run)
    result = run(config, host, runs, simulator="icarus", memory=memory, verilog=verilog)
    assert any(one["state"]["running"] for one in result["runs"] if "state" in one), "no run was stopped"
    assert [one["fault"] for one in result["runs"]] == [None] * len(runs)
    for case in cases:
        for name, (base, size) in case.run["regions"].items():
            assert result["memory"][base : base + size] == case.after[name], f"{name} differs"


# promise: one-edge, no-initial-values
def test_everything_is_known_after_resets(rng):
    check_resets(rng, FULL, without_initial_values(FULL), 1, 24, {"latency": 2})


# promise: no-initial-values
@pytest.mark.slow
def test_networks_from_unknown_state(rng):
    config = Config(**{**TINY, **SIZES[1]})
    host = MemoryBuilder(rng)
    runs, check = network_runs(rng, config, host, 2, most=16)
    check(run(config, host, runs, memory={"latency": 3}, verilog=without_initial_values(config)))


@pytest.mark.slow
def test_programs_from_unknown_state(rng):
    check_hazards(rng, FULL, 2, memory={"latency": 1}, verilog=without_initial_values(FULL))
