"""Tests of normalizations that a core computes by NORMALIZE: bits on models of the core, errors, and cycles."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.check.against_model import against_model
from amaranth_tpu.sim.check.reference import check_stages
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.golden.normalization import exact
from amaranth_tpu.sim.golden.training import bound_graph, initial_state, step
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.ir.row_norms import for_training_on, with_row_norms
from amaranth_tpu.sim.trainer.golden_training import Training
from amaranth_tpu.sim.trainer.samples import LabelledSamples
from onnx_models import Builder, weights
from suites import slow

SIZES = {"n": 4, "unified_buffer_depth": 1024, "accumulator_depth": 256, "softmax_lanes": 2}


def _norm(b, width, centred, x=None):
    parameters = [np.ones(width, np.float32), *([np.zeros(width, np.float32)] if centred else [])]
    name = "LayerNormalization" if centred else "RMSNormalization"
    return b(name, *parameters) if x is None else b.node(name, [x, *parameters])


@pytest.mark.parametrize("width, centred", [(10, True), (10, False), *slow((24, True), (96, True), (96, False), (200, True))])
def test_a_norm_becomes_one_instruction(rng, tmp_path, width, centred):
    """A core with `normalize` runs one NORMALIZE with the golden model's bits and no larger error. Other cores run products."""
    b = Builder(["n", 3, width], opset=23)
    _norm(b, width, centred)
    model, x = tpu.load(b.save(tmp_path)), rng.normal(3, 1, (5, 3, width)).astype(np.float32)
    want = exact(x.reshape(-1, width), centred, 1e-5).reshape(x.shape)
    errors = []
    for core in (Config(**SIZES), Config(**SIZES, normalize=True)):
        run = model.run(x, "model", core=core, batch=2)
        assert run.failure is None and run.result.mismatched_bits == 0
        opcodes = [one.opcode for one in run.program.ops]
        assert (Opcode.NORMALIZE in opcodes, Opcode.MULTIPLY in opcodes) == (core.normalize, not core.normalize)
        assert run.compare().error is None
        errors.append(np.square(run.output - want).mean())
    assert errors[1] < 1.3 * errors[0]  # of 150 values: in one of 50 seeds, products were as near


def test_a_wrong_norm_is_noticed(rng, tmp_path):
    """The comparison of stages with binary64 includes the stages that NORMALIZE replaces."""
    b = Builder(["n", 4, 20], opset=23)
    _norm(b, 20, True)
    model, x = tpu.load(b.save(tmp_path)), rng.normal(size=(3, 4, 20)).astype(np.float32)
    graph = with_row_norms(model.network, Config(**SIZES, normalize=True))
    (stage,) = graph.stages
    for change in (None, {"epsilon": 0.1}, {"centred": False}):
        changed = replace(stage, softmax=replace(stage.softmax, **change or {}))
        wrong = replace(graph, stages=[changed])
        error = against_model(wrong, x.reshape(3, -1), run_network(wrong, x.reshape(3, -1))).error
        assert (error is None) == (change is None), change


@pytest.mark.search
def test_a_norm_reads_sums_before_they_are_rounded(rng, tmp_path):
    """The normalized tensor of a residual block is also an operand of another layer. Its sums are computed once, for both."""
    b = Builder(["n", 2, 12], opset=23)
    total = b.node("Add", ["x", b.node("MatMul", ["x", weights(rng, 12, 12)])])
    b.node("Add", [total, b.node("MatMul", [_norm(b, 12, True, total), weights(rng, 12, 12)])])
    model, core = tpu.load(b.save(tmp_path)), Config(**SIZES, normalize=True)
    graph = with_row_norms(model.network, core)
    (norm,) = (stage for stage in graph.stages if stage.softmax)
    assert norm.sums in [stage.sums for stage in graph.stages if stage is not norm]
    assert check_stages(graph, rng.normal(size=(20_000, 24))).share < 1
    assert with_row_norms(model.network, Config(**SIZES)) is model.network
    run = model.run(rng.normal(size=(4, 2, 12)).astype(np.float32), "model", core=core)
    assert run.failure is None and run.compare().error is None
    assert run.program.useful_macs == 2 * run.program.batch * (2 * 12 * 12 + 2 * 12)  # two layers, and two sums with x
    assert run.program.predicted_cycles < model.estimate(core=Config(**SIZES), batch=run.program.batch).cycles


def test_a_step_normalizes_as_the_network(rng, tmp_path):
    """Logits of a step for a core with `normalize` are the logits of the network that is evaluated. Gradients are near the
    gradients of products. A network without norms does not depend on the option."""
    b = Builder(["n", 24], opset=23)
    hidden = b("Gemm", weights(rng, 24, 12), weights(rng, 12))
    b.node("Gemm", [_norm(b, 12, True, hidden), weights(rng, 12, 5), weights(rng, 5)])
    path, core = b.save(tmp_path), Config(**SIZES, training=True, normalize=True)
    network = with_parameters(tpu.load(path).network)
    x, y = rng.normal(2, 1, (8, 24)).astype(np.float32), np.eye(5, dtype=np.float32)[rng.integers(0, 5, 8)]
    results = {}
    for one in (network, for_training_on(network, core)):
        state = initial_state(one, Sgd())
        results[one.normalize] = step(one, state, Sgd(), x, y, 0.1)
        logits = Training.results(SimpleNamespace(network=one, sums=None), bound_graph(one, state), LabelledSamples(x, y))
        assert logits.tobytes() == results[one.normalize].logits.tobytes()
        kind = replace(core, normalize=one.normalize)
        history = tpu.load(path).fit(x, y.argmax(1), core=kind, steps=1, batch_size=8)
        assert history.step_losses[0] == pytest.approx(results[one.normalize].loss, rel=1e-6)
        opcodes = [op.opcode for op in compile_step(one, Sgd(), core, 8).ops]
        assert opcodes.count(Opcode.NORMALIZE) == 2 * one.normalize
    assert (results[False].logits != results[True].logits).any()
    for before, after in zip(results[False].gradients, results[True].gradients):
        assert np.square(after - before).sum() < 0.05**2 * np.square(before).sum()
    assert not for_training_on(replace(network, stages=network.stages[:1]), core).normalize
