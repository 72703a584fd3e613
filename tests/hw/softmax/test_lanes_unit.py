# amaranth: UnusedElaboratable=no
"""Tests of the unit of SOFTMAX and NORMALIZE with several lanes, covering result bits of all kinds of rows, rows in flight, rows
longer than the queues, and cycles."""

import pytest

from amaranth_tpu.hw.activation.result_units import softmax_unit
from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.softmax.lanes_unit import SoftmaxLanesUnit
from amaranth_tpu.hw.spec.isa import Format, Opcode
from amaranth_tpu.hw.spec.operations import activate_layout
from amaranth_tpu.sim.benches.activation_operations import idle
from amaranth_tpu.sim.benches.bench_softmax_unit import KINDS, operations, runs
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import pack, simulate
from block_benches import run_block
from seeds import seed
from suites import slow


def sizes(n, lanes, normalize=False):
    depths = {"unified_buffer_depth": 64 * n, "accumulator_depth": 16 * n, "bias_depth": 2}
    return PLAIN | {"n": n, "softmax": True, "softmax_lanes": lanes, "normalize": normalize} | depths


def unit(n, lanes, kept=SoftmaxLanesUnit.kept, normalize=False):
    return SoftmaxLanesUnit(n=n, activate=activate_layout(Config(**sizes(n, lanes, normalize))), lanes=lanes, kept=kept)


# promise: lanes-same-bits
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "n, lanes, kept, widest", [(4, 2, 4, 6), *slow((2, 2, 2, 12), (4, 4, 2, 20), (8, 2, 4, 10), (16, 4, 8, 6), (16, 16, 4, 8))]
)
def test_random_rows_and_resets(n, lanes, kept, widest, normalize):
    """The unit matches the golden model for rows of every kind, including rows that do not fit the queues, with stalls and
    resets."""
    values = sizes(n, lanes, normalize)
    assert simulate(unit(n, lanes, kept, normalize), runs, seed=seed(), **values, widest=widest, count=4) >= 12


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "n, lanes, kinds, grants",
    [
        (4, 4, KINDS, 0.02),
        *slow(*((n, lanes, KINDS, grants) for n in (4, 16) for lanes in (2, 4, n) for grants in (1, 0.3))),
        *slow((4, 2, ["least"], 1), (16, 4, ["least"], 1)),
    ],
)
def test_many_rows_in_flight(n, lanes, kinds, grants, normalize):
    """The unit matches the golden model if rows of all kinds follow each other. The rows have one element to three tiles. All
    queues fill up if the buffer grants little."""
    config = Config(**sizes(n, lanes, normalize))
    count = 4 if grants < 0.1 else 8
    drawn = {"count": count, "widest": 3, "grants": grants, "kinds": kinds, "counts": (9, 14)}
    found = simulate(unit(n, lanes, normalize=normalize), operations, seed=seed(), config=config, **drawn)
    assert found[1] >= count * 9


@pytest.mark.slow
@pytest.mark.parametrize("simulator", runner.Simulators)
def test_verilog(simulator):
    made = sizes(4, 2, True)
    config = Config(**made)
    block = softmax_unit(n=4, activate=activate_layout(config), lanes=config.softmax_lanes)
    result = run_block(block, "softmax_unit", simulator, "random_operations", **made, widest=12, count=15)
    assert result["elements"] >= 45


async def cycles_of(ports, rng, *, config, cases, normalize=0):
    """Returns the cycles of operations (elements, rows, wide), one after the other. Their numbers are all equal, so that the sums
    are as large as possible."""
    found = []
    for case in cases:
        found.append(await one_operation(ports, config, *case, normalize))
        ports.set(port__op__valid=0)
        for _ in range(3):
            await ports.tick()
    return found


async def one_operation(ports, config, elements, rows, wide, normalize):
    tiles = -(-elements // config.n)
    operation = {
        **idle(config),
        "softmax": 1,
        **({"normalize": normalize} if config.normalize else {}),
        "tag": {"slot": 0},
        "rows": rows,
        "rows1": tiles,
        "rows1_stride": 1,
        "buffer_stride": 1,
        "lanes": elements - (tiles - 1) * config.n,
        "format": Format(wide),
    }
    ports.set(port__op__valid=1, port__op__payload=pack(activate_layout(config), **operation), buffer__grant=1)
    return await ports.until("port__done", 5000)


CASES = [(1, 1, 0), (5, 2, 1), (20, 12, 0), (64, 5, 0)]


# promise: softmax-lane-cycles, normalize-cycles
@pytest.mark.parametrize("opcode", [Opcode.SOFTMAX, Opcode.NORMALIZE])
@pytest.mark.parametrize("n, lanes", [(4, 4), *slow((4, 2), (8, 4), (16, 4), (16, 16))])
def test_cycles(n, lanes, opcode):
    """The cycles of an operation match the timing model, exactly for one row. For several rows, the first of
    which wait less, they differ by 3 % or 6 cycles at most."""
    normalize = opcode is Opcode.NORMALIZE
    config = Config(**sizes(n, lanes, normalize))
    several = {"config": config, "cases": CASES, "normalize": int(normalize)}
    measured = simulate(unit(n, lanes, normalize=normalize), cycles_of, seed=seed(), **several)
    for (elements, rows, wide), found in zip(CASES, measured):
        tiles = -(-elements // n)
        fields = {"rows": rows, "tiles": tiles, "lanes": elements - (tiles - 1) * n, "format": Format(wide)}
        expected = result_cycles(config, opcode, fields)[0] + 2
        assert found == expected if rows == 1 else found == pytest.approx(expected, rel=0.03, abs=6), (elements, rows, wide)


def test_rows_overlap():
    """A row of 64 elements takes 16 cycles on four lanes of n = 16 while other rows are in flight."""
    found = simulate(unit(16, 4), cycles_of, seed=1, config=Config(**sizes(16, 4)), cases=[(64, rows, 0) for rows in (4, 8)])
    assert found[1] - found[0] == 4 * 16
