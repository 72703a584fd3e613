"""Tests of the reasons for which the array waits, by the timing model."""

import pytest

from amaranth_tpu.hw.config import Config, from_preset
from amaranth_tpu.hw.spec.isa import Format, FunctionCode, Opcode, Region
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.codegen.emitter import Emitter
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.compiler.timing.model import simulate
from amaranth_tpu.sim.compiler.timing.units import MATMUL
from amaranth_tpu.sim.compiler.timing.waits import array_waits, sum_costs
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.models.shipped import SHIPPED
from suites import slow

pytestmark = pytest.mark.search

_PASS = {"start": 1, "keep": 0, "bias": 0, "bias_rows": 0, "tiles0": 1, "tiles1": 1}
_PASS |= {f"tiles{loop}_{kind}": 0 for loop in (0, 1) for kind in ("stride", "acc_stride")}
_ROWS = {"rows1": 1, "rows1_stride": 0, "rows0_stride": 1}


def emitter_of(config):
    return Emitter(config, {Region.SCRATCH: 4096})


def add_pass(emitter, stage, rows, buffer, acc=0, **fields):
    emitter.stage = stage
    emitter.transfer(Opcode.LOAD_WEIGHTS, Region.MODEL, 0, 1, transpose=0)
    emitter.emit(Opcode.MATMUL, _PASS | _ROWS | {"rows0": rows, "acc": acc, "buffer": buffer} | fields)


def waits(emitter, config):
    timeline = simulate(emitter.ops, config)
    found = array_waits(emitter.ops, timeline, config.n)
    rows = sum(op.rows * op.passes for op in emitter.ops if op.unit == MATMUL)
    assert rows + sum(sum(some.values()) for some in found.values()) == timeline.cycles
    assert all(cycles >= 0 for some in found.values() for cycles in some.values())
    return found


def test_a_long_load():
    """A pass whose operands are loaded after a pass over other operands waits for the load, about a cycle for each vector."""
    config = Config(n=4, unified_buffer_depth=1024)
    emitter = emitter_of(config)
    add_pass(emitter, "before", 16, 0)
    emitter.transfer(Opcode.LOAD, Region.INPUT, 0, 512, buffer=64)
    add_pass(emitter, "after", 16, 64, acc=32)
    found = waits(emitter, config)
    assert 400 < found["after"]["load"] < 700 and found["after"]["load"] > 0.9 * found["after"].total() - found["after"]["drain"]
    assert found["before"]["load"] == 0


def test_slow_results():
    """A load waits for a store, which waits for results by table. The pass that reads them waits for the results most."""
    config = Config(n=16, table_lanes=1, accumulator_depth=512)
    emitter = emitter_of(config)
    add_pass(emitter, "before", 128, 0)
    results = {"function": FunctionCode.TABLE, "format": Format.BFLOAT16, "acc": 0, "buffer": 256, "lanes": 16, "rows": 128}
    emitter.emit(Opcode.ACTIVATE, results)
    emitter.transfer(Opcode.STORE, Region.SCRATCH, 0, 128, buffer=256)
    emitter.transfer(Opcode.LOAD, Region.SCRATCH, 0, 128, buffer=512)
    add_pass(emitter, "after", 128, 512, acc=256)
    found = waits(emitter, config)["after"]
    assert found["activate"] > 128 * 15 and found["store"] > 128 and found["load"] > 128
    assert found["activate"] > found["store"] + found["load"]


def test_short_passes():
    """Each pass over one row waits until the next tile has shifted in."""
    config = Config(n=16)
    emitter = emitter_of(config)
    add_pass(emitter, "rows", 1, 0)
    fields = {"start": 0, "tiles1": 8, "tiles1_stride": 1}
    emitter.transfer(Opcode.LOAD_WEIGHTS, Region.MODEL, 0, 8, transpose=0)
    emitter.emit(Opcode.MATMUL, _PASS | _ROWS | fields | {"rows0": 1, "acc": 0, "buffer": 0})
    assert waits(emitter, config)["rows"]["shift"] == pytest.approx(8 * 15, abs=16)


@pytest.mark.parametrize("name, cores", [("d", 1), ("d", 2), *slow(("c", 1))])
def test_costs_of_a_step(name, cores):
    """The costs of all sums of a step add up to the step's cycles."""
    training = with_parameters(load_network(SHIPPED[name]))
    program = compile_step(training, Sgd(), from_preset("training", n=8, ring=cores > 1), 4, cores=cores)
    costs = sum_costs(program)
    assert sum(one.cycles for one in costs) == program.predicted_cycles
    assert sum(one.instructions for one in costs) == len(program.ops)
    assert all(cycles > 0 for one in costs for cycles in one.waits.values())
