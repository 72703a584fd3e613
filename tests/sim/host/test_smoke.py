"""Smoke tests to run before a commit (`python -m pytest -m smoke`), which generate Verilog, run a network on all models of the
core and on the RTL, and recognise a function."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.host.inference import SIMULATORS, run_samples
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from onnx_models import Builder, weights

pytestmark = pytest.mark.smoke
CONFIG = Config(n=2, unified_buffer_depth=64, accumulator_depth=16, bias_depth=4, **PLAIN)


def test_verilog():
    assert "\nmodule tpu (" in verilog_of(CONFIG)


def test_network(rng, tmp_path):
    """Two dense layers, in two batches of which the second is incomplete, give the same logits on all models of the core and in
    Icarus Verilog."""
    b = Builder(["batch", 5])
    b("Gemm", weights(rng, 5, 4), np.full(4, 100, np.float32))  # so that the ReLU lets values through
    b("Relu")
    b("Gemm", weights(rng, 4, 3))
    network = load_network(b.save(tmp_path))
    samples = rng.normal(size=(3, 5)).astype(np.float32)
    logits = []
    for simulator in SIMULATORS:
        if simulator != "verilator":  # takes too long to build
            result = run_samples(network, CONFIG, samples, batch=2, simulator=simulator)
            assert not result.mismatched_bits
            logits.append(result.logits)
    assert len(logits) == 3 and len(np.unique(logits)) > logits[0].shape[1]


def test_written_out_function(rng, tmp_path):
    b = Builder(["batch", 4])
    x = b("Gemm", weights(rng, 4, 3))
    b("Sigmoid")
    b.node("Mul", [x, b.last])
    [stage] = load_network(b.save(tmp_path)).stages
    assert stage.function.name == "silu"
