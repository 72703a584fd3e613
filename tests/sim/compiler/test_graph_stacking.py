"""Tests of weights and bias as one parameter, in training steps of convolutions that read gathered windows."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.autodiff.stages import identity
from amaranth_tpu.sim.compiler import compile_graph as compiling
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Pool, Term
from graph_steps import run_on_model
from step_networks import Builder
from suites import slow


def _flattened(network, x):
    tensor = network.tensors[x]
    term = Term(x, network.weights("w", tensor.height * tensor.width, tensor.channels, 3), tensor.shape[:2])
    network.output = network.stage("logits", 3, term, start=network.bias("b", 3), wide=True)
    return network


def _network(rng, size, channels, outputs, kernel, pool=None):
    network = Builder(rng)
    pool = pool and Pool(pool, (size[0] // pool[0], size[1] // pool[1]), pool)
    x = network.add_input("x", (*size, channels))
    return _flattened(network, network.conv("conv", x, outputs, kernel=kernel, padding=kernel // 2, function=RELU, pool=pool))


def _check(network, rng, batch, optimizer=None, **config):
    optimizer = optimizer or Sgd()
    program = compile_graph(make_step(network, optimizer), Config(**{"n": 4, "training": True, **config}), batch)
    run_on_model(program, optimizer, rng)
    return program


@pytest.mark.parametrize(
    "size, channels, outputs, kernel, pool, batch, n, optimizer",
    [
        ((4, 5), 1, 5, 3, None, 3, 4, Sgd()),
        ((5, 4), 3, 9, 3, (1, 2), 2, 4, Adam()),
        *slow(
            ((6, 6), 1, 16, 3, (2, 2), 3, 16, Sgd()), ((3, 4), 3, 8, 3, None, 1, 8, Adam()), ((5, 5), 4, 3, 5, None, 2, 8, Sgd())
        ),
    ],
)
def test_one_parameter(rng, size, channels, outputs, kernel, pool, batch, n, optimizer):
    """Fewer and more inputs than n, several tiles of outputs, samples that are no whole tiles, and pooling."""
    program = _check(_network(rng, size, channels, outputs, kernel, pool), rng, batch, optimizer, n=n)
    (name,) = program.memory.step.parameters.keys() - {"w", "b"}
    assert program.memory.step.tensors[name].shape == (1, kernel**2 * channels + 1, outputs)


def test_update_lanes(rng):
    """One UPDATE has the rows of weights and bias."""
    program = _check(_network(rng, (4, 5), 1, 4, 3), rng, 2, update_lanes=4)
    assert 10 in [op.fields["rows"] for op in program.ops if op.opcode is Opcode.UPDATE]


@pytest.mark.search
def test_fewer_cycles(rng, monkeypatch):
    """The host transposes the windows, and the array has fewer passes."""
    network, config = _network(rng, (6, 6), 1, 5, 3), Config(n=4, training=True)
    one = compile_graph(make_step(network, Sgd()), config, 4)
    monkeypatch.setattr(compiling, "stacked", lambda folded: folded)
    apart = compile_graph(make_step(network, Sgd()), config, 4)
    assert 10 * one.cost.compute_cycles < 9 * apart.cost.compute_cycles and one.predicted_cycles < apart.predicted_cycles


def test_weights_apart(rng):
    """Weights that decay have another update than the bias; two convolutions have the same bias; other sums have no bias."""
    decay = _check(_network(rng, (4, 5), 1, 5, 3), rng, 2, Sgd(weight_decay=0.01))
    network = Builder(rng)
    x, bias = network.add_input("x", (4, 5, 1)), network.bias("shared", 5)
    terms = [Term(x, network.weights(f"weights{k}", 9, 1, 5), (3, 3), padding=(1, 1)) for k in range(2)]
    one, two = (network.stage(f"conv{k}", 5, term, size=(4, 5), start=bias) for k, term in enumerate(terms))
    shared = _check(
        _flattened(network, network.stage("sum", 5, identity(network, one), identity(network, two), size=(4, 5))), rng, 2
    )
    network = Builder(rng)
    term = Term(network.add_input("x", (4, 5, 1)), network.weights("weights", 9, 1, 5), (3, 3), padding=(1, 1))
    alone = _check(_flattened(network, network.stage("conv", 5, term, size=(4, 5))), rng, 2)
    assert not (decay.memory.folded.stacks or shared.memory.folded.stacks or alone.memory.folded.stacks)


def test_a_ring(rng):
    """Sums over cores have an order for each output, so the bias is apart."""
    step = make_step(_network(rng, (4, 5), 1, 5, 3), Sgd(), 2, sharded=False)
    program = compile_graph(step, Config(n=4, training=True, ring=True), 2, 2)
    run_on_model(program, Sgd(), rng, 1)
    assert not program.memory.folded.stacks
