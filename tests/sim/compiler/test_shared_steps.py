"""Tests that steps of matrices with updates shared by the cores of a ring match the golden model bit for bit."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, RingMode
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.codegen.instructions import accesses
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.training import step
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Tensor
from amaranth_tpu.sim.trainer.core_steps import StepRunner
from amaranth_tpu.sim.trainer.golden_training import Batch
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked
from suites import slow
from trainable_graphs import random_trainable_graph
from training_steps import batch_of, chain, convolutions, differences, run_steps, started_state

OPTIMIZERS = [Sgd(0.0), Sgd(0.9), Sgd(0.75, 0.01), Adam(weight_decay=0.01)]


def modes(program):
    return {op.fields["mode"] for op in program.ops if op.opcode is Opcode.RING}


def check(graph, rng, cores, optimizer, *, n=4, batch=3, dropout=None, steps=2, shared=True, **config):
    """Compiles a step, runs it on the models of all cores, and compares all bits. If `shared`, the cores must share updates."""
    training, core = with_parameters(graph), Config(n=n, training=True, ring=True, **config)
    program = compile_step(training, optimizer, core, batch, dropout, cores)
    if shared:
        assert modes(program) >= {RingMode.REDUCE_SCATTER, RingMode.ALL_GATHER}
    run_steps(program, training, optimizer, rng, steps, dropout=dropout)
    return program


@pytest.mark.parametrize("number", [0, 1, 2, 3, *slow(*range(4, 24))])
def test_dense_networks(rng, number):
    """Outputs are not a multiple of the cores, and segments exceed `ring_depth`."""
    sizes = rng.integers(1, 40, int(rng.integers(2, 5)))
    graph = chain(rng, (*sizes, int(rng.integers(2, 12))), biased=bool(rng.integers(2)))
    optimizer, n = OPTIMIZERS[number % 4], int(rng.choice([4, 8]))
    sizes = {"batch": int(rng.integers(1, 40)), "ring_depth": int(rng.choice([4, 64]))}
    check(graph, rng, int(rng.integers(2, 5)), optimizer, n=n, transpose=bool(rng.integers(2)), **sizes)


@pytest.mark.parametrize("number", [0, 1, *slow(*range(2, 20))])
def test_convolutions(rng, number):
    graph = random_trainable_graph(rng, stages=int(rng.integers(1, 4)), tables=0.2)
    optimizer, n = OPTIMIZERS[(number + 1) % 4], int(rng.choice([4, 8]))
    cores, batch = int(rng.integers(2, 5)), int(rng.integers(1, 6))
    check(graph, rng, cores, optimizer, n=n, batch=batch, steps=1, shared=False)  # some graphs have too few weights


def test_weights_of_groups_are_updated_by_all_cores(rng):
    """Cores share the updates of the dense layer. All cores update the convolution of two groups."""
    first, last = GivenTerm("x", random_values(rng, (2, 2, 3, 6)), groups=2), GivenTerm("c", random_values(rng, (3, 3, 6, 4)))
    stages = GivenStage("conv", "c", (first,), (3, 3), function=RELU), GivenStage("dense", "y", (last,))
    program = check(linked("groups", Tensor("x", 6, 4, 4), stages), rng, 3, Sgd(0.9))
    assert modes(program) == {RingMode.REDUCE_SCATTER, RingMode.ALL_GATHER, RingMode.ALL_REDUCE}


def test_segments_of_more_rows_than_a_tile(rng):
    """3 segments of 3 outputs are longer than the 8 rows of 7 outputs. The rows after the last output are written before the
    first exchange, because an update reads their sums."""
    program, written = check(chain(rng, (9, 8, 7)), rng, 3, Sgd(0.9), batch=20), set()
    for op in program.ops:
        if op.fields.get("mode") is RingMode.REDUCE_SCATTER:
            assert op.fields["stride"] == op.fields["segment"]
            assert written.issuperset(range(op.fields["buffer"], op.fields["buffer"] + 3 * op.fields["segment"]))
        for memory, first, rows, write in accesses(op.opcode, op.fields, program.config.vector_bytes, 3):
            if memory == "buffer" and write and op.opcode is not Opcode.RING:
                written |= {*range(first, first + rows)}


def test_weights_that_no_window_reads(rng):
    """A kernel of 3 x 3 on one position reads padding alone in its last four positions. Their weights are gathered, too."""
    sizes = (1, 1, 3, 5), (3, 3, 5, 6)
    first, last = (round_bfloat16(rng.normal(0, 0.5, size).astype(np.float32)) for size in sizes)
    stages = (
        GivenStage("dense", "d", (GivenTerm("x", first),), bias=np.zeros(5, np.float32)),
        GivenStage("conv", "y", (GivenTerm("d", last, padding=(1, 1)),), bias=np.zeros(6, np.float32)),
    )
    graph = linked("padded", Tensor("x", 3), stages, softmax=True)
    check(graph, rng, 2, Sgd(0.9))


def test_several_updates_by_adam_in_flight(rng):
    """Sums of an update that last for two steps have their own accumulators, while the next update begins."""
    check(chain(rng, (25, 24, 29, 3)), rng, 2, Adam(weight_decay=0.01), batch=6, transpose=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:])
def test_layers_of_equal_gradients(rng, optimizer):
    """Two layers read the same source, and their results are added. Each has a gradient of its own, which the cores exchange."""
    sizes = (3, 4), (3, 4), (4, 5), (5, 6)
    left, right, middle, last = (round_bfloat16(rng.normal(0, 0.5, (1, 1, *size)).astype(np.float32)) for size in sizes)
    stages = (
        GivenStage("two", "a", (GivenTerm("x", left), GivenTerm("x", right)), bias=np.zeros(4, np.float32), function=RELU),
        GivenStage("middle", "b", (GivenTerm("a", middle),), bias=np.zeros(5, np.float32)),
        GivenStage("last", "y", (GivenTerm("b", last),), bias=np.zeros(6, np.float32)),
    )
    check(linked("twins", Tensor("x", 3), stages, softmax=True), rng, 2, optimizer, n=8, batch=5)


@pytest.mark.parametrize("memories", [{"unified_buffer_depth": 1024}, {"accumulator_depth": 128}])
def test_gradients_that_do_not_stay_on_the_chip(rng, memories):
    """Gradients of 70 outputs are exchanged through region SCRATCH."""
    check(chain(rng, (5, 70, 3)), rng, 3, Sgd(0.9), batch=9, **memories)


def test_operands_on_the_chip_while_weights_are_gathered(rng):
    """Weights of the second layer are gathered between two passes over the results of the first layer."""
    check(chain(rng, (40, 33, 7)), rng, 3, Sgd(0.75), batch=9, unified_buffer_depth=512)


def test_every_core_updates_all_weights_if_memories_are_small(rng):
    program = check(chain(rng, (5, 70, 3)), rng, 3, Sgd(), unified_buffer_depth=64, shared=False, steps=1)
    assert modes(program) == {RingMode.ALL_REDUCE}


@pytest.mark.smoke
def test_im2col_pooling_and_dropout(rng):
    check(convolutions(rng, (5, 9), 12, 3, 7), rng, 2, Adam(), batch=2, dropout=Dropout(0.5, 3))


@pytest.mark.parametrize("kind", ["dense", "convolutions"])
def test_update_lanes(rng, kind):
    """Also of biases, whose updates have no products: the cores exchange the gradients before."""
    graph = chain(rng, (9, 13, 5)) if kind == "dense" else convolutions(rng, (5, 9), 12, 3, 7)
    program = check(graph, rng, 3, Sgd(0.75), update_lanes=4, steps=1)
    assert any(op.opcode is Opcode.UPDATE for op in program.ops)


@pytest.mark.parametrize("cores", [2, 8])
def test_words(rng, cores):
    """Each core sends a gradient and the upper halves of the masters once, and the gradients of biases twice."""
    program = check(chain(rng, (72, 32, 16)), rng, cores, Sgd(), n=8, batch=8, steps=1)
    numbers, biases = 72 * 32 + 32 * 16, cores * (32 + 16)  # one segment has the biases
    assert program.ring_words == (numbers + numbers // 2 + 2 * biases) * (cores - 1) // cores


@pytest.mark.search
def test_rtl_of_two_cores(rng):
    """Icarus computes the golden model's bits, and takes the predicted cycles to 5 %."""
    training, optimizer = with_parameters(chain(rng, (3, 4, 2))), Sgd(0.75)
    core = Config(n=2, training=True, ring=True, table_lanes=1)
    program = compile_step(training, optimizer, core, 2, None, 2)
    state, (x, targets) = started_state(training, optimizer, rng), batch_of(training, 4, rng)
    found = StepRunner(program, "icarus", timeout=300, quick=True)(state, [Batch(0, 0, x, None, targets, None, 0.1, {})])
    wanted = step(training, state, optimizer, x, targets, 0.1, cores=2)
    assert found.fault is None and found.protocol_errors == 0
    assert not any(differences(training, one, wanted.state) for one in found.states)
    assert np.array_equal(found.logits[0].view(np.uint32), wanted.logits.view(np.uint32))
    assert abs(found.counters[0]["cycles"] - program.predicted_cycles) < 0.05 * program.predicted_cycles
