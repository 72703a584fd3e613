"""Equal branches, such as the heads of an attention: how they are found, their bits, and the cycles that they save."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from amaranth_tpu.hw.config import Config, from_preset
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.scripts.benchmark.encoder_block import encoder_block
from amaranth_tpu.sim.compiler import search
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.memory.batching import lay_along_x
from amaranth_tpu.sim.compiler.memory.layout import lay_out
from amaranth_tpu.sim.compiler.passes.im2col import gather_windows
from amaranth_tpu.sim.compiler.tiling.branch_runs import side_by_side
from amaranth_tpu.sim.compiler.tiling.branches import equal_branches
from amaranth_tpu.sim.compiler.tiling.chunk_tiling import RunPlan
from amaranth_tpu.sim.compiler.tiling.overlap import APART, FAR_APART, IN_TURN
from amaranth_tpu.sim.compiler.tiling.stage_tiling import plan_stage
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.graph import Graph, Stage, Tensor, Term
from graphs import check, random_values
from suites import slow

CORE = Config(n=4, accumulator_depth=128, softmax_lanes=2)


def attention(rng, heads, positions, width=4, chained=False):
    """Returns the graph of an attention with several heads, between two dense layers. If `chained`, the queries of each head
    depend on the results of the previous head."""
    tensors = {name: Tensor(name, 4, 1, positions) for name in ("x", "y")}
    size, stages = (1, positions), []

    def add(name, channels, *terms, **changes):
        tensors[name] = Tensor(name, channels, 1, positions)
        stages.append(Stage(name, name, terms, size, **changes))

    def dense(source, inputs, outputs):
        return Term(source, random_values(rng, (1, 1, inputs, outputs), 0.5))

    add("first", 4, dense("x", 4, 4))
    for head in range(heads):
        before = f"o{head - 1}" if chained and head else "first"
        add(f"v{head}", width, dense("first", 4, width))
        add(f"k{head}", width, dense("first", 4, width))
        add(f"q{head}", width, dense(before, width if chained and head else 4, width))
        products = Term(f"q{head}", np.zeros((1, 1, width, positions), bfloat16), data=f"k{head}")
        add(f"s{head}", positions, products, softmax=True)
        sums = Term(f"s{head}", np.zeros((1, 1, positions, width), bfloat16), data=f"v{head}", rows=True)
        add(f"o{head}", width, sums)
    stages.append(Stage("y", "y", tuple(dense(f"o{head}", width, 4) for head in range(heads)), size))
    return Graph("attention", tensors, "x", "y", tuple(stages))


def _branches(graph):
    batched = lay_along_x(graph, gather_windows(graph, CORE, 1), 1, 1)
    return equal_branches(batched, range(len(batched.stages)), lay_out(batched, CORE.n).layouts)


def test_heads_are_equal_branches(rng):
    for heads in (2, 3, 5):
        assert _branches(attention(rng, heads, 8)) == [(range(1, 1 + 5 * heads), heads)]


def test_branches_that_depend_on_each_other_are_not_equal(rng):
    assert not _branches(attention(rng, 3, 8, chained=True))


def test_other_shapes_are_not_equal(rng):
    """A head with another function is not a branch; the heads after it are."""
    graph = attention(rng, 4, 8)
    stages = [replace(stage, softmax=stage.name != "s0") for stage in graph.stages if stage.name[0] == "s"]
    named = {stage.name: stage for stage in stages}
    graph = replace(graph, stages=tuple(named.get(stage.name, stage) for stage in graph.stages))
    assert _branches(graph) == [(range(6, 21), 3)]


@pytest.fixture
def forced(monkeypatch):
    """Returns a function that makes the compiler use a particular run of equal branches, the one at an index of its candidates,
    and the list of the runs that were used."""
    used: list[RunPlan] = []

    def choose(index, apart=IN_TURN):
        def runs(batched, few, config, trials):
            host, space = lay_out(batched, config.n), config.unified_buffer_depth
            candidates = side_by_side(batched, host, config)
            used.append(replace(candidates[index % len(candidates)], apart=apart))
            alone = [number for number in range(len(batched.stages)) if number not in used[-1].stages]
            plans = [plan_stage(batched, number, config, host.layouts, space - host.zeros, 64) for number in alone]
            others = [RunPlan(range(number, number + 1), (plan,)) for number, plan in zip(alone, plans)]
            return tuple(sorted([*others, used[-1]], key=lambda run: run.stages[0]))

        monkeypatch.setattr(search, "_best_overlap", runs)

    monkeypatch.setenv("TPU_PROGRAMS_MB", "0")
    return choose, used


@pytest.mark.parametrize("heads, positions, width, batch", [(2, 8, 4, 3), *slow((3, 6, 8, 5), (4, 16, 3, 2), (2, 12, 4, 1))])
def test_bits_of_branches(rng, forced, heads, positions, width, batch):
    """Runs of equal branches match the golden model bit for bit, with jobs of one sample, of several samples, and of parts of a
    sample."""
    choose, used = forced
    for index, apart in enumerate((IN_TURN, APART, FAR_APART, IN_TURN, APART)):
        choose(index, apart)
        check(attention(rng, heads, positions, width), CORE, batch, rng)
        assert used[-1].branches == heads
    assert any(run.homes for run in used) and not all(run.homes for run in used)
    assert len({plan.samples for run in used for plan in run.plans}) > 1 or batch == 1


def test_branches_load_a_common_operand_once(rng, forced):
    """All heads use the operand that the first one has loaded, so each position of `first` is loaded once."""
    choose, used = forced
    choose(1)
    program = check(attention(rng, 4, 8), CORE, 3, rng)
    loads = [op for op in program.ops if op.opcode is Opcode.LOAD and op.fields["region"] is Region.SCRATCH]
    assert used[0].homes and sum(op.rows for op in loads if 1 <= op.stage <= 20) == 8 * 3


def test_branches_save_cycles(rng, monkeypatch):
    """Four heads take at least a quarter fewer cycles if they overlap."""
    monkeypatch.setenv("TPU_PROGRAMS_MB", "0")
    graph = attention(rng, 4, 16)
    beside = compile_network(graph, CORE, 1).predicted_cycles
    monkeypatch.setattr(search, "side_by_side", lambda *_: [])
    assert beside < 0.75 * compile_network(graph, CORE, 1).predicted_cycles


@pytest.mark.slow
def test_encoder_block(tmp_path):
    """An encoder block with 64 positions of 64 channels uses at least 45 % of the array at batch 1."""
    onnx.save(encoder_block(64, 64, 4, 256), tmp_path / "block.onnx")
    core = from_preset("transformer")
    program = compile_network(load_network(tmp_path / "block.onnx"), core, 1)
    assert program.useful_macs / program.predicted_cycles >= 0.45 * core.n**2
