"""Tests that the least sufficient `timeout` of the core is exact to the cycle, and within the bound in the datasheet."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.verification.programs import initialisation
from core_programs import Case, check_hazards
from core_runs import FULL, SIZES, TINY, MemoryBuilder, op, run

#: The latency of a row through the array exceeds all other latencies in this core.
DEEP = Config(**TINY, cell_stages=9)


def enough(config):
    return config.n * (config.latency + 1) + 40


#: The latency of a tile through the transposer and into the array exceeds that of a row through the array.
FLAT = Config(**TINY | {"pooling": True, "softmax": True, "attention": True, "training": True}, cell_stages=1)


def check_silence(rng, programs, latency, config=DEEP):
    """Checks, for each (program, cycles), that a `timeout` of `cycles` ends the run with TIMEOUT, and that a `timeout` of
    `cycles` + 1 suffices."""
    host, machine = MemoryBuilder(rng), Machine(config)
    cases = [
        Case(rng, host, machine, program, timeout=timeout) for program, silence in programs for timeout in (silence, silence + 1)
    ]
    result = run(config, host, [case.run for case in cases], memory={"latency": latency})
    assert [one["fault"] and one["fault"][0] for one in result["runs"]] == ["TIMEOUT", None] * len(programs)


@pytest.mark.slow
def test_timeout_covers_latency_of_a_row_and_of_syncs(rng):
    row = op(Opcode.MATMUL, start=1, keep=1, rows0=1, rows1=1, tiles0=1, tiles1=1)
    way = [*initialisation(DEEP), op(Opcode.SYNC), row, op(Opcode.HALT)], DEEP.n * DEEP.latency + DEEP.array_lead
    line = [*initialisation(DEEP), *[op(Opcode.SYNC)] * 6, row, op(Opcode.HALT)], DEEP.n + 30
    check_silence(rng, [way, line], 1)


@pytest.mark.slow
def test_timeout_covers_latency_of_a_tile(rng):
    """The longest wait for a weight tile needs a timeout of exactly 2 n + 6 cycles. Preceding loads keep the bus busy until all
    instructions are dispatched."""
    program = [
        *initialisation(FLAT),
        op(Opcode.SYNC),
        op(Opcode.LOAD, region=Region.INPUT, rows=24),
        op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1),
        op(Opcode.MATMUL, start=1, rows0=1, rows1=1, tiles0=1, tiles1=1, buffer=28),
        op(Opcode.HALT),
    ]
    check_silence(rng, [(program, 2 * FLAT.n + 5)], 1, FLAT)


@pytest.mark.slow
def test_timeout_covers_latency_of_the_memory(rng):
    check_silence(rng, [([op(Opcode.LOAD, region=Region.INPUT, rows=1), op(Opcode.HALT)], 79)], 80)


# promise: enough-timeout
@pytest.mark.slow
@pytest.mark.parametrize("config", [FULL, *(Config(**{**TINY, **sizes}) for sizes in SIZES)], ids=str)
def test_enough(rng, config):
    check_hazards(rng, config, 30, memory={"latency": 30}, timeout=enough(config))


# promise: enough-timeout
def test_long_window_is_progress(rng):
    """A maximum over many rows takes longer than `timeout`, and each of its rows is progress."""
    window = dict(window0=16, window0_stride=1, window1=64, rows0=1, rows1=1, lanes=FULL.n)
    host, machine = MemoryBuilder(rng), Machine(FULL)
    program = [*initialisation(FULL), op(Opcode.SYNC), op(Opcode.POOL, **window), op(Opcode.HALT)]
    case = Case(rng, host, machine, program, timeout=enough(FULL), ring=(0, 1))
    (result,) = run(FULL, host, [case.run], memory={"latency": 30})["runs"]
    assert result["fault"] is None
