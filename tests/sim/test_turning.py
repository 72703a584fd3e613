"""Depthwise convolutions with positions in the lanes: the same bits with fewer passes, by transposing loads."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.registers import REGISTER
from amaranth_tpu.sim.bundle.host_model import host_model
from amaranth_tpu.sim.compiler import compile as compiler
from amaranth_tpu.sim.compiler.turning import turn
from amaranth_tpu.sim.host.inference import run_samples
from amaranth_tpu.sim.ir.functions import RELU
from amaranth_tpu.sim.ir.graph import Graph, Stage, Tensor, Term, span
from graphs import check, random_values


def network(rng, height, width, channels, layers, kernel=3):
    """A convolution, pairs of a depthwise convolution of this `(stride, padding)` and a pointwise one, and a dense layer."""
    tensors, stages = [Tensor("x", 2, height, width)], []

    def add(term, size, function=RELU):
        name = f"t{len(stages)}"
        bias = rng.normal(size=term.weights.shape[3]).astype(np.float32)
        stages.append(Stage(name, name, (term,), size, bias, function=function))
        tensors.append(Tensor(name, term.weights.shape[3], *size))

    add(Term("x", random_values(rng, (1, 1, 2, channels))), (height, width))
    for stride, padding in layers:
        have = tensors[-1]
        size = tuple((h + 2 * padding - span(1, 1, kernel, 1)) // stride + 1 for h in (have.height, have.width))
        weights = random_values(rng, (kernel, kernel, 1, have.channels), 0.5)
        add(Term(have.name, weights, (stride,) * 2, padding=(padding,) * 2, groups=have.channels), size)
        outputs = have.channels * int(rng.integers(1, 3))
        add(Term(tensors[-1].name, random_values(rng, (1, 1, have.channels, outputs), 0.3)), size)
    have = tensors[-1]
    add(Term(have.name, random_values(rng, (have.height, have.width, have.channels, 3), 0.2)), (1, 1))
    return Graph("g", {one.name: one for one in tensors}, "x", tensors[-1].name, tuple(stages))


FEATURES = dict.fromkeys(REGISTER["features"].fields, 0)
FAST = ("one vector", "no padding", "rows in blocks")
NETWORKS = {
    "a row in a vector": (4, 5, 4, 8, [(1, 1), (1, 1)]),
    "rows in a vector": (8, 6, 4, 8, [(1, 1), (1, 1)]),
    "a last row that is not full": (8, 7, 3, 8, [(1, 1), (1, 1)]),
    "strides": (8, 8, 8, 8, [(1, 1), (2, 1), (1, 1), (2, 0)]),
    "one vector": (16, 4, 4, 16, [(2, 1), (1, 1)]),
    "no padding": (4, 6, 4, 4, [(1, 0)]),
    "rows in blocks": (4, 5, 8, 8, [(1, 1), (2, 1), (1, 1)]),
    "blocks without padding": (8, 9, 14, 8, [(1, 0), (1, 1)]),
}


@pytest.fixture
def turned(monkeypatch):
    """Function of a graph: it is compiled with all turned that can be, whether it is worth it or not."""

    def only(graph, n, batch):
        monkeypatch.setattr("amaranth_tpu.sim.compiler.turning.worth", lambda saved: True)
        found = turn(graph, graph.tensors, n, batch)
        assert found is not None
        monkeypatch.setattr(compiler, "_ways", lambda *_: [found])

    return only


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in NETWORKS])
def test_turned_networks(rng, name, turned):
    """Instruction by instruction."""
    n, *sizes = NETWORKS[name]
    graph, batch = network(rng, *sizes), 3
    turned(graph, n, batch)
    program = check(graph, Config(n=n, transpose=True), batch, rng, samples=batch)
    loads = [op for op in program.ops if op.fields.get("transpose")]
    assert loads and all(op.fields["rows"] % n == 0 for op in loads)
    assert host_model(graph, program).needs.features & REGISTER["features"].pack(**FEATURES | {"transpose": 1})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a last row that is not full", "strides", "rows in blocks"])
def test_turned_networks_on_the_core(rng, name, turned):
    """With the cycles that were predicted, but for some 250: at the beginning, the weights of all stages fill the window."""
    _, *sizes = NETWORKS[name]
    graph, batch = network(rng, *sizes), 2
    turned(graph, 4, batch)
    config = Config(n=4, transpose=True, unified_buffer_depth=256, accumulator_depth=64, table_lanes=0, softmax=False)
    samples = random_values(rng, (batch, graph.input_size))
    result = run_samples(graph, config, samples, batch=batch, memory={"latency": 32}, quick=True)
    assert result.fault is None and result.mismatched_bits == 0 and result.protocol_errors == 0
    predicted = compiler.compile_network(graph, config, batch).predicted_cycles
    assert abs(result.cycles - predicted) <= 300


def test_only_where_it_is_worth_it(rng):
    """The compiler leaves a network as it is where the array would have more to do, or the core does not transpose."""
    graph = network(rng, 5, 4, 8, [(1, 1)])
    assert turn(graph, graph.tensors, 4, 8) is not None and turn(graph, graph.tensors, 16, 8) is None
    without = compiler.compile_network(graph, Config(n=4), 2)
    assert not any(tensor.turned for tensor in without.memory.batched.tensors.values())
