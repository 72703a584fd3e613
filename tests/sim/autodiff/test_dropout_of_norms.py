"""Dropout of the result of a normalization."""

import numpy as np
from ml_dtypes import bfloat16

from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.training import initial_state, step
from amaranth_tpu.sim.ir.optimizers import Sgd
from onnx_models import Builder, weights


def test_dropped_results_of_a_norm_leave_the_bias(rng, tmp_path):
    """Dropout applies to the result of LayerNormalization, not to a stage inside. If all numbers are dropped, the logits are the
    last bias, and the parameters before the norm stay as they are."""
    b = Builder(["n", 6], opset=17)
    b("Gemm", weights(rng, 6, 8), weights(rng, 8))
    b("LayerNormalization", np.ones(8, np.float32), np.zeros(8, np.float32))
    bias = weights(rng, 3)
    b("Gemm", weights(rng, 8, 3), bias)
    training = with_parameters(load_network(b.save(tmp_path)))
    masks = {number: np.zeros_like(mask) for number, mask in Dropout(0.5).masks(training, 0, 4).items()}
    assert [training.stages[number].output for number in masks] == [training.stages[-1].terms[0].source]
    state, x = initial_state(training, Sgd()), rng.normal(size=(4, 6)).astype(bfloat16)
    found = step(training, state, Sgd(), x, np.eye(3)[[0, 1, 2, 0]].astype(bfloat16), 0.1, masks)
    assert np.array_equal(found.logits, np.tile(bias, (4, 1)))
    for parameter, before, after in zip(training.parameters, state.masters, found.state.masters):
        assert np.array_equal(before, after) == (not parameter.startswith("Gemm_2.bias")), parameter
