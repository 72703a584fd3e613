"""Networks from ONNX, against onnxruntime. Weights and inputs are small integers and scales powers of two wherever
the structure is what is tested, so that results must be equal, not near."""

import os
import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sim.golden import bfloat16, run_network
from sim.network import Dense, ModelError, Network, load_network

SEED = int(os.environ.get("TPU_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


@pytest.fixture
def rng():
    print(f"TPU_SEED={SEED}")
    return np.random.default_rng(SEED)


def integers(rng, *shape, limit=4):
    return rng.integers(-limit, limit + 1, shape).astype(np.float32)


class Builder:
    """A graph, a node at a time; each call returns the output's name."""

    def __init__(self, shape, opset=13, kind=TensorProto.FLOAT):
        self.nodes, self.constants, self.last = [], [], "x"
        self.inputs = [helper.make_tensor_value_info("x", kind, shape)]
        self.opset = opset

    def constant(self, array, name=None):
        array = np.asarray(array)
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def __call__(self, operator, *inputs, name=None, **attributes):
        """`...` among the inputs stands for what the last node made; without it, that comes first."""
        inputs = [self.constant(i) if isinstance(i, np.ndarray) else i for i in inputs]
        inputs = [self.last if i is ... else i for i in inputs] if ... in inputs else [self.last, *inputs]
        return self.node(operator, inputs, name=name, **attributes)

    def node(self, operator, inputs, name=None, **attributes):
        self.last = f"t{len(self.nodes)}"
        inputs = [self.constant(i) if isinstance(i, np.ndarray) else i for i in inputs]
        self.nodes.append(helper.make_node(operator, inputs, [self.last], name or f"{operator}_{len(self.nodes)}",
                                           **attributes))
        return self.last

    def model(self, outputs=None, ir_version=8, **options):
        outputs = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs or [self.last]]
        graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("ai.onnx.ml", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **options)

    def save(self, folder, **options):
        path = folder / "model.onnx"
        path.write_bytes(self.model(**options).SerializeToString())
        return path


def reference(path, x):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def check(path, x, layers, softmax=False):
    """The golden model gives what onnxruntime gives, exactly, with this many layers."""
    network = load_network(path)
    assert isinstance(network, Network) and len(network.layers) == layers and network.softmax == softmax
    for layer in network.layers:
        assert isinstance(layer, Dense) and layer.weights.dtype == bfloat16
        assert layer.bias is None or layer.bias.dtype == np.float32 and layer.bias.shape == layer.weights.shape[1:]
    logits = run_network(network, x.astype(np.float32).reshape(len(x), -1))
    wanted = reference(path, x).reshape(len(x), -1)
    assert np.abs(logits).max() > 0
    if softmax:
        shares = np.exp(logits - logits.max(1, keepdims=True))
        assert np.allclose(wanted, shares / shares.sum(1, keepdims=True), atol=1e-5)
    else:
        assert (logits == wanted).all()
    return network


# How exporters write a multilayer perceptron

def test_pytorch(rng, tmp_path):
    b = Builder(["batch", 1, 6, 6])
    b("Flatten", axis=1)
    b("Gemm", integers(rng, 9, 36, limit=1), integers(rng, 9), transB=1, alpha=1.0, beta=1.0, name="/fc1/Gemm")
    b("Relu")
    b("Gemm", integers(rng, 4, 9), integers(rng, 4), transB=1)
    network = check(b.save(tmp_path), integers(rng, 5, 1, 6, 6), layers=2)
    assert network.input_shape == (1, 6, 6) and network.input_size == 36 and network.output_size == 4
    assert [(layer.name, layer.function) for layer in network.layers] == [("/fc1/Gemm", "relu"), ("Gemm_3", "none")]


def test_pytorch_view_of_shape(rng, tmp_path):
    """x.view(x.size(0), -1): the shape is computed in the graph."""
    b = Builder(["batch", 1, 3, 4], opset=11)
    b("Shape")
    b("Gather", np.array(0), axis=0)
    batch = b("Unsqueeze", axes=[0])
    b.node("Constant", [], value=numpy_helper.from_array(np.array([-1])))
    shape = b.node("Concat", [batch, b.last], axis=0)
    b.node("Reshape", ["x", shape])
    b("Gemm", integers(rng, 12, 3), integers(rng, 3))
    check(b.save(tmp_path), integers(rng, 5, 1, 3, 4), layers=1)


def test_pytorch_functional_linear(rng, tmp_path):
    """Weights through a Transpose, the bias on the left of the Add, the last Relu kept."""
    b = Builder(["batch", 12])
    turned = b.node("Transpose", [integers(rng, 7, 12)], perm=[1, 0])
    b.node("MatMul", ["x", turned])
    b("Add", integers(rng, 7), ...)
    b("Relu")
    check(b.save(tmp_path), integers(rng, 5, 12), layers=1)


def test_keras(rng, tmp_path):
    """NHWC, Reshape to (-1, 784), MatMul + Add, Softmax."""
    b = Builder(["unk__6", 4, 3, 1], opset=15)
    b("Reshape", np.array([-1, 12]))
    b("MatMul", integers(rng, 12, 8))
    b("Add", integers(rng, 8))
    b("Relu")
    b("Identity")
    b("MatMul", integers(rng, 8, 5))
    b("Add", ..., integers(rng, 5))
    b("Softmax")
    b("Identity")
    check(b.save(tmp_path), integers(rng, 5, 4, 3, 1), layers=2, softmax=True)


def test_keras_transposes_to_nchw_and_back(rng, tmp_path):
    b = Builder(["batch", 4, 3, 1])
    b("Transpose", perm=[0, 3, 1, 2])
    b("Transpose", perm=[0, 2, 3, 1])
    b("Flatten")
    b("Gemm", integers(rng, 12, 8), integers(rng, 8))
    check(b.save(tmp_path), integers(rng, 5, 4, 3, 1), layers=1)


def test_sklearn(rng, tmp_path):
    """Cast, MatMul, Add (1, N), and what skl2onnx puts behind: probabilities, and the label by ArgMax."""
    b = Builder([None, 12], opset=12, kind=TensorProto.INT64)
    b("Cast", to=TensorProto.FLOAT)
    b("MatMul", integers(rng, 12, 8), name="MatMul")
    b("Add", integers(rng, 1, 8))
    b("Relu")
    b("MatMul", integers(rng, 8, 5))
    b("Add", integers(rng, 1, 5))
    probabilities = b("Softmax", axis=1)
    check(b.save(tmp_path), integers(rng, 5, 12).astype(np.int64), layers=2, softmax=True)
    b.constants.append(helper.make_tensor("classes", TensorProto.STRING, [5], [b"a", b"b", b"c", b"d", b"e"]))
    b("ArgMax", axis=1)
    b.nodes.append(helper.make_node("ArrayFeatureExtractor", ["classes", b.last], ["picked"], "pick", domain="ai.onnx.ml"))
    label = b.node("Reshape", ["picked", np.array([-1])])
    path = b.save(tmp_path, outputs=[label, probabilities])
    assert len(load_network(path).layers) == 2 and load_network(path).softmax


def test_sklearn_scaler(rng, tmp_path):
    """A pipeline with StandardScaler: the operator Scaler of the domain ai.onnx.ml."""
    b = Builder([None, 12])
    b("Scaler", domain="ai.onnx.ml", offset=[float(v) for v in range(12)], scale=[0.5, 2.0] * 6)
    b("MatMul", integers(rng, 12, 8))
    b("Add", integers(rng, 1, 8))
    check(b.save(tmp_path), integers(rng, 5, 12), layers=1)


@pytest.mark.parametrize("opset", [8, 10, 12, 13, 14, 18, 21])
def test_opsets(rng, tmp_path, opset):
    axes = {"axes": [1]} if opset < 13 else {}
    inputs = [] if opset < 13 else [np.array([1])]
    b = Builder([1, 12], opset=opset)
    b("Unsqueeze", *inputs, **axes)
    b("Dropout", **({"ratio": 0.5} if opset < 12 else {}))
    b("Squeeze", *inputs, **axes)
    b("Reshape", np.array([0, -1]))
    b("MatMul", integers(rng, 12, 8))
    b("Add", integers(rng, 8))
    b("Softmax", axis=-1)
    check(b.save(tmp_path, ir_version=4), integers(rng, 1, 12), layers=1, softmax=True)


def test_cntk(rng, tmp_path):
    """Weights reshaped in the graph, batch fixed at 1, initialisers also listed as inputs."""
    b = Builder([1, 1, 4, 4], opset=8)
    b("Reshape", np.array([1, 16]))
    flat = b.last
    b.node("Reshape", [integers(rng, 4, 2, 2, 3), np.array([16, 3])])
    b.node("MatMul", [flat, b.last])
    b("Add", integers(rng, 1, 3))
    b.inputs += [helper.make_tensor_value_info(c.name, c.data_type, c.dims) for c in b.constants]
    check(b.save(tmp_path, ir_version=3), integers(rng, 1, 1, 4, 4), layers=1)


def test_relu_by_other_names(rng, tmp_path):
    """torch.clamp and keras.ops.maximum."""
    zero, infinite = np.float32(0), np.float32(np.inf)
    for opset, relu in ((9, ("Clip", {"min": 0.0})), (13, ("Clip", zero)), (13, ("Clip", zero, infinite)),
                        (13, ("Max", zero)), (13, ("Max", zero.reshape(1), ...)), (13, ("Max", np.zeros((1, 7), np.float32)))):
        b = Builder(["batch", 12], opset=opset)
        b("Gemm", integers(rng, 12, 7), integers(rng, 7))
        attributes = relu[-1] if isinstance(relu[-1], dict) else {}
        inputs = relu[1:-1] if attributes else relu[1:]
        b(relu[0], *(b.constant(i) if isinstance(i, np.generic) else i for i in inputs), **attributes)
        b("MatMul", integers(rng, 7, 3))
        assert check(b.save(tmp_path), integers(rng, 5, 12), layers=2).layers[0].function == "relu"


def test_pytorch_unoptimised_clamp(rng, tmp_path):
    """The bound takes the type of what it bounds."""
    b = Builder(["batch", 12], opset=18)
    values = b("Gemm", integers(rng, 12, 7))
    b.node("Max", [values, b.node("CastLike", [np.array(0), values])])
    assert check(b.save(tmp_path), integers(rng, 5, 12), layers=1).layers[0].function == "relu"


def test_einsum(rng, tmp_path):
    """torch.einsum, keras.layers.EinsumDense."""
    b = Builder(["batch", 12])
    b("Einsum", integers(rng, 12, 7, limit=1), equation="bk,kn->bn")
    b("Einsum", integers(rng, 5, 7, limit=1), equation="bc , xc -> bx")
    b("Einsum", integers(rng, 3, 5, limit=1), ..., equation="oi,bi->bo")
    check(b.save(tmp_path), integers(rng, 5, 12), layers=3)


def test_onnxruntime_optimised(rng, tmp_path):
    """Its optimiser writes FusedGemm."""
    onnxruntime = pytest.importorskip("onnxruntime")
    b = Builder(["batch", 12])
    b("Gemm", integers(rng, 7, 12), integers(rng, 7), transB=1)
    b("Relu")
    b("Gemm", integers(rng, 7, 3), integers(rng, 3))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(b.save(tmp_path), options, providers=["CPUExecutionProvider"])
    assert "FusedGemm" in {node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node}
    assert check(tmp_path / "optimised.onnx", integers(rng, 5, 12), layers=2).layers[0].function == "relu"


def test_weight_norm(rng, tmp_path):
    """torch's weight_norm, not folded: gain * direction / length."""
    direction = np.array([[3, 4], [0, 2], [8, 6]], np.float32)
    b = Builder(["batch", 2])
    length = b.node("ReduceL2", [direction], axes=[1])
    b.node("Div", [b.node("Mul", [direction, np.array([[5], [4], [10]], np.float32)]), length])
    b.node("Gemm", ["x", b.last], transB=1)
    check(b.save(tmp_path), integers(rng, 5, 2), layers=1)


def test_batch_fixed_by_a_reshape_only(rng, tmp_path):
    """x.view(len(x), -1) as torch traces it: the batch of the example becomes a constant."""
    for shape in (1, 16), (1, -1), (2, 16), (64, -1):
        b = Builder(["batch", 1, 4, 4])
        b("Reshape", np.array(shape))
        b("Gemm", integers(rng, 16, 3))
        check(b.save(tmp_path), integers(rng, shape[0], 1, 4, 4), layers=1)


def test_no_batch(rng, tmp_path):
    b = Builder([12])
    b("MatMul", integers(rng, 12, 3))
    b("Add", integers(rng, 3))
    path = b.save(tmp_path)
    x = integers(rng, 12)
    assert (run_network(load_network(path), x[None]) == reference(path, x)).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, bfloat16])
def test_initialiser_types(rng, tmp_path, kind):
    weights = integers(rng, 12, 3)
    b = Builder([None, 12])
    b("MatMul", b.node("Cast", [weights.astype(kind)], to=TensorProto.FLOAT)) if kind == bfloat16 else \
        b("MatMul", weights.astype(kind))
    b.nodes[-1].input[0] = "x"
    assert (load_network(b.save(tmp_path)).layers[0].weights == weights).all()


def test_constant_nodes_and_external_data(rng, tmp_path):
    weights, bias = integers(rng, 12, 30), integers(rng, 30)
    b = Builder([None, 12])
    bias_name = b.node("Constant", [], value_floats=bias.tolist())
    b.node("Gemm", ["x", b.constant(weights), bias_name])
    model = b.model()
    path = tmp_path / "external.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=16)
    check(path, integers(rng, 5, 12), layers=1)
    (tmp_path / "weights.bin").write_bytes(b"short")
    refused(path, "can't be read")
    (tmp_path / "weights.bin").unlink()
    refused(path, "can't be read")


def test_local_functions(rng, tmp_path):
    """What PyTorch's newer exporter writes: layers as functions of the model."""
    function = helper.make_function(
        "own", "Layer", ["a", "w"], ["c"],
        [helper.make_node("MatMul", ["a", "w"], ["b"]), helper.make_node("Relu", ["b"], ["c"])],
        [helper.make_opsetid("", 13)])
    b = Builder([None, 12])
    b.nodes.append(helper.make_node("Layer", ["x", b.constant(integers(rng, 12, 3))], ["y"], "layer", domain="own"))
    model = b.model(outputs=["y"], functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    check(path, integers(rng, 5, 12), layers=1)


# Folding

def test_gemm_alpha_beta(rng, tmp_path):
    b = Builder([None, 12])
    b("Gemm", integers(rng, 12, 8, limit=1), integers(rng, 1, 8), alpha=0.5, beta=-2.0)
    b("Gemm", integers(rng, 8, 3, limit=1), integers(rng, 3), beta=0.0)
    b("Gemm", integers(rng, 3, 3), np.array([3], np.float32))
    network = check(b.save(tmp_path), integers(rng, 5, 12, limit=1), layers=3)
    assert network.layers[1].bias is None and network.layers[2].bias.tolist() == [3, 3, 3]


def test_scales_before_between_and_after(rng, tmp_path):
    b = Builder(["batch", 1, 3, 4])
    b("Sub", integers(rng, 1, 1, 3, 1))
    b("Div", np.full((), 2, np.float32))
    b("Flatten")
    b("Mul", np.float32(2) ** rng.integers(-1, 2, 12).astype(np.float32), ...)
    b("Sub", integers(rng, 12), ...)
    b("MatMul", rng.permutation(np.eye(12, dtype=np.float32))[:, :8])       # few bits, so that nothing is rounded
    b("Mul", np.float32(2) ** rng.integers(0, 2, (1, 8)).astype(np.float32))
    b("Add", integers(rng, 8))
    b("Neg")
    b("Relu")
    b("Add", np.array([1], np.float32))
    b("Dropout")
    b("MatMul", integers(rng, 8, 4))
    b("Div", np.array(-4, np.float32))
    check(b.save(tmp_path), integers(rng, 5, 1, 3, 4), layers=2)


def test_transposed_sample(rng, tmp_path):
    """NCHW to NHWC with several channels before the first layer, and a permutation after one."""
    b = Builder(["batch", 2, 3, 4])
    b("Mul", np.array([[[2]], [[4]]], np.float32))
    b("Transpose", perm=[0, 2, 3, 1])
    b("Add", integers(rng, 3, 4, 2))
    b("Transpose", perm=[0, 2, 1, 3])
    b("Flatten")
    b("Gemm", integers(rng, 24, 6, limit=1), integers(rng, 6))
    b("Reshape", np.array([-1, 2, 3]))
    b("Transpose", perm=[0, 2, 1])
    b("Relu")
    b("Flatten")
    b("Gemm", integers(rng, 6, 4), integers(rng, 4))
    check(b.save(tmp_path), integers(rng, 5, 2, 3, 4, limit=1), layers=2)


def test_batch_normalization(rng, tmp_path):
    b = Builder([None, 6])
    b("Gemm", integers(rng, 6, 5))
    b("BatchNormalization", integers(rng, 5), integers(rng, 5), integers(rng, 5), np.full(5, 4, np.float32), epsilon=0.0)
    check(b.save(tmp_path), 2 * integers(rng, 5, 6), layers=1)


def test_specials_survive(tmp_path):
    """Infinite and NaN weights are weights; nothing that is folded may touch their neighbours."""
    weights = np.array([[np.inf, 1, -0.0], [np.nan, 2, 1e-40]], np.float32)
    b = Builder([None, 2])
    b("Gemm", weights, np.array([0, -0.0, 1e-40], np.float32))
    layer = load_network(b.save(tmp_path)).layers[0]
    assert layer.weights.view(np.uint16).tolist() == [[0x7F80, 0x3F80, 0x8000], [0x7FC0, 0x4000, 0]]
    assert layer.bias.view(np.uint32).tolist() == [0, 0x80000000, np.float32(1e-40).view(np.uint32)]


def test_random_networks_are_near(rng, tmp_path):
    errors = []
    for _ in range(4):
        sizes = rng.integers(1, 200, rng.integers(2, 6))
        b = Builder(["n", int(sizes[0])])
        for index, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
            if index:
                b("Relu")
            b("Gemm", rng.normal(0, inputs ** -0.5, (outputs, inputs)).astype(np.float32),
              rng.normal(0, 0.1, outputs).astype(np.float32), transB=1)
        path, x = b.save(tmp_path), rng.random((7, sizes[0]), dtype=np.float32)
        errors.append(np.abs(run_network(load_network(path), x) - reference(path, x)).max())
    assert 0 < max(errors) < 0.03


def test_metadata(rng, tmp_path):
    b = Builder([None, 6])
    b("Gemm", integers(rng, 6, 5))
    model = b.model()
    helper.set_model_props(model, {"preprocess": "symmetric"})
    path = tmp_path / "digits.onnx"
    path.write_bytes(model.SerializeToString())
    assert (load_network(path).preprocess, load_network(path).name) == ("symmetric", "digits")


# Refusals: one line, with the operator and the node where there is one

def refused(path, *words):
    with pytest.raises(ModelError) as caught:
        load_network(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    for word in words:
        assert word in message, message
    assert caught.value.__cause__ is None


def mlp(rng, **options):
    b = Builder([None, 12], **options)
    b("Gemm", integers(rng, 12, 8), integers(rng, 8), name="first")
    b("Relu", name="cut")
    b("Gemm", integers(rng, 8, 3), integers(rng, 3), name="last")
    return b


@pytest.mark.parametrize("operator", ["Sigmoid", "LeakyRelu", "Tanh", "MaxPool", "NoSuchThing"])
def test_unsupported_operator(rng, tmp_path, operator):
    b = mlp(rng)
    b(operator, name="odd\none")
    refused(b.save(tmp_path), f"operator {operator}", "odd\\none", "supported are Gemm, MatMul, Einsum, Relu, ")


def test_unsupported_names_the_first(rng, tmp_path):
    b = Builder([None, 1, 12, 12])
    b("Conv", integers(rng, 2, 1, 3, 3), name="Convolution28")
    b("Sigmoid")
    refused(b.save(tmp_path), "operator Conv, node 'Convolution28'")


def test_unnamed_node(rng, tmp_path):
    b = mlp(rng)
    b("Tanh")
    b.nodes[-1].name = ""
    refused(b.save(tmp_path), "operator Tanh, node (unnamed, makes 't3')")


def refusals():
    """name -> (what to do to an MLP, words of the message)"""
    def operator(*arguments, **attributes):
        return lambda b: b(*arguments, name="odd", **attributes)

    def several(*calls):
        return lambda b: [b(*call) for call in calls]

    def edit(index, **changes):
        def apply(b):
            for key, value in changes.items():
                position = int(key[1:])
                getattr(b.nodes[index], {"i": "input", "o": "output"}[key[0]])[position] = value
        return apply

    def other_domain(b):
        b("FusedGemm", name="odd")
        b.nodes[-1].domain = "com.microsoft"

    def residual(b):
        b.node("Gemm", ["t1", np.eye(8, dtype=np.float32)])
        b.node("Add", ["t1", b.last], name="odd")

    def second_input(b):
        b.inputs.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 12]))

    def shape(dims):
        def apply(b):
            b.inputs[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, dims))
        return apply

    ones = np.ones
    dequantize = ("DequantizeLinear", [ones((3, 3), np.int8), np.array(1, np.float32), np.array(0, np.int8)])
    return {
        "cyclic": (edit(0, i0="t2"), "cyclic", "Gemm"),
        "cycle of one": (edit(1, i0="t1"), "cyclic", "Relu", "'cut'"),
        "missing initialiser": (edit(2, i1="gone"), "'last'", "'gone' is missing"),
        "missing output": (edit(2, o0="other"), "'t2' is made by no node"),
        "two makers": (edit(2, o0="t1"), "two nodes make 't1'"),
        "inconsistent shapes": (edit(2, i1="c0"), "'last'", "(batch, 8)", "(12, 8)", "do not multiply"),
        "bias of wrong size": (edit(2, i2="c1"), "'last'", "do not fit"),
        "two inputs": (second_input, "one input, not 2"),
        "open size": (shape([None, "pixels"]), "(?, pixels)", "only the first size"),
        "no shape": (shape(None), "no shape"),
        "empty input": (shape([None, 0]), "empty"),
        "wrong input size": (shape([None, 13]), "'first'", "do not multiply"),
        "not flattened": (shape([2, 3, 12]), "'first'", "Gemm needs matrices"),
        "other domain": (other_domain, "com.microsoft.FusedGemm", "'odd'", "domain"),
        "residual": (residual, "operator Add, node 'odd'", "joins two branches"),
        "after softmax": (several(("Softmax",), ("Relu",)), "Relu", "after Softmax"),
        "softmax over the batch": (operator("Softmax", axis=0), "'odd'", "must be over all 3 values"),
        "scale after last ReLU": (several(("Relu",), ("Mul", np.array(2, np.float32))), "Mul", "after the last layer"),
        "constant over values": (operator("Div", np.array(1, np.float32), ...), "'odd'", "divides a constant"),
        "per-batch constant": (operator("Add", ones((7, 3), np.float32)), "'odd'", "do not fit"),
        "reshape of wrong size": (operator("Reshape", np.array([-1, 5])), "'odd'", "can't become (", "5)"),
        "reshape across samples": (several(("Reshape", np.array([2, -1])), ("MatMul", ones((6, 2), np.float32))),
                                   "Reshape", "(batch, 3) can't become (2, "),
        "transposed batch": (operator("Transpose", perm=[1, 0]), "'odd'", "moves the batch"),
        "weights on the left": (operator("MatMul", ones((3, 3), np.float32), ...), "'odd'", "on the left"),
        "transposed operand": (operator("Gemm", ones((3, 3), np.float32), transA=1), "'odd'", "transposed"),
        "Clip to 6": (operator("Clip", np.array(0, np.float32), np.array(6, np.float32)), "'odd'", "from 0.0 to 6.0"),
        "Max of 1": (operator("Max", ones(3, np.float32)), "'odd'", "as a Relu"),
        "Einsum over the batch": (operator("Einsum", ones((3, 2), np.float32), equation="kb,kn->bn"), "'odd'", "kb,kn->bn"),
        "quantised weights": (lambda b: b("MatMul", b.node(*dequantize, name="odd")), "DequantizeLinear", "'odd'"),
        "cast to integers": (operator("Cast", to=TensorProto.INT64), "'odd'", "Cast to integers"),
        "no inputs": (lambda b: b.node("Gemm", [], name="odd"), "'odd'"),
        "one operand": (operator("Gemm"), "'odd'", "malformed"),
        "attribute of wrong type": (operator("Flatten", axis="one"), "'odd'", "malformed"),
        "random weights": (lambda b: b("Add", b.node("RandomNormal", [], name="odd", shape=[3])), "RandomNormal"),
        "mask of a dropout": (lambda b: b.nodes.append(helper.make_node("Dropout", ["t2"], ["d", "t3"], "odd")) or
                              setattr(b, "last", "t3"), "'odd'", "not supported"),
    }


@pytest.mark.parametrize("case", refusals())
def test_refused(rng, tmp_path, case):
    change, *words = refusals()[case]
    b = mlp(rng)
    change(b)
    path = tmp_path / "model.onnx"
    path.write_bytes(b.model().SerializeToString())
    refused(path, *words)


def test_relu_without_a_layer(rng, tmp_path):
    b = Builder([None, 12])
    b("Relu", name="odd")
    b("Gemm", integers(rng, 12, 3))
    refused(b.save(tmp_path), "operator Relu, node 'odd'", "after a layer")


def test_rows_of_an_image(rng, tmp_path):
    b = Builder([None, 6, 12])
    b("MatMul", integers(rng, 12, 3), name="odd")
    refused(b.save(tmp_path), "'odd'", "put a Flatten before it")


def test_no_layer(tmp_path):
    b = Builder([None, 12])
    b("Identity")
    refused(b.save(tmp_path), "no layer")


def test_several_outputs(rng, tmp_path):
    refused(mlp(rng).save(tmp_path, outputs=["t0", "t2"]), "several outputs")
    b = mlp(rng)
    b("Softmax")
    assert load_network(b.save(tmp_path, outputs=["t2", "t3"])).softmax     # logits and probabilities: one result


def test_integer_arithmetic(rng, tmp_path):
    b = Builder([None, 12], kind=TensorProto.UINT8)
    b("Div", np.array(255, np.uint8), name="odd")
    refused(b.save(tmp_path), "'odd'", "Cast to float")


def test_old_opset(rng, tmp_path):
    refused(mlp(rng, opset=7).save(tmp_path), "opset 7")


def test_claims_of_size(rng, tmp_path):
    b = mlp(rng)
    model = b.model()
    model.graph.initializer[0].dims[:] = [1 << 40, 1 << 40]
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    refused(path, "initialiser 'c0' can't be read")
    path.write_bytes(b"\x3a\xff\xff\xff\xff\x07" + b"x" * 100)        # a graph of 2 GiB
    refused(path, "not an ONNX model")


def test_not_a_model(tmp_path):
    refused(tmp_path, "directory")
    refused(tmp_path / "absent.onnx", "No such file")
    for name, content in {"empty": b"", "text": b"hello, world\n" * 9, "zeros": bytes(1000), "png": b"\x89PNG\r\n"}.items():
        path = tmp_path / name
        path.write_bytes(content)
        refused(path, "not an ONNX model")


def test_damaged_files(rng, tmp_path):
    """Cut anywhere, or with bytes changed anywhere: a network or a ModelError, nothing else."""
    content = mlp(rng).model().SerializeToString()
    path = tmp_path / "model.onnx"
    outcomes = []
    for trial in range(400):
        damaged = bytearray(content)
        if trial % 2:
            del damaged[rng.integers(len(content)):]
        else:
            for _ in range(rng.integers(1, 4)):
                damaged[rng.integers(len(content))] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            load_network(path)
            outcomes.append(trial % 2)
        except ModelError as error:
            assert "\n" not in str(error)
    assert outcomes and sum(outcomes) < 60          # data bytes may change unnoticed; a cut may only take the tail
