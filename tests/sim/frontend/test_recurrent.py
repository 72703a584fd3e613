"""Tests of GRU, LSTM and RNN (`sim/frontend/operators/recurrent.py`) against onnxruntime, and of their errors."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.compiler.compile_graph import network_of
from amaranth_tpu.sim.export.writer import ModelWriter
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.losses import Loss
from amaranth_tpu.sim.trainer.new_training import trainable_network
from onnx_models import Builder, close, reference, refused, values_of, weights

GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
INPUTS, HIDDEN, STEPS = 5, 6, 3


def parameters(rng, operator, ways=1, inputs=INPUTS, hidden=HIDDEN):
    rows = GATES[operator] * hidden
    return [weights(rng, ways, rows, inputs) * 2, weights(rng, ways, rows, hidden) * 2, weights(rng, ways, 2 * rows)]


def layer(rng, operator, ways=1, shape=("n", STEPS, INPUTS), states=(), inputs=None, **attributes):
    """Returns a builder of a model with samples on the first axis, up to and including the recurrent layer."""
    b = Builder(list(shape), opset=14)
    b("Transpose", perm=[1, 0, 2])
    given = [b.last, *(inputs or parameters(rng, operator, ways)), *(["", *states] if states else [])]
    b.node(operator, given, name="odd", hidden_size=HIDDEN, **attributes)
    return b


def agrees(rng, path, *shape, count=3, scale=None):
    model, x = tpu.load(path), rng.normal(size=(count, *shape)).astype(np.float32) * 2
    assert model.compare(x).error is None
    close(model.predict(x), reference(path, x).reshape(model.predict(x).shape), scale=scale)
    return model


@pytest.mark.parametrize("operator, extra", [("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("LSTM", {}), ("RNN", {})])
@pytest.mark.parametrize("direction, ways", [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
def test_outputs_of_all_steps(rng, tmp_path, operator, extra, direction, ways):
    """The outputs of all steps give the same results as onnxruntime, for GRU and LSTM in each direction."""
    b = layer(rng, operator, ways, direction=direction, **extra)
    b("Transpose", perm=[2, 0, 1, 3])
    agrees(rng, b.save(tmp_path), STEPS, INPUTS)


@pytest.mark.parametrize("operator", GATES)
def test_last_state_of_stacked_layers(rng, tmp_path, operator):
    """Two stacked layers with only the last state as output give the same results as onnxruntime, and no state is copied between
    the layers."""
    b = layer(rng, operator)
    b("Squeeze", np.array([1]))
    b.node(operator, [b.last, *parameters(rng, operator, inputs=HIDDEN)], hidden_size=HIDDEN)
    b("Slice", *map(np.array, ([-1], [1 << 40], [0])))
    b("Squeeze", np.array([0, 1]))
    b("Gemm", weights(rng, HIDDEN, 16))  # enough outputs that cancellation does not make all of them small
    model = agrees(rng, b.save(tmp_path), STEPS, INPUTS)
    assert all(stage.origin == (0, 0) for stage in model.network.stages)


@pytest.mark.parametrize("operator", GATES)
def test_steps_share_their_weights(rng, tmp_path, operator):
    """Twelve steps have the weights of one step once in the graph, and once in the network that is compiled."""
    b = layer(rng, operator, shape=("n", 12, INPUTS))
    b("Transpose", perm=[2, 0, 1, 3])
    graph = tpu.load(b.save(tmp_path)).network
    names = [term.weights for stage in graph.stages for term in stage.terms]
    names = [name for name in names if name in graph.constants and graph.constants[name].shape == (1, HIDDEN, HIDDEN)]
    assert len(names) == 11 * GATES[operator] and len({*names}) == GATES[operator]
    shapes = [one.shape for one in network_of(graph).constants.values()]
    assert shapes.count((1, HIDDEN, HIDDEN)) == GATES[operator]


@pytest.mark.parametrize("operator, extra", [("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("LSTM", {}), ("RNN", {})])
def test_layers_without_biases_are_trained(rng, tmp_path, operator, extra):
    """Training finds the weights of the file, and no biases that the file lacks."""
    b = layer(rng, operator, inputs=parameters(rng, operator)[:2], **extra)
    b("Transpose", perm=[2, 0, 1, 3])
    network = trainable_network(load_network(b.save(tmp_path)), Loss.CROSS_ENTROPY)
    assert not any(name.endswith("bias") for name in network.parameters) and ModelWriter(network).own_form


@pytest.mark.parametrize("operator", ["GRU", "LSTM"])
@pytest.mark.parametrize("on", ["golden", pytest.param("icarus", marks=pytest.mark.slow)])
def test_single_steps(rng, tmp_path, operator, on):
    """Single steps of a GRU or LSTM give the same results as onnxruntime, with the state as input and output and each step
    starting from the preceding state."""
    b, names = Builder([1, 1, INPUTS], opset=14), ["h", "c"][: GATES[operator] - 2]
    for name in names:
        b.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, HIDDEN]))
    b.node(operator, ["x", *parameters(rng, operator), "", *names], hidden_size=HIDDEN)
    b.nodes[-1].output[:] = ["", *(f"new {name}" for name in names)]
    model = tpu.load(b.save(tmp_path, outputs=b.nodes[-1].output[1:]))
    state, right = {name: np.zeros((1, 1, HIDDEN), np.float32) for name in names}, None
    for _ in range(3 if on == "golden" else 1):
        feeds = {"x": rng.normal(size=(1, 1, INPUTS)).astype(np.float32), **state}
        right, made = model.predict(feeds, "onnxruntime"), model.predict(feeds, on, core=tpu.Config(n=4))
        made, right = (one if isinstance(one, dict) else {"new h": one} for one in (made, right))
        if on != "golden":
            golden = model.predict(feeds)
            golden = golden if isinstance(golden, dict) else {"new h": golden}
            assert all(np.array_equal(made[name], golden[name]) for name in made)
        for name in names:
            close(made[f"new {name}"], right[f"new {name}"], 0.04)  # roundings of up to three steps
            state[name] = np.asarray(made[f"new {name}"])


def test_initial_states(rng, tmp_path):
    state = weights(rng, 1, 1, HIDDEN).repeat(2, axis=1)
    b = layer(rng, "GRU", shape=(2, STEPS, INPUTS), states=[state])
    b("Transpose", perm=[2, 0, 1, 3])
    agrees(rng, b.save(tmp_path), STEPS, INPUTS, count=2)
    b = layer(rng, "GRU", states=[state[:, :1]])  # a state of one sample fixes the batch to 1
    b("Transpose", perm=[2, 0, 1, 3])
    assert agrees(rng, b.save(tmp_path), STEPS, INPUTS, count=1).network.origin.batch == 1
    b = Builder(["n", STEPS, INPUTS], opset=14)
    count = b.node("Slice", [b.node("Shape", ["x"]), *map(np.array, ([0], [1]))])
    zeros = b.node("ConstantOfShape", [b.node("Concat", [np.array([1]), count, np.array([HIDDEN])], axis=0)])
    turned = b.node("Transpose", ["x"], perm=[1, 0, 2])
    b.node("LSTM", [turned, *parameters(rng, "LSTM"), "", zeros, zeros], hidden_size=HIDDEN)
    b("Transpose", perm=[2, 0, 1, 3])
    agrees(rng, b.save(tmp_path), STEPS, INPUTS)


@pytest.mark.parametrize("is_cut", [False, True])
def test_states_of_several_layers(rng, tmp_path, is_cut):
    """PyTorch slices the states of its layers from zeros for all layers and an open batch. A slice of the batch is refused."""
    b = Builder(["n", STEPS, INPUTS], opset=14)
    count = b.node("Slice", [b.node("Shape", ["x"]), *map(np.array, ([0], [1]))])
    zeros = b.node("Expand", [np.array(0, np.float32), b.node("Concat", [np.array([2]), count, np.array([HIDDEN])], axis=0)])
    cut = [np.array([1]), np.array([2]), *([np.array([1])] if is_cut else [])]
    state = b.node("Slice", [zeros, *cut], name="odd")
    turned = b.node("Transpose", ["x"], perm=[1, 0, 2])
    b.node("LSTM", [turned, *parameters(rng, "LSTM"), "", state, state], hidden_size=HIDDEN)
    b("Transpose", perm=[2, 0, 1, 3])
    if is_cut:
        refused(b.save(tmp_path), "operator Slice, node 'odd'", "computes a value from the open batch size")
    else:
        agrees(rng, b.save(tmp_path), STEPS, INPUTS)


@pytest.mark.parametrize("operator", GATES)
def test_batch_first(rng, tmp_path, operator):
    """With layout 1, the batch is the first axis of the sequence and of the states; the interpreter of the package onnx takes it
    in one direction. onnxruntime takes none, so it runs the same layer with the axes transposed."""
    shape, names = ("n", STEPS, INPUTS), ["Y", "Y_h", "Y_c"][: 3 if operator == "LSTM" else 2]
    given = parameters(rng, operator, 2)
    first = layer(rng, operator, 2, inputs=given, direction="bidirectional", layout=1)
    first.nodes[-1].input[0] = "x"
    first.nodes[-1].output[:] = names
    other = layer(rng, operator, 2, inputs=given, direction="bidirectional")
    other.nodes[-1].output[:] = [f"{name}_turned" for name in names]
    for name in names:
        other.node("Transpose", [f"{name}_turned"], perm=[2, 0, 1, 3] if name == "Y" else [1, 0, 2])
        other.nodes[-1].output[:] = [name]
    x = rng.normal(size=(2, *shape[1:])).astype(np.float32)
    model = tpu.load(first.save(tmp_path, outputs=names), strict=True)
    found = model.predict(x, check=False)
    path = other.save(tmp_path, outputs=names)
    for name, right in values_of(path, x, names).items():
        close(found[name], right)


def test_peepholes(rng, tmp_path):
    """The gates of an LSTM may read the cell: i and f the cell of the step before, o the new cell."""
    b = layer(rng, "LSTM", states=["", "", weights(rng, 1, 3 * HIDDEN) * 3])
    b.nodes[-1].input[4:8] = ["", "", "", b.nodes[-1].input[7]]
    b("Transpose", perm=[2, 0, 1, 3])
    agrees(rng, b.save(tmp_path), STEPS, INPUTS)


def test_activations_of_an_rnn(rng, tmp_path):
    b = layer(rng, "RNN", 2, direction="bidirectional", activations=["Relu", "Sigmoid"])
    b("Transpose", perm=[2, 0, 1, 3])
    agrees(rng, b.save(tmp_path), STEPS, INPUTS)


def test_refused(rng, tmp_path):
    def check(operator, *words, shape=("n", STEPS, INPUTS), states=(), inputs=None, **attributes):
        b = layer(rng, operator, shape=shape, states=states, inputs=inputs, **attributes)
        b("Transpose", perm=[2, 0, 1, 3])
        refused(b.save(tmp_path), f"operator {operator}, node 'odd'", *words)

    check("GRU", "clip", clip=1.0)
    check("GRU", "activations sigmoid, relu", activations=["Sigmoid", "Relu"])
    check("LSTM", "input_forget", input_forget=1)
    check("LSTM", "direction", direction="backwards")
    check("RNN", "activations elu", activations=["Elu"])
    check("GRU", "do not fit", inputs=parameters(rng, "LSTM"))
    check("GRU", "differs from sample", shape=(2, STEPS, INPUTS), states=[weights(rng, 1, 2, HIDDEN)])
    zeros = np.zeros((1, 1, HIDDEN), np.float32)
    peepholes = weights(rng, 1, 2 * HIDDEN)
    check("LSTM", "do not fit", shape=(1, STEPS, INPUTS), states=[zeros, zeros, peepholes])
    b = Builder(["n", STEPS, INPUTS], opset=14)
    b.node("GRU", ["x", *parameters(rng, "GRU"), "", ""], hidden_size=HIDDEN, name="odd")
    refused(b.save(tmp_path), "odd", "batch as its second axis")
    b = layer(rng, "GRU")
    b.nodes[-1].input.append(b.constant(np.array([STEPS - 1], np.int32)))
    refused(b.save(tmp_path), "odd", "sequence_lens")


def unrolled(rng, first=None):
    """Returns a builder of a layer of two steps in small operators, as Keras' exporter writes it. The first state is a constant
    with the shape of the batch. `first` adds operators to it."""
    b, kernel, again = Builder(["n", 2, INPUTS], opset=14), weights(rng, INPUTS, HIDDEN), weights(rng, HIDDEN, HIDDEN)
    b("Transpose", perm=[1, 0, 2])
    rows = b("MatMul", kernel)
    b.node("Unsqueeze", [b.node("Gather", [b.node("Shape", ["x"]), np.array(0)]), np.array([0])])
    b("Concat", np.array([HIDDEN]), axis=0)
    b("ConstantOfShape")
    state = b("Cast", to=TensorProto.FLOAT)
    state = first(b) if first else state
    for step in range(2):
        row = b.node("Gather", [rows, np.array(step)])
        state = b.node("Tanh", [b.node("Add", [row, b.node("MatMul", [state, again])])])
        gate = b.node("Slice", [state, np.array([0]), np.array([1]), np.array([1])])
        state = b.node("Mul", [state, gate])
    b("MatMul", weights(rng, HIDDEN, 3))
    return b


def test_first_state_of_an_open_batch(rng, tmp_path):
    """Operators that compute each sample alone are evaluated for a constant that is repeated for each sample. States are up to 1,
    and their sums may cancel."""
    agrees(rng, unrolled(rng).save(tmp_path), 2, INPUTS, scale=1)
    agrees(rng, unrolled(rng, lambda b: b("Add", weights(rng, HIDDEN))).save(tmp_path), 2, INPUTS, scale=1)


@pytest.mark.parametrize(
    "first, name",
    [
        (lambda b: b("Gather", np.array([0, 1]), axis=0, name="odd"), "Gather"),
        (lambda b: b("ReduceSum", np.array([0]), keepdims=1, name="odd"), "ReduceSum"),
        (lambda b: b("Add", np.arange(2 * HIDDEN, dtype=np.float32).reshape(2, HIDDEN), name="odd"), "Add"),
        (lambda b: b("Reshape", np.array([1, -1]), name="odd"), "Reshape"),
    ],
)
def test_first_states_that_join_samples_are_refused(rng, tmp_path, first, name):
    refused(unrolled(rng, first).save(tmp_path), f"operator {name}, node 'odd'")
