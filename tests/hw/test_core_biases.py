"""The whole core: sums that start from a bias row each, and halves of bias rows, in a core with training."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Format, Half, Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from core_programs import Case, Hazards, check_hazards, initialisation, revelation
from core_runs import PAUSED, SLOW, TINY, Host, op, run, same

TRAINING = TINY | {"pooling": True, "softmax": True, "training": True, "bias_depth": 16}
SIZES = [
    ({}, {"latency": 1}),
    ({"cell_stages": 1, "in_flight": 4}, PAUSED),
    ({"cell_stages": 8, "bus_width": 32}, {"latency": 4}),
    ({"n": 2, "bus_width": 32, "cell_stages": 2, "in_flight": 32}, {"latency": 25}),
    pytest.param({"n": 8, "bias_depth": 8}, {"latency": 4}, marks=pytest.mark.slow),
]


class Sums(Hazards):
    """Without the instructions of the activation unit that have nothing to do with biases."""

    def result(self, opcode):
        if opcode is Opcode.ACTIVATE:
            super().result(opcode)


@pytest.mark.parametrize("sizes, memory", SIZES, ids=str)
def test_hazards(rng, sizes, memory):
    check_hazards(rng, Config(**TRAINING | sizes), 3, memory=memory, hazards=Sums)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [{"latency": 1}, {"latency": 25}, SLOW, PAUSED, {"pause_percent": 80}], ids=str)
def test_hazards_in_volume(rng, memory):
    for _ in range(3):
        config = Config(**TRAINING)
        check_hazards(rng, config, 100, memory=memory, simulator="verilator", length=100, hazards=Sums)


def updates(config, rng, rounds):
    """Sums start from rows that were loaded in two parts, take a pass, and go to SCRATCH, from where the next ones come, but for
    every third time: each instruction waits for the one before it, or for the last use of the places that it overwrites."""
    rows = 4
    program = [op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1)]
    for index in range(rounds):
        region, bias = Region.SCRATCH if index % 3 else Region.INPUT, int(rng.integers(0, config.bias_depth - rows))
        program.append(op(Opcode.LOAD, region=Region.INPUT, offset=index * config.vector_bytes, rows=rows))
        for half in (Half.UPPER, Half.LOWER) if index % 2 else (Half.WHOLE, Half.LOWER):
            offset = int(rng.integers(0, 4)) * config.bus_bytes
            program.append(op(Opcode.LOAD_BIAS, region=region, offset=offset, half=half, rows=rows, bias=bias))
        loops = dict(rows0=rows // 2, rows0_stride=1, rows1=2, rows1_stride=rows // 2, tiles0_acc_stride=rows, tiles1=1)
        later = int(index > 0)  # with the tile of the first one
        program += [
            op(Opcode.MATMUL, start=1, bias_rows=1, keep=later, tiles0=1 + later, bias=bias, **loops),
            op(Opcode.LOAD_BIAS, region=Region.INPUT, half=Half.UPPER, rows=1, bias=bias + rows - 1 + later),  # its last row
            op(Opcode.ACTIVATE, format=Format.BINARY32, rows=rows, lanes=config.n, buffer=8),
            op(Opcode.STORE, region=Region.SCRATCH, rows=2 * rows, buffer=8),
        ]
    return program


@pytest.mark.parametrize("memory", [{"latency": 1}, {"latency": 25}], ids=str)
def test_updates_in_a_chain(rng, memory):
    config = Config(**TRAINING)
    host, machine = Host(rng), Machine(config)
    case = Case(rng, host, machine, initialisation(config) + updates(config, rng, 12) + revelation(config))
    assert case.fault is None
    expected = bytearray(host.bytes)
    case.write(expected)
    same(expected, run(config, host, [case.run], memory=memory)["memory"])


def test_end_of_a_run_behind_a_load(rng):
    """What was loaded last is there in the next run, although the run ends as soon as it has come."""
    config = Config(**TRAINING)
    host, machine, depth = Host(rng), Machine(config), TRAINING["bias_depth"]
    tile = [op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1), op(Opcode.MATMUL, rows0=1, rows1=1, tiles0=1, tiles1=1)]
    programs = [[*initialisation(config), op(Opcode.HALT)]]
    for half in Half:
        load = op(Opcode.LOAD_BIAS, region=Region.INPUT, half=half, rows=depth, offset=64)
        programs += [[load, op(Opcode.HALT)], tile + revelation(config)]
    cases = [Case(rng, host, machine, program) for program in programs]
    assert [case.fault for case in cases] == [None] * len(cases)
    expected = bytearray(host.bytes)
    for case in cases:
        case.write(expected)
    same(expected, run(config, host, [case.run for case in cases], memory={"latency": 3})["memory"])
