"""Tests of convolutional networks as exporters write them, against onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.network import run_graph
from onnx_models import Builder, check_graph, close, reference, weights


def images(rng, count=3, channels=1, size=28):
    return rng.random((count, channels, size, size), dtype=np.float32)


def test_pytorch_export(rng, tmp_path):
    """A network as torch.onnx exports it, with explicit pads, Flatten and Gemm with transB, gives the same results as
    onnxruntime."""
    b = Builder(["batch", 1, 28, 28], opset=17)
    settings = dict(dilations=[1, 1], group=1, kernel_shape=[3, 3])
    b("Conv", weights(rng, 8, 1, 3, 3), weights(rng, 8), pads=[1] * 4, strides=[1, 1], name="/conv1/Conv", **settings)
    b("Relu")
    b("MaxPool", ceil_mode=0, dilations=[1, 1], kernel_shape=[2, 2], pads=[0, 0, 0, 0], strides=[2, 2])
    b("Conv", weights(rng, 12, 8, 3, 3), weights(rng, 12), pads=[0] * 4, strides=[2, 2], **settings)
    b("Relu")
    b("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    b("Flatten", axis=1)
    b("Gemm", weights(rng, 20, 108), weights(rng, 20), alpha=1.0, beta=1.0, transB=1)
    b("Relu")
    b("Dropout")
    b("Gemm", weights(rng, 10, 20), weights(rng, 10), alpha=1.0, beta=1.0, transB=1)
    b("LogSoftmax", axis=1)
    path = b.save(tmp_path)
    graph = load_network(path)
    assert [(stage.name, stage.value, str(stage.function)) for stage in graph.stages] == [
        ("/conv1/Conv", "t2", "relu"),
        ("Conv_3", "t5", "relu"),
        ("Gemm_7", "t8", "relu"),
        ("Gemm_10", "t10", "none"),
    ]
    assert graph.input_shape == (1, 28, 28) and graph.softmax and graph.input_order is None and graph.output_order is None
    assert graph.stages[0].pool.size == (14, 14) and graph.stages[2].terms[0].kernel == (3, 3)


def test_cntk_export(rng, tmp_path):
    """A network as CNTK exports it, with a batch of 1, SAME padding, biases as Add and weights reshaped in the graph, gives the
    same results as onnxruntime."""
    b = Builder([1, 1, 28, 28], opset=8)
    b("Conv", weights(rng, 8, 1, 5, 5), auto_pad="SAME_UPPER", kernel_shape=[5, 5], strides=[1, 1], dilations=[1, 1], group=1)
    b("Add", weights(rng, 8, 1, 1))
    b("Relu")
    b("MaxPool", auto_pad="NOTSET", kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0])
    b("Conv", weights(rng, 16, 8, 5, 5), auto_pad="SAME_UPPER", kernel_shape=[5, 5], strides=[2, 2])
    b("Add", weights(rng, 16, 1, 1))
    b("Relu")
    b("MaxPool", kernel_shape=[3, 3], strides=[2, 2])
    flat = b("Reshape", np.array([1, 144]))
    b.node("Reshape", [weights(rng, 16, 3, 3, 10), np.array([144, 10])])
    b.node("MatMul", [flat, b.last])
    b("Add", weights(rng, 1, 10))
    b.inputs += [helper.make_tensor_value_info(c.name, c.data_type, c.dims) for c in b.constants]
    check_graph(b.save(tmp_path, ir_version=3), images(rng, 1), stages=3)


def test_tf2onnx_export(rng, tmp_path):
    """A Keras network as tf2onnx exports it, with NHWC input, Transposes around NCHW operators and a channels-last Flatten,
    gives the same results as onnxruntime."""
    b = Builder(["unk__1", 28, 28, 1], opset=13)
    b("Transpose", perm=[0, 3, 1, 2])
    b("Conv", weights(rng, 8, 1, 3, 3), weights(rng, 8), auto_pad="SAME_UPPER", kernel_shape=[3, 3], strides=[2, 2])
    b("Relu")
    b("MaxPool", kernel_shape=[2, 2], strides=[2, 2], auto_pad="VALID")
    b("Transpose", perm=[0, 2, 3, 1])
    b("Transpose", perm=[0, 3, 1, 2])
    b("Conv", weights(rng, 12, 8, 3, 3), kernel_shape=[3, 3])
    b("Transpose", perm=[0, 2, 3, 1])
    b("Add", weights(rng, 12))
    b("Relu")
    b("Reshape", np.array([-1, 300]))
    b("MatMul", weights(rng, 300, 10))
    b("Add", weights(rng, 10))
    b("Softmax", axis=-1)
    check_graph(b.save(tmp_path), images(rng).transpose(0, 2, 3, 1), stages=3, softmax=True)


def test_tf2onnx_two_channels_in(rng, tmp_path):
    """A two-channel NHWC input keeps its order, and an NCHW input gets an `input_order` that permutes it."""
    b = Builder(["unk__1", 9, 8, 2])
    b("Sub", np.array([0.5, 0.25], np.float32))
    b("Transpose", perm=[0, 3, 1, 2])
    b("Conv", weights(rng, 4, 2, 3, 2), weights(rng, 4))
    b("Transpose", perm=[0, 2, 3, 1])
    graph = check_graph(b.save(tmp_path), rng.random((3, 9, 8, 2), dtype=np.float32), stages=1)
    assert graph.tensors[graph.input].shape == (9, 8, 2) and graph.input_order is None and graph.output_order is None
    b = Builder(["n", 2, 9, 8])
    b("Conv", weights(rng, 4, 2, 3, 2), weights(rng, 4))
    graph = check_graph(b.save(tmp_path), rng.random((3, 2, 9, 8), dtype=np.float32), stages=1)
    assert graph.input_order.tolist()[:4] == [0, 72, 1, 73] and graph.output_order[:3].tolist() == [0, 4, 8]


def test_pytorch_view(rng, tmp_path):
    """A PyTorch export of x.view(x.size(0), -1), whose shape is computed in the graph, gives the same results as onnxruntime."""
    b = Builder(["batch", 1, 12, 12], opset=11)
    values = b("Conv", weights(rng, 3, 1, 3, 3), weights(rng, 3), kernel_shape=[3, 3], strides=[3, 3])
    b("Shape")
    b("Gather", np.array(0), axis=0)
    batch = b("Unsqueeze", axes=[0])
    b.node("Constant", [], value=numpy_helper.from_array(np.array([-1])))
    shape = b.node("Concat", [batch, b.last], axis=0)
    b.node("Reshape", [values, shape])
    b("Gemm", weights(rng, 48, 10))
    check_graph(b.save(tmp_path), images(rng, size=12), stages=2)


def test_mxnet_export(rng, tmp_path):
    """A network as MXNet exports it, with BatchNormalization on the input and after convolutions, Flatten and Gemm, gives the
    same results as onnxruntime."""

    def normalised(channels):
        b(
            "BatchNormalization",
            np.ones(channels, np.float32),
            weights(rng, channels),
            weights(rng, channels),
            1 + rng.random(channels, dtype=np.float32),
            epsilon=0.001,
            momentum=0.9,
        )

    b = Builder([1, 1, 20, 20], opset=9)
    normalised(1)
    b("Conv", weights(rng, 8, 1, 5, 5), weights(rng, 8), kernel_shape=[5, 5], pads=[0, 0, 0, 0], strides=[1, 1])
    normalised(8)
    b("Relu")
    b("MaxPool", kernel_shape=[2, 2], pads=[0, 0, 0, 0], strides=[2, 2])
    normalised(8)
    b("Conv", weights(rng, 8, 8, 3, 3), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    normalised(8)
    b("Relu")
    b("Flatten")
    b("Gemm", weights(rng, 10, 512), weights(rng, 10), alpha=1.0, beta=1.0, transA=0, transB=1)
    b("Softmax", axis=1)
    check_graph(b.save(tmp_path), images(rng, 1, size=20), stages=4, softmax=True)


def test_paddle_export(rng, tmp_path):
    """A network as Paddle exports it, with padded pools, dense layers as Reshape, MatMul and Add, and Identity and Constant
    nodes, gives the same results as onnxruntime."""
    b = Builder([-1, 1, 16, 16], opset=11)

    def constant(array):
        return b.node("Constant", [], value=numpy_helper.from_array(array))

    kernel = constant(weights(rng, 6, 1, 3, 3))
    b.node("Conv", ["x", kernel], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1], group=1)
    values = b.last
    bias = b.node("Reshape", [constant(weights(rng, 6)), constant(np.array([1, 6, 1, 1]))])
    b.node("Add", [values, bias])
    b("Relu")
    b("MaxPool", kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 0, 0])
    b("Reshape", np.array([0, 384]))
    b("MatMul", weights(rng, 384, 10))
    b("Add", weights(rng, 10))
    b("Mul", np.array([2], np.float32))
    b("Add", np.array([1], np.float32))
    b("Identity")
    check_graph(b.save(tmp_path), images(rng, size=16), stages=2)


@pytest.mark.parametrize("shape", [["n", 28, 28], ["n", 784], [1, 28, 28]])
def test_input_without_channel(rng, tmp_path, shape):
    b = Builder(shape)
    b("Reshape", np.array([-1, 1, 28, 28]))
    b("Conv", weights(rng, 4, 1, 7, 7), strides=[3, 3])
    count = shape[0] if shape[0] == 1 else 3
    check_graph(b.save(tmp_path), images(rng, count).reshape(count, *shape[1:]), stages=1)


@pytest.mark.parametrize("shape", [[28, 28], [28, 28, 1], [1, 28, 28], [784]])
def test_input_without_batch(rng, tmp_path, shape):
    b = Builder(shape)
    b("Reshape", np.array([1, 1, 28, 28]))
    b("Conv", weights(rng, 4, 1, 7, 7), strides=[3, 3])
    path, x = b.save(tmp_path), images(rng, 1).reshape(shape)
    graph = load_network(path)
    assert graph.input_size == 784 and graph.input_shape == (tuple(shape) if shape[0] > 1 else (28, 28))
    close(run_graph(graph, x.reshape(1, -1)), reference(path, x).reshape(1, -1))


def test_channels_last_of_one_sample(rng, tmp_path):
    """Channels-last samples with a batch of 1 and one channel give the same results as onnxruntime, although only two axes have
    more than one element."""
    b = Builder([1, 12, 11, 1])
    b("Transpose", perm=[0, 3, 1, 2])
    b("Conv", weights(rng, 4, 1, 3, 3), weights(rng, 4), strides=[2, 2])
    b("Transpose", perm=[0, 2, 3, 1])
    b("Relu")
    b("Reshape", np.array([1, 100]))
    b("MatMul", weights(rng, 100, 3))
    check_graph(b.save(tmp_path), rng.random((1, 12, 11, 1), dtype=np.float32), stages=2)


def test_onnxruntime_optimised(rng, tmp_path):
    """A model optimised by onnxruntime, which contains FusedConv, gives the original model's results."""
    b = Builder(["n", 1, 9, 9])
    b("Conv", weights(rng, 4, 1, 3, 3), weights(rng, 4))
    b("Relu")
    b("Conv", weights(rng, 4, 4, 3, 3), weights(rng, 4))
    b("LeakyRelu", alpha=0.25)
    b("Conv", weights(rng, 4, 4, 3, 3), weights(rng, 4))
    b("Clip", np.array(0, np.float32), np.array(0.5, np.float32))
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(b.save(tmp_path), options, providers=["CPUExecutionProvider"])
    assert {node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node} == {"FusedConv"}
    graph = check_graph(tmp_path / "optimised.onnx", images(rng, size=9), stages=3)
    assert [str(stage.function) for stage in graph.stages] == ["relu", "leaky_relu(0.25)", "clip(0, 0.5)"]


def test_lowest_padding(rng, tmp_path):
    """Padding with -inf before MaxPool, as JAX writes it, is merged into the pool."""
    b = Builder(["n", 1, 9, 9], opset=13)
    b("Conv", weights(rng, 4, 1, 3, 3))
    b("Pad", np.array([0, 0, 1, 2, 0, 0, 1, 0]), np.array(-np.inf, np.float32))
    b("MaxPool", kernel_shape=[3, 3], strides=[2, 2])
    check_graph(b.save(tmp_path), images(rng, size=9), stages=1)


def test_bytes_as_input(rng, tmp_path):
    b = Builder(["n", 1, 12, 12], kind=TensorProto.UINT8)
    b("Cast", to=TensorProto.FLOAT)
    b("Div", np.array(255, np.float32))
    b("Conv", weights(rng, 4, 1, 3, 3), pads=[1, 1, 1, 1])
    check_graph(b.save(tmp_path), rng.integers(0, 256, (3, 1, 12, 12), np.uint8), stages=1)


# ---- structures


def test_residual_block(rng, tmp_path):
    """In a residual block, the addition and the shortcut's convolution become part of the second convolution's stage."""
    b = Builder(["n", 3, 8, 8])
    x = b("Conv", weights(rng, 4, 3, 3, 3), pads=[1, 1, 1, 1])
    x = b("Relu")
    for strides in ([1, 1], [2, 2]):
        b.node("Conv", [x, weights(rng, 4, 4, 3, 3)], pads=[1, 1, 1, 1], strides=strides)
        b("BatchNormalization", *(weights(rng, 4) for _ in range(3)), 1 + rng.random(4, dtype=np.float32))
        b("Relu")
        second = b("Conv", weights(rng, 4, 4, 3, 3), weights(rng, 4), pads=[1, 1, 1, 1])
        shortcut = x if strides == [1, 1] else b.node("Conv", [x, weights(rng, 4, 4, 1, 1)], strides=strides)
        b.node("Add", [second, shortcut])
        x = b("Relu")
    b("GlobalAveragePool")
    b("Flatten")
    b("Gemm", weights(rng, 4, 5))
    graph = check_graph(b.save(tmp_path), images(rng, channels=3, size=8), stages=7)
    assert [len(stage.terms) for stage in graph.stages] == [1, 1, 2, 1, 2, 1, 1]


def test_inception_block(rng, tmp_path):
    """After an inception block, a 1 x 1 convolution reads the concatenated tensors as separate terms, and a 3 x 3 one reads a
    copy."""
    b = Builder(["n", 3, 8, 8])
    branches = [b.node("Relu", [b.node("Conv", ["x", weights(rng, 4, 3, k, k)], pads=[k // 2] * 4)]) for k in (1, 3, 5)]
    branches.append(b.node("MaxPool", ["x"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]))
    joined = b.node("Concat", branches, axis=1)
    path = b.save(tmp_path)
    check_graph(path, images(rng, channels=3, size=8), stages=5)
    b.node("Conv", [joined, weights(rng, 4, 15, 1, 1)])
    graph = check_graph(b.save(tmp_path), images(rng, channels=3, size=8), stages=5)
    assert len(graph.stages[-1].terms) == 4
    b.nodes.pop()
    b.node("Conv", [joined, weights(rng, 4, 15, 3, 3)])
    check_graph(b.save(tmp_path), images(rng, channels=3, size=8), stages=6)


def test_flattened_branches(rng, tmp_path):
    """Two flattened images of different sizes that are concatenated become two terms of one dense layer."""
    b = Builder(["n", 1, 8, 8])
    one = b.node("Flatten", [b.node("Conv", ["x", weights(rng, 2, 1, 3, 3)])])
    two = b.node("Flatten", [b.node("Conv", ["x", weights(rng, 3, 1, 5, 5)], strides=[2, 2])])
    b.node("Concat", [one, two], axis=1)
    values = b.last
    b("Gemm", weights(rng, 84, 5))
    graph = check_graph(b.save(tmp_path), images(rng, size=8), stages=3)
    assert [term.kernel for term in graph.stages[-1].terms] == [(6, 6), (2, 2)]
    b.last = values
    check_graph(b.save(tmp_path), images(rng, size=8), stages=2)  # a result in two tensors is not copied


def test_squeeze_and_excitation(rng, tmp_path):
    """A squeeze-and-excitation block multiplies all positions of a channel by one number. It gives the same results as
    onnxruntime."""
    b = Builder(["n", 3, 6, 5])
    x = b("Conv", weights(rng, 4, 3, 3, 3), weights(rng, 4))
    b("GlobalAveragePool")
    b("Conv", weights(rng, 2, 4, 1, 1))
    b("Relu")
    b("Conv", weights(rng, 4, 2, 1, 1))
    b.node("Mul", [x, b.last])
    check_graph(b.save(tmp_path), images(rng, channels=3, size=6)[..., :5].copy(), stages=5)


def test_channels_shuffled_inside_groups(rng, tmp_path):
    """A permutation of channels is merged into the next grouped convolution; the number of groups falls only if it crosses
    groups."""
    for order, groups in (([1, 0, 3, 2], 2), ([2, 3, 0, 1], 1)):
        b = Builder(["n", 1, 5, 5])
        b("Conv", weights(rng, 4, 1, 3, 3))
        b("Gather", np.array(order), axis=1)
        b("Conv", weights(rng, 6, 2, 2, 2), group=2)
        graph = check_graph(b.save(tmp_path), images(rng, size=5), stages=2)
        assert graph.stages[1].terms[0].groups == groups


def test_wide_concat(rng, tmp_path, monkeypatch):
    """If merging a concatenation would need too many weights, its tensors stay separate until the dense layer that reads them."""
    monkeypatch.setattr("amaranth_tpu.sim.frontend.operators.concatenation.LIMIT", 100)
    b = Builder(["n", 5])
    parts = [b.node("Sigmoid", [b.node("Gemm", ["x", weights(rng, 5, 7)])]) for _ in range(3)]
    b.node("Concat", parts, axis=1)
    b("Gemm", weights(rng, 21, 4), weights(rng, 4))
    check_graph(b.save(tmp_path), weights(rng, 6, 5), stages=4)


def test_mean_image(rng, tmp_path):
    """Subtracting a mean image before a padded convolution gives the same results as onnxruntime."""
    b = Builder(["n", 1, 9, 9])
    b("Sub", rng.random((1, 9, 9), dtype=np.float32))
    b("Conv", weights(rng, 4, 1, 3, 3), pads=[1, 1, 1, 1])
    check_graph(b.save(tmp_path), images(rng, size=9), stages=2)


def test_global_pools_of_keras(rng, tmp_path):
    """ReduceMean, ReduceMax and ReduceMin over height and width of NHWC, as Keras writes global pools, give the same results as
    onnxruntime."""
    for operator, stages in (("ReduceMean", 3), ("ReduceMax", 2), ("ReduceMin", 3)):
        b = Builder(["n", 1, 9, 9])
        b("Conv", weights(rng, 4, 1, 3, 3))
        b("Relu")
        b("Transpose", perm=[0, 2, 3, 1])
        b(operator, axes=[1, 2], keepdims=0)
        b("MatMul", weights(rng, 4, 3))
        check_graph(b.save(tmp_path), images(rng, size=9), stages=stages)


def test_average_pool_of_borders(rng, tmp_path):
    """AveragePool windows at the borders average fewer values, so each of the nine border cases becomes a stage of its own."""
    b = Builder(["n", 2, 8, 8])
    b("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
    b("Relu")
    graph = check_graph(b.save(tmp_path), images(rng, channels=2, size=8), stages=9)
    assert len({stage.output for stage in graph.stages}) == 1 and {str(stage.function) for stage in graph.stages} == {"relu"}
    assert [stage.value for stage in graph.stages] == [None] * 8 + ["t1"]


def test_result_in_another_order(rng, tmp_path):
    """A final Transpose sets the network's `output_order`, or is merged into the last layer's weights."""
    b = Builder(["n", 1, 6, 6])
    b("Conv", weights(rng, 4, 1, 3, 3))
    graph = check_graph(b.save(tmp_path), images(rng, size=6), stages=1)
    assert graph.output_order is not None and graph.stages[0].value == "t0"
    b("Transpose", perm=[0, 2, 3, 1])
    assert check_graph(b.save(tmp_path), images(rng, size=6), stages=1).output_order is None
    b("Flatten")
    b("Gemm", weights(rng, 64, 6))
    b("Reshape", np.array([-1, 2, 3]))
    b("Transpose", perm=[0, 2, 1])
    graph = check_graph(b.save(tmp_path), images(rng, size=6), stages=2)
    assert graph.output_order is None and graph.stages[1].value is None


def test_first_position_only(rng, tmp_path):
    """A stage that keeps one position of many is not mistaken for a copy of the tensor."""
    for cut in ("AveragePool", [np.array([0, 0]), np.array([1, 1]), np.array([2, 3])]):
        b = Builder(["n", 1, 6, 6])
        b("Conv", weights(rng, 4, 1, 3, 3), weights(rng, 4))
        b("Slice", *cut) if isinstance(cut, list) else b(cut, kernel_shape=[1, 1], strides=[4, 4])
        b("Tanh")
        check_graph(b.save(tmp_path), images(rng, size=6), stages=2)


@pytest.mark.parametrize("steepest", [2, 8.5, 1e4, 1e30])
def test_steep_slopes(tmp_path, steepest):
    """PRelu returns x exactly for positive x, for any slope of the negative part up to 1e30."""
    b = Builder(["batch", 4])
    slopes = np.array([0.25, 1, -3, steepest], np.float32)
    b("PRelu", slopes)
    path = b.save(tmp_path)
    x = np.repeat(np.float32([[1000], [-0.5], [0.0078125], [0]]), 4, axis=1)
    got, want = run_graph(load_network(path), x), np.where(x > 0, x, x * slopes)
    assert (np.abs(got - want) <= 2.0**-8 * np.abs(want)).all(), (got, want)
