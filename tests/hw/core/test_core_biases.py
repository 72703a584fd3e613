"""Tests of the whole core, covering sums that start from one bias row per row, and loads of half bias rows, with tight
dependencies."""

import pytest

from amaranth_tpu.hw.spec.isa import Format, Half, Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.verification.programs import initialisation, revelation
from core_programs import Case
from core_runs import FULL, MemoryBuilder, op, run, same
from suites import slow


def updates(config, rng, rounds):
    """Returns a program whose sums start from bias rows loaded in halves. Each round stores its sums to SCRATCH as biases of the
    next round, except every third, so that each instruction depends on an earlier one."""
    rows = 4
    program = [op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1)]
    for index in range(rounds):
        region, bias = Region.SCRATCH if index % 3 else Region.INPUT, int(rng.integers(0, config.bias_depth - rows))
        program.append(op(Opcode.LOAD, region=Region.INPUT, offset=index * config.vector_bytes, rows=rows))
        planes = index % 2  # loads planes and stores whole rows, or the reverse
        for half in (Half.UPPER, Half.LOWER) if planes else (Half.WHOLE, Half.LOWER):
            offset = rows * config.vector_bytes * (half is Half.LOWER)
            program.append(op(Opcode.LOAD_BIAS, region=region, offset=offset, half=half, rows=rows, bias=bias))
        loops = dict(rows0=rows // 2, rows0_stride=1, rows1=2, rows1_stride=rows // 2, tiles0_acc_stride=rows, tiles1=1)
        later = int(index > 0)  # keeps the tile of the first round
        program += [
            op(Opcode.MATMUL, start=1, bias_rows=1, keep=later, tiles0=1 + later, bias=bias, **loops),
            op(Opcode.LOAD_BIAS, region=Region.INPUT, half=Half.UPPER, rows=1, bias=bias + rows - 1 + later),  # the last row
            op(Opcode.ACTIVATE, format=Format.BINARY32 if planes else Format.PLANES, rows=rows, lanes=config.n, buffer=8),
            op(Opcode.STORE, region=Region.SCRATCH, rows=2 * rows, buffer=8),
        ]
    return program


@pytest.mark.slow
@pytest.mark.parametrize("memory", [{"latency": 1}, *slow({"latency": 25})], ids=str)
def test_updates_in_a_chain(rng, memory):
    host, machine = MemoryBuilder(rng), Machine(FULL)
    case = Case(rng, host, machine, initialisation(FULL) + updates(FULL, rng, 12) + revelation(FULL))
    assert case.fault is None
    expected = bytearray(host.bytes)
    case.write(expected)
    same(expected, run(FULL, host, [case.run], memory=memory)["memory"])


# promise: kept-contents
@pytest.mark.slow
def test_bias_survives_halt_directly_after_load(rng):
    """The bias that was loaded last is intact in the next run, even if HALT follows the load directly."""
    host, machine, depth = MemoryBuilder(rng), Machine(FULL), FULL.bias_depth
    tile = [op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1), op(Opcode.MATMUL, rows0=1, rows1=1, tiles0=1, tiles1=1)]
    programs = [[*initialisation(FULL), op(Opcode.HALT)]]
    for half in Half:
        load = op(Opcode.LOAD_BIAS, region=Region.INPUT, half=half, rows=depth, offset=64)
        programs += [[load, op(Opcode.HALT)], tile + revelation(FULL)]
    cases = [Case(rng, host, machine, program) for program in programs]
    assert [case.fault for case in cases] == [None] * len(cases)
    expected = bytearray(host.bytes)
    for case in cases:
        case.write(expected)
    same(expected, run(FULL, host, [case.run for case in cases], memory={"latency": 3})["memory"])
