"""Tests that programs on both sides of the rule on the weight FIFO and instructions in flight end on the core as in the machine
model."""

import numpy as np
import pytest

from amaranth_tpu.hw.array.weight_unpacker import WeightUnpacker
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.codes import WeightFormat
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.golden.c_machine import CMachine
from amaranth_tpu.sim.golden.isa_check import MachineFault
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.verification.programs import initialisation
from core_networks import network_runs
from core_programs import Case
from core_runs import NARROW, TINY, MemoryBuilder, image_of, op, run
from fifo_programs import Edge, limits
from suites import slow

#: Longer than any period without progress in these configurations and memories.
TIMEOUT = 200


def check(config, host, cases, *, memory=None):
    """Runs the cases on the core, and checks that each ends with the model's fault, at the same instruction, with the same
    memory."""
    result = run(config, host, [case.run for case in cases], memory=memory, timeout=1500)
    for number, (case, one) in enumerate(zip(cases, result["runs"])):
        assert one["fault"] == case.fault, f"program {number} ended with {one['fault']}, not {case.fault}:\n" + "\n".join(
            map(str, case.program)
        )
        # At a refusal, pending instructions may have executed or not; at a timeout nothing moves.
        for name, (base, size) in case.run["regions"].items() if not case.fault or case.fault[0] == "TIMEOUT" else ():
            found = np.frombuffer(result["memory"][base : base + size], np.uint8)
            assert (found == np.frombuffer(case.after[name], np.uint8)).all(), f"program {number}: {name} differs"


def cases_of(rng, host, config, programs):
    machine = Machine(config)
    return [Case(rng, host, machine, program, timeout=TIMEOUT) for program in programs]


def edge_cases(rng, host, config, count):
    """Returns `count` random cases; every second one ends with TIMEOUT."""
    edge, cases = Edge(rng, config), []
    while len(cases) < count:
        before = host.end
        [case] = cases_of(rng, host, config, [edge.make()])
        if (case.fault is not None and case.fault[0] == "TIMEOUT") == len(cases) % 2:
            cases.append(case)
        else:
            host.end = before
    return cases


# promise: ends-as-far-as-it-can, standstill
@pytest.mark.parametrize("in_flight", [4, 8, 16, 32])
def test_limits_of_the_model(rng, in_flight):
    config = Config(**{**TINY, "n": 2, "bus_width": 32, "weight_fifo_depth": 2, "in_flight": in_flight})
    programs = limits(config)
    cases = cases_of(rng, MemoryBuilder(rng, 1 << 20), config, [program for _, program, _ in programs])
    for case, (name, _, end) in zip(cases, programs):
        assert (case.fault and case.fault[0]) == end, name


def coded_cases(rng, host, more):
    """Returns a core that decodes weights, and a case for each format: tiles at a SYNC, `more` than FIFO and buffer hold."""
    config, programs = Config(**{**TINY, "n": 8, "weight_fifo_depth": 2, "weight_formats": True}), []
    for format_ in WeightFormat:
        tiles = config.weight_fifo_depth + 1 + WeightUnpacker.depth // format_.vectors(config.n, 1) + more
        counts = [4] * (tiles // 4) + [tiles % 4] * bool(tiles % 4)
        loads = [op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=count, weight_format=format_) for count in counts]
        take = op(Opcode.MATMUL, rows0=1, rows1=1, tiles0=1, tiles1=tiles)
        programs.append([*loads, op(Opcode.SYNC), take, op(Opcode.HALT)])
    return config, cases_of(rng, host, config, programs)


@pytest.mark.parametrize("more, end", [(0, None), (1, "TIMEOUT")])
def test_tiles_before_the_decoder_count(rng, more, end):
    config, cases = coded_cases(rng, MemoryBuilder(rng, 1 << 20), more)
    for case in cases:
        assert (case.fault and case.fault[0]) == end
        machine = CMachine(config, {Region.MODEL: image_of(config, case.program), Region.INPUT: bytes(1 << 14)})
        try:
            machine.run()
            assert end is None
        except MachineFault as fault:
            assert fault.cause.name == end


@pytest.mark.slow
def test_coded_tiles_at_the_limit_end(rng):
    host = MemoryBuilder(rng, 1 << 20)
    config, cases = coded_cases(rng, host, 0)
    check(config, host, cases)


def keeps_the_rule(config, program):
    loaded = taken = 0
    waiting = []  # LOAD_WEIGHTS without room: (tiles loaded including its own, fields)
    for word in program:
        opcode, fields = word if isinstance(word, tuple) else (Opcode.HALT, {})
        if opcode is Opcode.LOAD_WEIGHTS:
            loaded += fields["rows"]
            if waiting or loaded - taken > config.weight_fifo_depth + 1:
                waiting.append((loaded, fields))
            if len(waiting) > 1 + min(4, config.in_flight - 2):
                return False
        elif opcode is Opcode.MATMUL and not fields.get("keep"):
            taken += fields["tiles0"] * fields["tiles1"]
            if taken > loaded:
                return False
            while waiting and waiting[0][0] - taken <= config.weight_fifo_depth + 1:
                waiting.pop(0)
        elif opcode in (Opcode.SYNC, Opcode.HALT) and waiting:
            return False
        elif opcode is Opcode.STORE:
            first = fields.get("offset", 0)
            last = first + 2 * config.n * fields["rows"]
            if any(
                read["region"] is fields["region"]
                and read.get("offset", 0) < last
                and first < read.get("offset", 0) + 2 * config.n**2 * read["rows"]
                for _, read in waiting
            ):
                return False
    return True


# promise: fifo-rule, rule-ends
@pytest.mark.parametrize("in_flight", [4, 16])
def test_the_rule_is_enough(rng, in_flight):
    config, checked = Config(**{**TINY, "weight_fifo_depth": 2, "in_flight": in_flight}), 0
    edge = Edge(rng, config)
    while checked < 25:
        program = edge.make()
        if keeps_the_rule(config, program):
            [case] = cases_of(rng, MemoryBuilder(rng, 1 << 13), config, [program])
            assert case.fault is None or case.fault[0] == "ILLEGAL", program
            checked += 1


@pytest.mark.slow
def test_the_compiler_keeps_it(rng):
    config = Config(**{**TINY, "n": 2, "bus_width": 32, "weight_fifo_depth": 2, "in_flight": 4})
    network_runs(rng, config, MemoryBuilder(rng, 1 << 22), 20)


# promise: fifo-rule, standstill, leaves-early, loads-end
@pytest.mark.parametrize("in_flight", slow(4, 16))
def test_limits(rng, in_flight):
    config = Config(**TINY | NARROW | {"in_flight": in_flight})
    host = MemoryBuilder(rng, 1 << 19)
    first = [*initialisation(config), op(Opcode.HALT)]
    cases = cases_of(rng, host, config, [first, *(program for _, program, _ in limits(config))])
    check(config, host, cases + edge_cases(rng, host, config, 10 if in_flight > 4 else 4))
