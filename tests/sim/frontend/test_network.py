"""Tests of chains of dense layers from ONNX against onnxruntime. Weights and inputs are small integers and scales are powers of
two, so that results must be equal."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from onnx_models import Builder, integers, reference, refused


def check(path, x, layers, softmax=False):
    """Compares the golden model with onnxruntime for equality, and checks the number of layers."""
    network = load_network(path)
    assert len(network.stages) == layers and network.softmax == softmax
    for stage in network.stages:
        (term,) = stage.terms
        assert stage.size == term.kernel == (1, 1) and term.groups == 1 and network.kernel(term).dtype == bfloat16
        assert stage.function.name in ("none", "relu") and not (stage.pool or stage.softmax or stage.times)
        bias = network.constants.get(stage.start)
        assert bias is None or bias.dtype == np.float32 and bias.shape == (1, 1, network.channels(stage))
    logits = run_network(network, x.astype(np.float32).reshape(len(x), -1))
    wanted = reference(path, x).reshape(len(x), -1)
    assert np.abs(logits).max() > 0
    if softmax:
        shares = np.exp(logits - logits.max(1, keepdims=True))
        assert np.allclose(wanted, shares / shares.sum(1, keepdims=True), atol=1e-5)
    else:
        assert (logits == wanted).all()
    return network


# ---- multilayer perceptrons as exporters write them


def test_pytorch_functional_linear(rng, tmp_path):
    """An export of torch.nn.functional.linear, with weights through a Transpose and the bias as first operand of Add, gives the
    same results as onnxruntime."""
    b = Builder(["batch", 12])
    turned = b.node("Transpose", [integers(rng, 7, 12)], perm=[1, 0])
    b.node("MatMul", ["x", turned])
    b("Add", integers(rng, 7), ...)
    b("Relu")
    check(b.save(tmp_path), integers(rng, 5, 12), layers=1)


def test_keras_export(rng, tmp_path):
    """A Keras export with NHWC input, Reshape to (-1, 12), MatMul, Add and a final Softmax gives the same results as
    onnxruntime."""
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


def test_sklearn_export(rng, tmp_path):
    """A skl2onnx export of a classifier, with Cast, a bias of shape (1, N), probabilities and a label by ArgMax, gives the same
    results as onnxruntime."""
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
    path = b.save(tmp_path, outputs=[label, probabilities], kinds=[TensorProto.STRING])
    assert len(load_network(path).stages) == 2 and load_network(path).softmax


def test_sklearn_scaler(rng, tmp_path):
    """The operator Scaler of ai.onnx.ml, which scikit-learn's StandardScaler becomes, is merged into the first layer."""
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


def test_relu_by_other_names(rng, tmp_path):
    """Clip and Max with a lower bound of 0, as torch.clamp and keras.ops.maximum are exported, are read as ReLU."""
    zero, infinite = np.float32(0), np.float32(np.inf)
    for opset, relu in (
        (9, ("Clip", {"min": 0.0})),
        (13, ("Clip", zero)),
        (13, ("Clip", zero, infinite)),
        (13, ("Max", zero)),
        (13, ("Max", zero.reshape(1), ...)),
        (13, ("Max", np.zeros((1, 7), np.float32))),
    ):
        b = Builder(["batch", 12], opset=opset)
        b("Gemm", integers(rng, 12, 7), integers(rng, 7))
        attributes = relu[-1] if isinstance(relu[-1], dict) else {}
        inputs = relu[1:-1] if attributes else relu[1:]
        b(relu[0], *(b.constant(i) if isinstance(i, np.generic) else i for i in inputs), **attributes)
        b("MatMul", integers(rng, 7, 3))
        assert check(b.save(tmp_path), integers(rng, 5, 12), layers=2).stages[0].function.name == "relu"


def test_pytorch_unoptimised_clamp(rng, tmp_path):
    """A Max with a bound that CastLike converts to the operand's type is read as ReLU."""
    b = Builder(["batch", 12], opset=18)
    values = b("Gemm", integers(rng, 12, 7))
    b.node("Max", [values, b.node("CastLike", [np.array(0), values])])
    assert check(b.save(tmp_path), integers(rng, 5, 12), layers=1).stages[0].function.name == "relu"


def test_cast_like_makes_numbers_of_integers(rng, tmp_path):
    """Integer constants that CastLike converts to float are divided as floats: 5 / 2 is 2.5, not 2."""
    b = Builder(["batch", 12], opset=18)
    values = b("Gemm", integers(rng, 12, 7))
    five, two = (b.node("CastLike", [np.array(number), values]) for number in (5, 2))
    b.node("Mul", [values, b.node("Div", [five, two])])
    check(b.save(tmp_path), integers(rng, 5, 12), layers=1)


def test_einsum_is_a_dense_layer(rng, tmp_path):
    """An Einsum that multiplies by a matrix, as torch.einsum and EinsumDense are exported, is read as a dense layer."""
    b = Builder(["batch", 12])
    b("Einsum", integers(rng, 12, 7, limit=1), equation="bk,kn->bn")
    b("Einsum", integers(rng, 5, 7, limit=1), equation="bc , xc -> bx")
    b("Einsum", integers(rng, 3, 5, limit=1), ..., equation="oi,bi->bo")
    check(b.save(tmp_path), integers(rng, 5, 12), layers=3)


@pytest.mark.parametrize(
    "equation, shape, sizes",
    [
        ("abc,cde->abde", (5, 6), (6, 2, 3)),  # heads of an attention in Keras
        ("abcd,cde->abe", (5, 2, 3), (2, 3, 4)),  # their projection
        ("ecd,abcd->aeb", (5, 2, 3), (4, 2, 3)),
        ("bik,knm->bmni", (3, 4), (4, 2, 5)),
        ("bki,kn->bin", (3, 4), (3, 5)),
    ],
)
def test_einsum_of_several_axes(rng, tmp_path, equation, shape, sizes):
    """An Einsum with constant weights may sum over several axes, have several axes in place of one, and permute its result."""
    weights, b = integers(rng, *sizes, limit=1), Builder(["batch", *shape])
    operands = (weights, ...) if equation.startswith("ecd") else (..., weights)
    b("Einsum", *operands, equation=equation)
    x = integers(rng, 3, *shape)
    path = b.save(tmp_path)
    wanted = reference(path, x)
    np.testing.assert_array_equal(tpu.load(path).predict(x), wanted)


def test_onnxruntime_optimised(rng, tmp_path):
    """A model optimised by onnxruntime, which contains FusedGemm, gives the original model's results."""
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
    assert check(tmp_path / "optimised.onnx", integers(rng, 5, 12), layers=2).stages[0].function.name == "relu"


def test_weight_norm(rng, tmp_path):
    """Unfolded weight normalisation of PyTorch (gain * direction / length) is folded into the weights."""
    direction = np.array([[3, 4], [0, 2], [8, 6]], np.float32)
    b = Builder(["batch", 2])
    length = b.node("ReduceL2", [direction], axes=[1])
    b.node("Div", [b.node("Mul", [direction, np.array([[5], [4], [10]], np.float32)]), length])
    b.node("Gemm", ["x", b.last], transB=1)
    check(b.save(tmp_path), integers(rng, 5, 2), layers=1)


def test_batch_fixed_by_a_reshape_only(rng, tmp_path):
    """A Reshape to a constant batch, as in a traced x.view(len(x), -1), fixes the batch size."""
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
    b("MatMul", b.node("Cast", [weights.astype(kind)], to=TensorProto.FLOAT))
    b.nodes[-1].input[0] = "x"
    network = load_network(b.save(tmp_path))
    assert (network.kernel(network.stages[0].terms[0])[0, 0] == weights).all()


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
    refused(path, "cannot be read")
    (tmp_path / "weights.bin").unlink()
    refused(path, "cannot be read")


def test_local_functions(rng, tmp_path):
    """Layers as local functions of the model, as PyTorch's newer exporter writes them, are inlined."""
    function = helper.make_function(
        "own",
        "Layer",
        ["a", "w"],
        ["c"],
        [helper.make_node("MatMul", ["a", "w"], ["b"]), helper.make_node("Relu", ["b"], ["c"])],
        [helper.make_opsetid("", 13)],
    )
    b = Builder([None, 12])
    b.nodes.append(helper.make_node("Layer", ["x", b.constant(integers(rng, 12, 3))], ["y"], "layer", domain="own"))
    model = b.model(outputs=["y"], functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    check(path, integers(rng, 5, 12), layers=1)


# ---- folding


def test_gemm_alpha_beta(rng, tmp_path):
    b = Builder([None, 12])
    b("Gemm", integers(rng, 12, 8, limit=1), integers(rng, 1, 8), alpha=0.5, beta=-2.0)
    b("Gemm", integers(rng, 8, 3, limit=1), integers(rng, 3), beta=0.0)
    b("Gemm", integers(rng, 3, 3), np.array([3], np.float32))
    network = check(b.save(tmp_path), integers(rng, 5, 12, limit=1), layers=3)
    _, second, third = network.stages
    assert second.start is None and network.constants[third.start].tolist() == [[[3, 3, 3]]]


def test_scales_before_between_and_after(rng, tmp_path):
    b = Builder(["batch", 1, 3, 4])
    b("Sub", integers(rng, 1, 1, 3, 1))
    b("Div", np.full((), 2, np.float32))
    b("Flatten")
    b("Mul", np.float32(2) ** rng.integers(-1, 2, 12).astype(np.float32), ...)
    b("Sub", integers(rng, 12), ...)
    b("MatMul", rng.permutation(np.eye(12, dtype=np.float32))[:, :8])  # few bits, so that results are not rounded
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
    """Permutations before the first layer (NCHW to NHWC) and after a layer are merged into the weights."""
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


def test_small_weights_are_kept(tmp_path):
    """Subnormal weights are kept, a weight of -0 becomes +0, and folding does not change their neighbours."""
    weights = np.array([[1, -0.0, 0], [2, 1e-40, 3]], np.float32)
    b = Builder([None, 2])
    b("Gemm", weights, np.array([0, -0.0, 1e-40], np.float32))
    network = load_network(b.save(tmp_path))
    (stage,) = network.stages
    assert network.kernel(stage.terms[0])[0, 0].view(np.uint16).tolist() == [[0x3F80, 0, 0], [0x4000, 0, 0x4040]]
    assert network.constants[stage.start].view(np.uint32).tolist() == [[[0, 0, np.float32(1e-40).view(np.uint32)]]]


def test_random_networks_are_near(rng, tmp_path):
    errors = []
    for _ in range(4):
        sizes = rng.integers(1, 200, rng.integers(2, 6))
        b = Builder(["n", int(sizes[0])])
        for index, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
            if index:
                b("Relu")
            b(
                "Gemm",
                rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32),
                rng.normal(0, 0.1, outputs).astype(np.float32),
                transB=1,
            )
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
