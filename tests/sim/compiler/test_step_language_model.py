"""Tests that a step of an ONNX language model runs on the instruction-level model with the reference model's bits."""

import numpy as np
import onnx
import pytest

from amaranth_tpu.hw.config import Config, from_preset
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.compiler.step_state import pack_state, unpack_states, with_rate
from amaranth_tpu.sim.compiler.timing.units import MATMUL
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.machines import ring_of
from amaranth_tpu.sim.golden.shards import shards_of
from amaranth_tpu.sim.golden.training import step
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.ir.row_norms import for_training_on
from amaranth_tpu.sim.models.gpt import gpt_model
from language_models import language_model
from suites import slow
from training_steps import differences, started_state


@pytest.mark.parametrize(
    "tokens, width, heads, letters, cores",
    [(3, 6, 1, 3, 1), (2, 4, 1, 2, 2), *slow((3, 4, 1, 3, 1), (5, 8, 2, 6, 1), (5, 6, 2, 6, 3))],
)
def test_step_with_padding(rng, tmp_path, tokens, width, heads, letters, cores):
    """Padding changes the mask of the loss, and the number of positions of the whole batch by which the learning rate is
    divided."""
    graph = load_network(language_model(rng, tokens, width, heads, letters).save(tmp_path))
    training, optimizer, batch = with_parameters(graph, counted=True), Sgd(), 2 if cores == 1 else cores
    program = compile_step(training, optimizer, Config(n=4, training=True, ring=True), batch // cores, cores=cores)
    x = training.fed(rng.integers(0, letters, (batch, tokens))).astype(bfloat16)
    labels, counted = rng.integers(0, letters, (batch, tokens)), np.ones((batch, tokens), np.int64)
    counted[0, -1] = 0
    targets = (labels[..., None] == np.arange(letters)).astype(bfloat16).reshape(batch, -1)
    state = started_state(training, optimizer, rng)
    wanted = step(training, state, optimizer, x, targets, 0.1, counted=counted, cores=cores)
    memories = [{region: bytearray(size) for region, size in program.sizes.items()} for _ in range(cores)]
    for rank, (regions, part) in enumerate(zip(memories, shards_of(batch, cores))):
        regions[Region.MODEL][:] = with_rate(program, 0.1, 1, counted)
        regions[Region.INPUT][:] = program.pack_input(x[part], targets[part], counted=counted[part])
        regions[Region.SCRATCH][:] = pack_state(program, state, rank)
    ring_of(program.config, memories).run()
    logits = np.concatenate([program.unpack_output(regions[Region.OUTPUT]) for regions in memories])
    assert np.array_equal(logits, wanted.logits)
    for found in unpack_states(program, [regions[Region.SCRATCH] for regions in memories], 1):
        assert not differences(training, found, wanted.state)


@pytest.mark.slow
@pytest.mark.search
def test_cycles_of_the_shipped_gpt(tmp_path):
    """A step of 512 letters with n = 16 takes at most 1,150,000 cycles, and with NORMALIZE 1,090,000. The array accepts rows in
    80 % of them."""
    onnx.save(gpt_model(has_state=False), tmp_path / "gpt.onnx")
    network, core = with_parameters(load_network(tmp_path / "gpt.onnx")), from_preset("transformer")
    for one, most in ((network, 1_150_000), (for_training_on(network, core), 1_090_000)):
        program = compile_step(one, Sgd(), core, 16)
        rows = sum(op.passes * op.rows for op in program.ops if op.unit == MATMUL)
        assert program.predicted_cycles <= most
        assert rows >= 0.8 * program.predicted_cycles
