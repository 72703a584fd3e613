"""Tests of the instructions of dense networks' steps by matrix products: jobs of several column tiles, and of few samples."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import FunctionCode, Opcode
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.compiler.codegen import jobs
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.compiler.tiling import chunks
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Term
from graph_steps import dense_network, run_on_model
from step_networks import Builder


def _compiled(rng, sizes, batch, optimizer=None, n=4, **config):
    step = make_step(dense_network(rng, sizes), optimizer or Sgd())
    return compile_graph(step, Config(n=n, training=True, **config), batch)


def _count(program, *opcodes):
    return sum(op.opcode in opcodes for op in program.ops)


@pytest.mark.parametrize("optimizer, lanes", [(Sgd(0.75, 0.01), 0), (Sgd(), 4), (Adam(), 0)])
@pytest.mark.search
def test_column_tiles_of_few_outputs_are_updated_together(rng, monkeypatch, optimizer, lanes):
    """A layer of few outputs has jobs of several column tiles. One instruction updates all of them, also beside a last tile of
    fewer channels."""
    for inputs in (64, 62):
        program = _compiled(rng, (inputs, 3), 5, optimizer, update_lanes=lanes)
        run_on_model(program, optimizer, rng, steps=2)
        with monkeypatch.context() as patch:
            patch.setattr(jobs.SumCode, "_join", lambda self: None)
            apart = _compiled(rng, (inputs, 3), 5, optimizer, update_lanes=lanes)
        stores = Opcode.STORE, Opcode.STORE_UPDATE
        if inputs == 64:
            assert _count(program, *stores) < 0.7 * _count(apart, *stores)
            assert program.predicted_cycles < apart.predicted_cycles


@pytest.mark.parametrize("n, sizes, batch", [(2, (9, 4, 2), 21), (4, (7, 40, 2), 66)])
def test_long_gradients_are_transposed_from_zeros(rng, n, sizes, batch):
    """Passes that transpose more tiles than there are zeros among the bias rows do not start from biases."""
    run_on_model(_compiled(rng, sizes, batch, n=n), Sgd(), rng, steps=2)


@pytest.mark.parametrize("optimizer", [Sgd(0.75), Adam()])
def test_two_layers_of_equal_gradients(rng, optimizer):
    """Two layers read the same source, and their results are added. Their gradients are equal, their states differ."""
    network = Builder(rng)
    source = network.add_input("x", (1, 1, 7))
    terms = [Term(source, network.weights(name, 1, 7, 5)) for name in ("left", "right")]
    hidden = network.stage("hidden", 5, *terms, start=network.bias("b", 5), function=RELU)
    last = Term(hidden, network.weights("last", 1, 5, 3))
    network.output = network.stage("logits", 3, last, start=network.bias("c", 3), wide=True)
    program = compile_graph(make_step(network, optimizer), Config(n=4, training=True), 5)
    run_on_model(program, optimizer, rng, steps=2)


def test_softmax_of_the_samples_alone(rng):
    """SOFTMAX computes the samples, without the rows that fill the last tile."""
    program = _compiled(rng, (9, 5), 6)
    assert sum(op.rows for op in program.ops if op.opcode is Opcode.SOFTMAX) == 6
    run_on_model(program, Sgd(), rng, steps=2)


@pytest.mark.search
def test_table_is_loaded_beside_the_first_sums(rng):
    """The parts of Adam's table are loaded between passes, and before the first use of the function."""
    program = _compiled(rng, (80, 32, 3), 20, Adam())
    kinds = [op.opcode for op in program.ops]
    first = next(place for place, op in enumerate(program.ops) if op.fields.get("function") is FunctionCode.TABLE)
    loads = [place for place, kind in enumerate(kinds) if kind is Opcode.LOAD_TABLE]
    passes = [kinds[:place].count(Opcode.MATMUL) for place in loads]
    assert loads[-1] < first and len(set(passes)) > 2


@pytest.mark.search
def test_fastest_division_of_the_batch_is_kept(rng, monkeypatch):
    """The chosen division is at least as fast as a division alone."""
    best = _compiled(rng, (40, 12, 3), 64).predicted_cycles
    cycles = []
    for size in chunks.CHUNKS[:3]:
        monkeypatch.setattr(chunks, "CHUNKS", (size,))
        cycles.append(_compiled(rng, (40, 12, 3), 64).predicted_cycles)
    assert best <= min(cycles) < max(cycles)
