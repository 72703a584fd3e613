"""Tests that small networks with each normalisation match the golden model bit for bit on the RTL."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.host.inference import run_samples
from graphs import random_values
from onnx_models import Builder, weights

#: Has `transpose`, with which the compiler maps positions to lanes.
CORE = Config(n=4, unified_buffer_depth=512, accumulator_depth=128, table_lanes=2, softmax=False, transpose=True)


def _rows(b, rng, channels):
    b("MatMul", weights(rng, channels, 12))
    return 12


def _image(b, rng, channels):
    b("Conv", weights(rng, 8, channels, 1, 1))
    return 8


NETWORKS = {
    "LayerNormalization": ((5, 6), _rows, {}),
    "LayerNormalization, mean in two parts": ((5, 6), lambda b, rng, _: b("MatMul", weights(rng, 6, 68)) and 68, {}),
    "RMSNormalization": ((5, 6), _rows, {}),
    "InstanceNormalization": ((3, 4, 5), _image, {}),
    "GroupNormalization": ((3, 4, 5), _image, {"num_groups": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_normalisation(rng, tmp_path, name):
    """A normalisation on the RTL matches the golden model bit for bit. Some samples are all zeros (variance 0), and some have
    values of 1e-12 and 1e12."""
    shape, first, options = NETWORKS[name]
    b = Builder(["n", *shape], opset=23)
    channels, operator = first(b, rng, shape[-1] if len(shape) == 2 else shape[0]), name.split(",")[0]
    b(operator, 1 + weights(rng, channels), *([] if operator[0] == "R" else [weights(rng, channels)]), **options)
    if len(shape) == 2:
        b("MatMul", weights(rng, channels, 7))
    network = load_network(b.save(tmp_path))
    samples = random_values(rng, (4, network.input_size)) * np.array([[1], [0], [1e-12], [1e12]], np.float32)
    result = run_samples(network, CORE, samples, batch=2, memory={"latency": 20, "pause_percent": 20}, quick=True)
    assert result.fault is None and result.mismatched_bits == 0 and result.protocol_errors == 0
