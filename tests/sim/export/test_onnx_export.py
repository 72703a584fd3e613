"""Tests that a trained network is exported as the original model with new weights if possible. Otherwise it must be exported as
a plain model. The bits must be the same."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.export.plain import plain_model
from amaranth_tpu.sim.export.writer import ModelWriter
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.golden.training import TrainingState, bound_graph
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.models.shipped import SHIPPED
from amaranth_tpu.sim.trainer.new_training import trainable_network
from language_models import language_model
from mixed_models import vision_transformer
from onnx_models import Builder, reference, weights
from trainable_graphs import random_trainable_graph
from training_steps import with_function


def learnt(network, rng):
    masters = [rng.normal(0, 0.2, one.initial.shape).astype(np.float32) for one in network.parameters.values()]
    return bound_graph(network, TrainingState(masters, [{}] * len(masters)))


def rewritten(path, rng, folder):
    """Exports the model at `path` with random parameters. Returns `(True if it keeps the file's nodes, new path, graph)`."""
    network = with_parameters(load_network(path))
    graph = learnt(network, rng)
    model, own = ModelWriter(network).model(graph)
    if not own:
        onnx.checker.check_model(model, full_check=True)
    (folder / "new.onnx").write_bytes(model.SerializeToString())
    return own, folder / "new.onnx", graph


def check(path, graph, rng):
    """Checks that the exported file, read again, matches the graph bit for bit. Its results in onnxruntime are within 5 %, or
    probabilities within 0.2, as two logits may be almost equal."""
    again = load_network(path)
    x = round_bfloat16(rng.normal(0, 1, (3, graph.input_size)).astype(np.float32))
    bits = run_network(graph, x)
    assert run_network(again, x).tobytes() == bits.tobytes()
    there = reference(path, x.astype(np.float32).reshape(3, *again.input_shape)).reshape(3, -1)
    if graph.softmax:
        bits = np.exp(bits - bits.max(1, keepdims=True))
        bits /= bits.sum(1, keepdims=True)
    assert np.abs(there - bits).max() < (0.2 if graph.softmax else 0.05 * max(1, np.abs(there).max()))


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "vit"])  # which is not trained
def test_shipped_networks_keep_their_form(name, rng, tmp_path):
    own, path, graph = rewritten(SHIPPED[name], rng, tmp_path)
    old, new = onnx.load(SHIPPED[name]), onnx.load(path)
    assert own and new.graph.node == old.graph.node and new.metadata_props == old.metadata_props
    kinds = [[(tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer] for model in (old, new)]
    assert kinds[0] == kinds[1]
    check(path, graph, rng)


def test_weights_keep_name_and_layout(rng, tmp_path):
    """Trained weights keep the names and layouts of the original weights. Convolutions have the layout (out, in, y, x). Dense
    layers after convolutions have channels first, with and without transposition."""
    build = Builder(["batch", 2, 4, 4])
    build(
        "Conv", build.constant(weights(rng, 3, 2, 3, 3), "kernel"), build.constant(weights(rng, 3), "offset"), pads=[1, 1, 1, 1]
    )
    build("Relu")
    build("Flatten")
    build("Gemm", build.constant(weights(rng, 5, 48), "inner"), transB=1)
    build("MatMul", build.constant(weights(rng, 5, 4), "outer"))
    own, path, graph = rewritten(build.save(tmp_path), rng, tmp_path)
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    first, inner, outer = (graph.kernel(stage.terms[0]).astype(np.float32) for stage in graph.stages)
    assert (
        own
        and (found["kernel"] == first.transpose(3, 2, 0, 1)).all()
        and (found["offset"] == graph.constants[graph.stages[0].start]).all()
    )
    assert (found["inner"] == inner.transpose(3, 2, 0, 1).reshape(5, 48)).all() and (found["outer"] == outer[0, 0]).all()
    check(path, graph, rng)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_weights_of_other_types(rng, tmp_path, kind):
    """Weights stored as float16, bfloat16 or float64 keep this type in the exported file, because it can hold bfloat16 values."""
    build = Builder(["batch", 6])
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    build("Cast", build.constant(weights(rng, 6, 4).astype(dtype), "w"), to=TensorProto.FLOAT)
    build.nodes[-1].input[:] = ["w"]
    build.nodes.append(onnx.helper.make_node("MatMul", ["x", build.last], ["y"], "dense"))
    build.last = "y"
    own, path, graph = rewritten(build.save(tmp_path), rng, tmp_path)
    assert own and onnx.load(path).graph.initializer[0].data_type == kind
    check(path, graph, rng)


def test_bfloat16_bias_needs_a_plain_model(rng, tmp_path):
    """A bias stored as bfloat16 cannot hold the trained binary32 values, so a plain model is exported."""
    build = Builder(["batch", 6])
    build("MatMul", weights(rng, 6, 4))
    sums = build.last
    build.node("Cast", [build.constant(weights(rng, 4).astype(bfloat16), "b")], to=TensorProto.FLOAT)
    build.node("Add", [sums, build.last])
    own, path, graph = rewritten(build.save(tmp_path), rng, tmp_path)
    assert not own
    check(path, graph, rng)


def test_folded_normalization_needs_a_plain_model(rng, tmp_path):
    """A BatchNormalization that is folded into weights is trained in folded form, and a plain model is exported."""
    build = Builder(["batch", 2, 5, 5])
    build("Conv", weights(rng, 3, 2, 3, 3))
    build("BatchNormalization", *(np.abs(weights(rng, 3)) + 0.5 for _ in range(4)))
    build("Relu")
    build("MaxPool", kernel_shape=[3, 3], strides=[3, 3])
    build("Flatten")
    build("Gemm", weights(rng, 3, 4), weights(rng, 4))
    own, path, graph = rewritten(build.save(tmp_path), rng, tmp_path)
    assert not own and {node.op_type for node in onnx.load(path).graph.node} == {"Conv", "Relu", "MaxPool", "Flatten"}
    check(path, graph, rng)


@pytest.mark.parametrize("is_shared", [True, False])
def test_copied_weights_are_not_shared_weights(rng, tmp_path, is_shared):
    """Layers that share weights in the file share their parameter. A copy of a layer, as in a new encoder of several equal
    layers, has weights of its own in the file."""
    build, values = Builder(["batch", 6]), weights(rng, 6, 6)
    shared = build.constant(values, "shared")
    build("MatMul", shared)
    build("Relu")
    build("MatMul", shared if is_shared else build.constant(values, "copy"))
    network = trainable_network(load_network(build.save(tmp_path)))
    model, own = ModelWriter(network).model(learnt(network, rng))
    changed = [numpy_helper.to_array(one) for one in model.graph.initializer]
    assert own and len(network.parameters) == len(changed) == 2 - is_shared
    assert all((one != values).any() for one in changed)
    assert is_shared or (changed[0] != changed[1]).any()


def test_a_constant_that_depends_on_trained_weights(rng, tmp_path):
    """Weights of a layer that are a constant factor elsewhere, too, are no parameters of the file: the factor would stay."""
    build, values = Builder(["batch", 6]), weights(rng, 6)
    gain = build.constant(values, "gain")
    build("MatMul", weights(rng, 6, 6))
    build("Add", gain)
    build("Tanh")
    build("Mul", gain)
    build("Tanh")
    build("MatMul", weights(rng, 6, 4))
    network = trainable_network(load_network(build.save(tmp_path)))
    assert not ModelWriter(network).own_form


def test_residual_sums_and_averages(rng, tmp_path):
    build = Builder(["batch", 3, 6, 6])
    inner = build("Conv", weights(rng, 4, 3, 1, 1), weights(rng, 4))
    build("Conv", weights(rng, 4, 4, 3, 3), pads=[1, 1, 1, 1])
    build("Relu")
    build.node("Add", [build.last, inner])
    build("AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    build("Flatten")
    build("Gemm", weights(rng, 36, 5), weights(rng, 5))
    own, path, graph = rewritten(build.save(tmp_path), rng, tmp_path)
    assert own
    check(path, graph, rng)
    (tmp_path / "plain.onnx").write_bytes(plain_model(graph).SerializeToString())
    check(tmp_path / "plain.onnx", graph, rng)


@pytest.mark.parametrize("shape", [(5, 4, 2), (4, 4, 4)])
def test_samples_with_channels_last(rng, tmp_path, shape):
    """Networks with channels-last samples are exported as plain models that match the graph bit for bit. This holds even if
    height, width and channels are equal, so that the shape is ambiguous."""
    height, width, channels = shape
    build = Builder(["batch", *shape])
    build("Transpose", perm=[0, 3, 1, 2])
    build("Conv", weights(rng, 3, channels, 2, 2))
    build("Flatten")
    build("Gemm", weights(rng, 3 * (height - 1) * (width - 1), 4))
    path = build.save(tmp_path)
    graph = learnt(with_parameters(load_network(path)), rng)
    (tmp_path / "plain.onnx").write_bytes(plain_model(graph).SerializeToString())
    check(tmp_path / "plain.onnx", graph, rng)


@pytest.mark.parametrize("number", range(6))
def test_random_networks_as_plain_models(rng, tmp_path, number):
    """Random networks without an original file are exported as plain models that match the graph bit for bit."""
    network = with_parameters(random_trainable_graph(rng))
    graph = learnt(network, rng)
    model, own = ModelWriter(network).model(graph)
    assert not own
    onnx.checker.check_model(model, full_check=True)
    (tmp_path / "plain.onnx").write_bytes(model.SerializeToString())
    check(tmp_path / "plain.onnx", graph, rng)


@pytest.mark.parametrize(
    "name, parameters", [("tanh", ()), ("leaky_relu", (0.25,)), ("clip", (-1, 2)), ("clip", (-2,)), ("hard_sigmoid", (0.25, 0.5))]
)
def test_functions_of_plain_models(rng, tmp_path, name, parameters):
    function, (inner, outer) = Function(name, parameters), (round_bfloat16(weights(rng, *shape)) for shape in ((4, 5), (5, 3)))
    graph = dense_chain("net", [("one", inner, weights(rng, 5), "relu"), ("two", outer, None, "none")])
    graph = learnt(with_parameters(with_function(graph, function)), rng)
    (tmp_path / "plain.onnx").write_bytes(plain_model(graph).SerializeToString())
    assert load_network(tmp_path / "plain.onnx").stages[0].function == function
    check(tmp_path / "plain.onnx", graph, rng)


def test_what_can_not_be_written(rng):
    layers = [("dense", round_bfloat16(weights(rng, 4, 3)), None, "none")]
    graph = dense_chain("net", layers)
    wrong = {
        "input's values": replace(graph, input_order=np.array([1, 0, 2, 3])),
        "results are not": replace(graph, output_order=np.array([1, 0, 2])),
        "'dense'": replace(graph, stages=(replace(graph.stages[0], function=Function("gelu")),)),
    }
    for said, changed in wrong.items():
        with pytest.raises(ModelError, match=said) as caught:
            plain_model(changed)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("width, same", [(12, False), (8, True)])
def test_heads_of_other_widths(rng, tmp_path, width, same):
    """For heads of width 6, the file has a power of two in place of attention's factor 1 / sqrt(6). All names stay, and the file
    has the bits of the trained graph."""
    path, ids = language_model(rng, width=width).save(tmp_path), rng.integers(0, 6, (3, 5))
    network = with_parameters(load_network(path))
    graph, writer = learnt(network, rng), ModelWriter(network)
    model, own = writer.model(graph)
    old = onnx.load(path)
    assert (
        own
        and writer.own_form
        and all((one == 1).all() for one in writer.scales.values()) == same
        and model.graph.node == old.graph.node
    )
    assert [one.name for one in model.graph.initializer] == [one.name for one in old.graph.initializer]
    new = tmp_path / "new.onnx"
    new.write_bytes(model.SerializeToString())
    bits = run_network(graph, ids)
    assert run_network(load_network(new), ids).tobytes() == bits.tobytes()
    there = reference(new, ids).reshape(bits.shape)
    assert np.abs(there - bits).max() < 0.05 * np.abs(there).max()


@pytest.mark.parametrize("heads", [1, 2])
def test_bias_before_a_table_of_positions(rng, tmp_path, heads):
    """The bias of a convolution and a table of positions are one parameter. The file holds it in the table, and zeros in the
    bias."""
    path = vision_transformer(rng, size=8, patch=4, width=16 * heads, heads=heads).save(tmp_path)
    own, place, graph = rewritten(path, rng, tmp_path)
    assert own
    check(place, graph, rng)
    changed = {one.name: numpy_helper.to_array(one) for one in onnx.load(place).graph.initializer}
    (conv,) = (node for node in onnx.load(place).graph.node if node.op_type == "Conv")
    assert not changed[conv.input[2]].any() and changed["places"].any()


@pytest.mark.parametrize("stride, blocks", [(1, 1), (2, 1), (1, 3)])
def test_biases_of_added_layers(rng, tmp_path, stride, blocks):
    """The biases of two layers that are added are one parameter. The file holds it in one bias, and zeros in the other."""
    build = Builder(["batch", 2, 5, 5])
    for number in range(blocks):
        inner = build.last
        build("Conv", weights(rng, 3, 3 if number else 2, 3, 3), weights(rng, 3), pads=[1] * 4, strides=[stride] * 2)
        build("Relu")
        build("Conv", weights(rng, 3, 3, 3, 3), build.constant(weights(rng, 3), f"main{number}"), pads=[1] * 4)
        main = build.last
        shortcut = [inner, weights(rng, 3, 3 if number else 2, 1, 1), build.constant(weights(rng, 3), f"short{number}")]
        build.node("Conv", shortcut, strides=[stride] * 2)
        build("Cast", to=TensorProto.FLOAT)  # as in models of Keras
        build.node("Add", [main, build.last])
        build("Relu")
    build("GlobalAveragePool")
    build("Flatten")
    build("Gemm", weights(rng, 3, 4), weights(rng, 4))
    own, place, graph = rewritten(build.save(tmp_path), rng, tmp_path)
    assert own
    check(place, graph, rng)
    changed = {one.name: numpy_helper.to_array(one) for one in onnx.load(place).graph.initializer}
    for number in range(blocks):
        assert changed[f"main{number}"].any() != changed[f"short{number}"].any()


def test_bias_of_a_sum_that_is_read_twice(rng, tmp_path):
    """The biases of three dense layers in one sum are one parameter. A bias of a sum with another reader is its own parameter."""
    build = Builder(["batch", 6])
    first = build("Gemm", weights(rng, 6, 5), weights(rng, 5))
    build("MatMul", weights(rng, 5, 5))
    second = build("Add", weights(rng, 5))
    third = build.node("Gemm", ["x", weights(rng, 6, 5), weights(rng, 5)])
    build.node("Add", [second, third])
    build.node("Add", [first, build.last])
    build("Tanh")
    build("Gemm", weights(rng, 5, 4), weights(rng, 4))
    own, place, graph = rewritten(build.save(tmp_path), rng, tmp_path)
    assert own
    check(place, graph, rng)
