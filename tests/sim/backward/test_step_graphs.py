"""Training steps of networks with convolutions, pooling, averages and residual sums: instruction-level model = golden step."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.autodiff.differentiate import differentiate
from amaranth_tpu.sim.backward.compile import compile_step
from amaranth_tpu.sim.backward.cropping import cropped
from amaranth_tpu.sim.compiler.program import CompileError
from amaranth_tpu.sim.functions.functions import RELU, Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.ir.graph import Graph, Stage, Tensor, Term
from amaranth_tpu.sim.ir.optimizers import Sgd
from graphs import random_values
from trainable_graphs import random_trainable_graph
from training_steps import convolutions, run_steps, with_function

CONFIG = Config(n=4, training=True, unified_buffer_depth=2048)


def check(graph, rng, config=CONFIG, batch=3, steps=2):
    training, optimizer = differentiate(graph), Sgd(0.75)
    program = compile_step(training, optimizer, config, batch)
    run_steps(program, training, optimizer, rng, steps)
    return program


@pytest.mark.parametrize("kind", ["plain", "pool", "average", "residual", "shortcut"])
def test_each_kind_of_stage(rng, kind):
    graph = random_trainable_graph(rng, stages=2, kinds=("plain", kind))
    check(graph, rng, Config(n=int(rng.choice([4, 8])), training=True, transpose=bool(rng.integers(2))), int(rng.integers(1, 7)))


def test_results_named_as_their_stage(rng):
    """Stages named as in files whose nodes have their outputs' names; a dense layer reads scaled values."""
    graph = random_trainable_graph(rng, stages=2, kinds=("plain",))
    first, second, dense, *rest = graph.stages
    weights = random_values(rng, (1, 1, 1, second.channels))
    scale = Stage("scale", "scale", (Term("t1", weights, groups=second.channels, fixed=True),), second.size)
    dense = replace(dense, terms=(replace(dense.terms[0], source="scale"),))
    tensors = graph.tensors | {"scale": replace(graph.tensors["t1"], name="scale")}
    check(replace(graph, stages=(first, second, scale, dense, *rest), tensors=tensors), rng)


@pytest.mark.parametrize("kind", ["plain", "pool", "average", "residual", "shortcut"])
def test_functions_by_table(rng, kind):
    """Table functions after each kind of stage; a multiplied gradient continues to windows, and between zeros."""
    graph = random_trainable_graph(rng, stages=2, kinds=("plain", kind), tables=1)
    check(graph, rng, Config(n=int(rng.choice([4, 8])), training=True), int(rng.integers(1, 7)))


def test_a_function_of_averages(rng):
    """The gradient is multiplied first, then put between zeros, as the averages are of stride 2."""
    weights, outer = random_values(rng, (3, 3, 2, 5), 0.3), random_values(rng, (2, 2, 5, 3), 0.3)
    share = np.full((2, 2, 1, 5), 0.25, bfloat16)
    stages = (
        Stage("conv", "c", (Term("x", weights),), (4, 4)),
        Stage("mean", "m", (Term("c", share, (2, 2), groups=5, fixed=True),), (2, 2), function=Function("tanh")),
        Stage("dense", "y", (Term("m", outer),)),
    )
    tensors = Tensor("x", 2, 6, 6), Tensor("c", 5, 4, 4), Tensor("m", 5, 2, 2), Tensor("y", 3)
    check(Graph("g", {one.name: one for one in tensors}, "x", "y", stages), rng)


def test_a_table_is_loaded_twice(rng):
    """For all stages of convolutions with the same function: once for that, once for its derivative."""
    program = check(with_function(convolutions(rng, (5, 9), 12, 3, 1), Function("tanh")), rng, steps=1)
    opcodes = [(op.opcode, op.fields.get("word")) for op in program.ops]
    assert opcodes.count((Opcode.LOAD_TABLE, 0)) == 2 + 1  # the dense layer begins with its derivative, which is there


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_random_graphs(rng, number):
    graph = random_trainable_graph(rng, stages=int(rng.integers(1, 5)), tables=0.3)
    check(
        graph, rng, Config(n=int(rng.choice([2, 4, 8])), training=True, transpose=bool(rng.integers(2))), int(rng.integers(1, 12))
    )


@pytest.mark.smoke
def test_two_convolutions(rng):
    """Gradients of weights take several passes over the batch, and a plane of results several jobs."""
    check(convolutions(rng, (5, 9), 12, 3, 7), rng, Config(n=4, training=True, accumulator_depth=64), steps=1)


@pytest.mark.parametrize("side", [1, 3])
def test_terms_of_a_dense_stage_read_the_same(rng, side):
    """All of a tensor, a corner by a kernel that is half in the padding, and the first position alone."""
    kernels = [(side, (0, 0)), (3, (1, 1)), (1, (0, 0))]
    terms = tuple(Term("a", random_values(rng, (size, size, 5, 7)), (2, 2), padding=pad) for size, pad in kernels)
    first = Stage("conv", "a", (Term("x", random_values(rng, (2, 2, 3, 5))),), (side, side), function=RELU)
    stages = first, Stage("sum", "s", terms, function=RELU), Stage("dense", "y", (Term("s", random_values(rng, (1, 1, 7, 4))),))
    tensors = {"x": Tensor("x", 3, side + 1, side + 1), "a": Tensor("a", 5, side, side), "s": Tensor("s", 7), "y": Tensor("y", 4)}
    check(Graph("corner", tensors, "x", "y", stages, softmax=True), rng)


@pytest.mark.parametrize("dense", [True, False])
def test_masks_are_those_of_the_whole_network(rng, dense):
    """The last stage reads one position of 2 x 2, which does not make the stage before a dense layer. Without another dense
    layer, the masks apply to the operands of the last stage."""
    first = Stage("conv", "a", (Term("x", random_values(rng, (2, 2, 3, 5))),), (2, 2), function=RELU)
    middle = Stage("dense", "b", (Term("a", random_values(rng, (1, 1, 5, 4)), (2, 2)),), function=RELU)
    last = Stage("last", "y", (Term("b" if dense else "a", random_values(rng, (1, 1, 4 if dense else 5, 3)), (2, 2)),))
    stages = (first, middle, last) if dense else (first, last)
    tensors = {"x": Tensor("x", 3, 3, 3), "a": Tensor("a", 5, 2, 2), "b": Tensor("b", 4), "y": Tensor("y", 3)}
    training, dropout = differentiate(Graph("masks", tensors, "x", "y", stages, softmax=True)), Dropout(0.5)
    assert dropout.stages(training) == ((1,) if dense else (0,)) and len(dropout.stages(cropped(training))) == 1 + dense
    program = compile_step(training, Sgd(0.75), CONFIG, 3, dropout)
    run_steps(program, training, Sgd(0.75), rng, dropout=dropout)


@pytest.mark.slow
@pytest.mark.parametrize("n, batch", [(4, 2), (8, 3), (16, 5)])
def test_network_a(rng, n, batch):
    check(convolutions(rng, (32, 64)), rng, Config(n=n, training=True), batch, steps=1)


@pytest.mark.slow
def test_cycles_of_network_a(rng):
    """n = 16, latency 32: issue 12 wants 65 % of the array at batch 64."""
    program = compile_step(differentiate(convolutions(rng, (32, 64))), Sgd(), Config(training=True), 64)
    assert program.predicted_cycles <= 2_500_000


def test_what_nothing_reads_is_left_out(rng):
    """The second convolution reads 12 x 12 of 13 x 13 results, as no window covers its last sums."""
    training = cropped(differentiate(convolutions(rng, (32, 64))))
    first, second = training.graph.stages[:2]
    assert (first.size, first.pool.size, second.size) == ((24, 24), (12, 12), (10, 10))


def test_refusal_in_one_line(rng):
    training = differentiate(convolutions(rng, (32, 64)))
    with pytest.raises(CompileError, match="^stage [^\n]*: unified_buffer_depth = 128[^\n]*$"):
        compile_step(training, Sgd(), Config(n=4, training=True, unified_buffer_depth=128), 4)
