"""Tests of graphs of stages on the RTL, covering random graphs on a small core, and the shipped networks on the default core."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.functions.functions import NONE, RELU, Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.host.inference import run_samples
from amaranth_tpu.sim.ir.stage import Stage
from amaranth_tpu.sim.models.shipped import SHIPPED
from graphs import SHARED, random_graph, random_values
from suites import slow

SMALL = Config(n=4, unified_buffer_depth=256, accumulator_depth=64, table_lanes=2, softmax=False)
FUNCTIONS = (NONE, RELU, Function("tanh"), Function("leaky_relu", (0.1,)), Function("gelu"), Function("clip", (0.0, 6.0)))


def exact(graph, config, random, batch, count=None, **memory):
    samples = random_values(random, (count or batch, graph.input_size))
    result = run_samples(graph, config, samples, batch=batch, memory=memory, quick=True)
    assert result.fault is None and result.mismatched_bits == 0 and result.protocol_errors == 0


@pytest.mark.parametrize("config, number", slow((SHARED, 1), *((SMALL, number) for number in range(312))))
def test_random_graph(rng, config, number):
    graph = random_graph(rng, functions=FUNCTIONS)
    try:
        exact(
            graph,
            config,
            rng,
            batch=int(rng.integers(1, 4)),
            latency=int(rng.integers(1, 60)),
            pause_percent=int(rng.choice([0, 40])),
        )
    except CompileError as error:
        assert "smallest tile" in str(error)


@pytest.mark.slow
def test_product(rng):
    """x * sigmoid(x), computed as two stages, matches the golden model bit for bit on the RTL."""
    graph = random_graph(rng, stages=1, pooling=False, split=False)
    first = graph.stages[0]
    tensor = graph.tensors[first.output]
    one = np.eye(tensor.channels, dtype=np.float32).astype(bfloat16).reshape(1, 1, tensor.channels, -1)
    size, graph.stages = (tensor.height, tensor.width), [first]
    term = graph.term(first.output, "one", one)
    graph.add_stage(Stage("gate", (term,), size, function=Function("sigmoid"), name="gate"), tensor.channels)
    graph.output = graph.add_stage(Stage("out", (term,), size, times="gate", name="product"), tensor.channels)
    exact(graph, SMALL, rng, batch=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a", "c"])
def test_shipped_network(name):
    _shipped(name, 2, SHARED, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_shipped_network_over_a_batch(name):
    _shipped(name, 32, Config(table_lanes=0, softmax=False))


def _shipped(name, count, config, **options):
    network = load_network(SHIPPED[name])
    pixels, labels = load_digits()
    samples = preprocess(pixels[:count], network.preprocess).reshape(count, -1).astype(bfloat16)
    result = run_samples(network, config, samples, batch=count, **options)
    assert result.fault is None and result.mismatched_bits == 0
    assert (result.logits.argmax(axis=1) == labels[:count]).mean() >= 0.8  # d classifies 27 of the first 32 correctly
