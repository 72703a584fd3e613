# amaranth: UnusedElaboratable=no
"""Tests of the softmax unit against the golden model in three simulators, covering random rows, tiles, formats, stalls and
resets."""

import numpy as np
import pytest

from amaranth_tpu.hw.activation.softmax_unit import SoftmaxUnit
from amaranth_tpu.hw.arithmetic.exponential import Exponential
from amaranth_tpu.hw.arithmetic.reciprocal import Reciprocal
from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.spec.isa import Format, Opcode
from amaranth_tpu.hw.spec.operations import activate_layout
from amaranth_tpu.sim.benches.activation_operations import idle
from amaranth_tpu.sim.benches.bench_softmax_unit import operations, runs
from amaranth_tpu.sim.golden.softmax import exponential, reciprocal
from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.ports import pack, simulate
from amaranth_tpu.sim.rtl.streams import StreamedBlock
from amaranth_tpu.sim.rtl.streams import simulate_columns as stream
from block_benches import run_block
from seeds import seed
from suites import slow


def sizes(n, in_flight=16):
    return PLAIN | {
        "n": n,
        "softmax": True,
        "unified_buffer_depth": 64 * n,
        "accumulator_depth": 16 * n,
        "bias_depth": 2,
        "in_flight": in_flight,
    }


def unit(**values):
    config = Config(**values)
    return SoftmaxUnit(n=config.n, activate=activate_layout(config))


# promise: lanes-same-bits
@pytest.mark.parametrize("n, widest, count", [*slow((2, 7, 6), (2, 40, 12), (4, 12, 12)), (8, 6, 6)])
def test_amaranth(n, widest, count):
    assert simulate(unit(**sizes(n)), runs, seed=seed(), **sizes(n), widest=widest, count=count) >= 3 * count


def test_results_near_zero():
    """Results that are barely above 0 match the golden model, where exponent, product and rounding together decide between 0 and
    a number."""
    config = Config(**sizes(4))
    simulate(unit(**sizes(4)), operations, seed=seed(), config=config, count=30, widest=16, grants=1, kinds=["least"])


def test_stalls_between_steps_of_a_distance():
    """No element is lost if the buffer refuses vectors while distances take several cycles."""
    config = Config(**sizes(4))
    simulate(unit(**sizes(4)), operations, seed=seed(), config=config, count=60, widest=6, grants=0.1, kinds=["neighbours"])


@pytest.mark.slow
@pytest.mark.parametrize("simulator", runner.Simulators)
def test_verilog(simulator):
    result = run_block(unit(**sizes(4)), "softmax_unit", simulator, "random_operations", **sizes(4), widest=12, count=15)
    assert result["elements"] >= 45


# promise: softmax-cycles
@pytest.mark.parametrize("n, elements, rows, wide", [(4, 1, 1, 0), (8, 4, 1, 1), (4, 5, 2, 1), (4, 29, 3, 0), (8, 29, 3, 1)])
def test_cycles(n, elements, rows, wide):
    """The cycles of an operation match the timing model, for equal numbers, whose sums are as large as possible."""
    config, tiles = Config(**sizes(n)), -(-elements // n)
    lanes = elements - (tiles - 1) * n
    fields = {"rows": rows, "tiles": tiles, "lanes": lanes, "format": Format(wide)}

    async def cycles(ports, rng):
        operation = fields | {"softmax": 1, "tag": {"slot": 0}, "rows1": tiles, "rows1_stride": 1, "buffer_stride": 1}
        del operation["tiles"]
        ports.set(port__op__valid=1, port__op__payload=pack(activate_layout(config), **idle(config) | operation), buffer__grant=1)
        return await ports.until("port__done", 2000)

    assert simulate(unit(**sizes(n)), cycles, seed=1) == result_cycles(config, Opcode.SOFTMAX, fields)[0] + 2


def test_exponential():
    rng = np.random.default_rng(seed())
    d = np.concatenate([np.arange(64), 1 << np.arange(19), rng.integers(0, 1 << 19, 3000), np.zeros(8, int)])
    found = stream(Exponential(), d=d, beyond=np.zeros_like(d))
    for name, expected in zip(("power", "halvings"), exponential(d)):
        assert (found[name][Exponential.latency :] == expected[: -Exponential.latency]).all()


@pytest.mark.slow
def test_exponential_all():
    """The exponential unit matches the model for every distance. Its relative error is below 2**-12, which is 0.1 units in the
    last place of bfloat16."""
    d = np.arange((1 << 19) + 8) % (1 << 19)
    found = StreamedBlock(Exponential()).run(d=d)
    power, halvings = (found[name][Exponential.latency :] for name in ("power", "halvings"))
    for values, expected in zip((power, halvings), exponential(d)):
        assert (values == expected[: -Exponential.latency]).all()
    true = np.exp(-d[: 1 << 19] / 4096)
    error = np.abs(power[: 1 << 19] * 2.0 ** -(16.0 + halvings[: 1 << 19]) / true - 1).max()
    print(f"largest relative error of exp(-d): 2**{np.log2(error):.2f}")
    assert error < 2.0**-12


@pytest.mark.parametrize("width", [16, 36, 64])
def test_reciprocal(width):
    async def divide(ports, rng):
        for _ in range(200):
            bits = rng.choice((16, width, rng.randrange(16, width + 1)))
            total = rng.choice((1 << bits - 1, (1 << bits) - 1, 1 << bits - 1 | rng.getrandbits(bits - 1)))
            ports.set(total=total, start=1)
            await ports.tick()
            ports.set(start=0)
            soon = await ports.until("soon", bits)
            cycles = soon + await ports.until("done", bits)
            quotient, places = reciprocal(np.array([total], object))
            assert (ports.get("quotient"), ports.get("places")) == (quotient[0], places[0])
            assert (cycles, cycles - soon) == (bits, 10)
            ports.set(total=rng.getrandbits(width))

    simulate(Reciprocal(width=width, ahead=10), divide, seed=seed())


@pytest.mark.parametrize("width, ahead", [(15, 8), (65, 8), (32, 16), (32, -1)])
def test_reciprocal_rejects(width, ahead):
    with pytest.raises(ValueError, match="must be"):
        Reciprocal(width=width, ahead=ahead)
