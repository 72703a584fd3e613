"""Tests that each error of the ONNX reader has one line, with the operator and node if one is at fault."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.errors import ModelError
from onnx_models import Builder, integers, refused


def mlp(rng, **options):
    b = Builder([None, 12], **options)
    b("Gemm", integers(rng, 12, 8), integers(rng, 8), name="first")
    b("Relu", name="cut")
    b("Gemm", integers(rng, 8, 3), integers(rng, 3), name="last")
    return b


@pytest.mark.parametrize("operator", ["LpNormalization", "LRN", "Col2Im"])
def test_unsupported_operator(rng, tmp_path, operator):
    b = mlp(rng, opset=18)
    b(operator, name="odd\none")
    refused(b.save(tmp_path), f"operator {operator}, node 'odd\\none': is not supported; `tpu run --operators` lists")


def test_unsupported_names_the_first(rng, tmp_path):
    b = Builder([None, 1, 12, 12])
    b("GlobalLpPool", name="Convolution28")
    b("LRN", size=3)
    refused(b.save(tmp_path), "operator GlobalLpPool, node 'Convolution28'")


def image_refusals():
    """Returns {name: (function that extends a model on images (2, 6, 5) by an unsupported node, words of the error)}."""

    def operator(*arguments, **attributes):
        return lambda b: b(*arguments, name="odd", **attributes)

    def second_output(b):
        b("MaxPool", kernel_shape=[2, 2], name="odd")
        b.nodes[-1].output.append("where")

    ones, big = lambda *shape: np.ones(shape, np.float32), 1 << 40
    return {
        "channels": (operator("Conv", ones(3, 4, 3, 3)), "weights of (3, 4, 3, 3)", "(batch, 2, 6, 5)"),
        "groups": (operator("Conv", ones(3, 1, 3, 3), group=2), "in 2 groups"),
        "kernel": (operator("Conv", ones(3, 2, 3, 3), kernel_shape=[5, 5]), "kernel_shape [5, 5]"),
        "bias": (operator("Conv", ones(3, 2, 3, 3), ones(4)), "bias of (4)"),
        "three axes": (operator("Conv", ones(3, 2, 3, 3, 3)), "do not fit"),
        "too large": (operator("Conv", ones(3, 2, 7, 7)), "window of 7 does not fit"),
        "padding": (operator("Conv", ones(3, 2, 3, 3), pads=[big] * 4), "too large"),
        "negative padding": (operator("Conv", ones(3, 2, 3, 3), pads=[-1, 0, 0, 0]), "pads"),
        "stride": (operator("Conv", ones(3, 2, 3, 3), strides=[0, 1]), "strides is [0, 1], at least 1 is needed"),
        "dilation": (operator("Conv", ones(3, 2, 3, 3), dilations=[big, big]), "does not fit"),
        "weights that are computed": (lambda b: b.node("Conv", ["x", "x"], name="odd"), "joins two branches"),
        "no kernel": (operator("MaxPool"), "attribute kernel_shape is missing"),
        "places": (second_output, "second output"),
        "padding only": (operator("MaxPool", kernel_shape=[1, 1], pads=[1, 1, 1, 1]), "padding only"),
        "averages of padding": (operator("AveragePool", kernel_shape=[1, 1], pads=[1, 1, 1, 1]), "padding only"),
        "pad": (operator("Pad", np.array([0, 0, big, 0, 0, 0, 0, 0])), "too large"),
        "pad of another value": (operator("Pad", np.array([0, 0, 1, 1, 0, 0, 1, 1]), np.array(2, np.float32)), "only 0"),
        "pad of the batch": (operator("Pad", np.array([1, 0, 0, 0, 0, 0, 0, 0])), "axis 0 of (batch, 2, 6, 5), the batch"),
        "slice of nothing": (operator("Slice", np.array([4]), np.array([4]), np.array([2])), "takes no values of axis 2"),
        "slice of the batch": (operator("Slice", np.array([1]), np.array([4]), np.array([0])), "cuts along axis 0"),
        "split": (operator("Split", np.array([3, 4]), axis=2), "cannot be split"),
        "expansion": (operator("Expand", np.array([big, 1, 1, 1])), "do not fit"),
        "repetition": (lambda b: [b("GlobalMaxPool"), b("Expand", np.array([1, 1, big, 1]), name="odd")], "too large"),
        "flat": (operator("Reshape", np.array([-1, 60])), "not (batch, channels, height, width)"),
        "all of the batch": (operator("ReduceMean"), "reduces the batch"),
        "other shapes": (lambda b: b.node("Add", ["x", b("MaxPool", kernel_shape=[2, 2])], name="odd"), "do not fit"),
        "joined shapes": (lambda b: b.node("Concat", ["x", b("MaxPool", kernel_shape=[2, 2])], axis=1, name="odd"), "do not fit"),
        "joined constant": (lambda b: b.node("Concat", ["x", ones(1, 1, 6, 5)], axis=1, name="odd"), "its own batch"),
        "normalised by the batch": (operator("BatchNormalization", *[ones(2)] * 4, training_mode=1), "for inference"),
        "lowest": (
            lambda b: [b("Pad", np.array([0] * 6 + [1, 1]), np.array(-np.inf, np.float32)), b("Relu", name="odd")],
            "only MaxPool",
        ),
    }


@pytest.mark.parametrize("case", image_refusals())
def test_image_refused(tmp_path, case):
    change, *words = image_refusals()[case]
    b = Builder([None, 2, 6, 5], opset=18)
    change(b)
    if case == "flat":
        b("GlobalAveragePool", name="odd")
    path = tmp_path / "model.onnx"
    path.write_bytes(b.model().SerializeToString())
    refused(path, "'odd'", *words)


def test_unnamed_node(rng, tmp_path):
    b = mlp(rng)
    b("Sin")
    b.nodes[-1].name = ""
    refused(b.save(tmp_path), "operator Sin, node (unnamed, makes 't3')")


def refusals():
    """Returns {name: (function that makes an MLP unsupported, words of the error)}."""

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

    def branches(b):
        b.node("Gemm", ["t1", np.eye(8, dtype=np.float32)])
        b.node("Pow", ["t1", b.last], name="odd")

    def second_input(b):
        b.inputs.append(helper.make_tensor_value_info("y", TensorProto.DOUBLE, [2, 12]))

    def mask(b):
        b.nodes.append(helper.make_node("Dropout", ["t2"], ["d", "mask"], "odd"))
        b.node("Cast", ["mask"], to=TensorProto.FLOAT)

    def shape(dims):
        def apply(b):
            b.inputs[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, dims))

        return apply

    ones = np.ones
    return {
        "cyclic": (edit(0, i0="t2"), "cyclic", "Gemm"),
        "cycle of one": (edit(1, i0="t1"), "cyclic", "Relu", "'cut'"),
        "missing initialiser": (edit(2, i1="gone"), "'last'", "'gone' is missing"),
        "missing output": (edit(2, o0="other"), "'t2' is not computed by any node"),
        "two makers": (edit(2, o0="t1"), "two nodes make 't1'"),
        "inconsistent shapes": (edit(2, i1="c0"), "'last'", "(batch, 8)", "(12, 8)", "do not multiply"),
        "bias of wrong size": (edit(2, i2="c1"), "'last'", "bias of the shape (8) does not fit 3 outputs"),
        "inputs of two batches": (second_input, "'x' (?, 12), 'y' (2, 12)", "different batches"),
        "open size": (shape([None, "pixels"]), "(?, pixels)", "only the first size"),
        "no shape": (shape(None), "no shape"),
        "empty input": (shape([None, 0]), "empty"),
        "wrong input size": (shape([None, 13]), "'first'", "do not multiply"),
        "not flattened": (shape([2, 3, 12]), "'first'", "Gemm needs matrices"),
        "other domain": (other_domain, "com.microsoft.FusedGemm", "'odd'", "domain"),
        "two branches": (branches, "operator Pow, node 'odd'", "not part of a function"),
        "after LogSoftmax": (several(("LogSoftmax",), ("Relu",)), "LogSoftmax", "nothing may come after"),
        "softmax over the batch": (operator("Softmax", axis=0), "'odd'", "axis 0 of (batch, 3)", "across the batch"),
        "constant to the power of values": (operator("Pow", np.array(-1, np.float32), ...), "'odd'", "not part of a function"),
        "per-batch constant": (operator("Add", ones((7, 3), np.float32)), "'odd'", "do not fit"),
        "reshape of wrong size": (operator("Reshape", np.array([-1, 5])), "'odd'", "cannot become (", "5)"),
        "reshape across samples": (
            several(("Reshape", np.array([2, -1])), ("MatMul", ones((6, 2), np.float32))),
            "Reshape",
            "(batch, 3) cannot become (2, ",
        ),
        "transposed batch": (operator("Transpose", perm=[1, 0]), "'odd'", "moves the batch"),
        "weights on the left": (operator("MatMul", ones((3, 3), np.float32), ...), "'odd'", "left operand"),
        "transposed operand": (operator("Gemm", ones((3, 3), np.float32), transA=1), "'odd'", "of different samples"),
        "Max of several": (operator("Max", np.arange(3, dtype=np.float32)), "'odd'", "one constant number"),
        "Einsum over the batch": (operator("Einsum", ones((3, 2), np.float32), equation="kb,kn->bn"), "'odd'", "kb,kn->bn"),
        "quantised values": (
            operator("QuantizeLinear", np.array(1, np.float32), np.array(0, np.int8)),
            "QuantizeLinear",
            "'odd'",
        ),
        "cast to integers": (
            lambda b: [b("Cast", to=TensorProto.INT64, name="odd"), b("Cast", to=TensorProto.FLOAT)],
            "'odd'",
            "Cast to integers",
        ),
        "no inputs": (lambda b: b.node("Gemm", [], name="odd"), "'odd'"),
        "one operand": (operator("Gemm"), "'odd'", "has 1 input, 2 to 3 are needed"),
        "attribute of wrong type": (operator("Flatten", axis="one"), "'odd'", "attribute axis is of the type STRING, not INT"),
        "random weights": (lambda b: b("Add", b.node("RandomNormal", [], name="odd", shape=[3])), "RandomNormal"),
        "outer product of constants": (
            lambda b: b("Add", b.node("Mul", [ones((1 << 13, 1), np.float32), ones((1, 1 << 13), np.float32)], name="odd")),
            "'odd'",
            "too large",
        ),
        "mask of a dropout": (mask, "'odd'", "not supported"),
    }


@pytest.mark.parametrize("case", refusals())
def test_refused(rng, tmp_path, case):
    change, *words = refusals()[case]
    b = mlp(rng)
    change(b)
    path = tmp_path / "model.onnx"
    path.write_bytes(b.model().SerializeToString())
    refused(path, *words)


def test_no_layer(tmp_path):
    b = Builder([None, 12])
    b("Identity")
    refused(b.save(tmp_path), "no layer")


def test_logits_and_probabilities(rng, tmp_path):
    b = mlp(rng)
    b("Softmax")
    assert load_network(b.save(tmp_path, outputs=["t2", "t3"])).softmax  # a single result


def test_integer_arithmetic(rng, tmp_path):
    b = Builder([None, 12], kind=TensorProto.INT32)
    b("Div", np.array(255, np.int32), name="odd")
    refused(b.save(tmp_path, kinds=[TensorProto.INT32]), "'odd'", "Cast to float")


@pytest.mark.parametrize("chain", [True, False])
def test_weights_beyond_bfloat16(tmp_path, chain):
    """A weight of 3.4e38 is refused, because it rounds to infinity in bfloat16, and 0 times infinity is NaN instead of 0."""
    b = Builder([None, 3])
    if not chain:
        b("Sigmoid")
    b("Gemm", np.full((3, 2), 3.4e38, np.float32), name="odd")
    refused(b.save(tmp_path), "'odd'", "3.4e+38", "infinite in bfloat16")


@pytest.mark.parametrize(
    "operator, constant, said",
    [
        ("Pow", np.array(np.inf, np.float32), ""),
        ("Einsum", np.ones((3, 2), np.float32), ""),
        ("Mul", np.array(1e-40, np.float32), "less than 2^-126, a subnormal number, which the core takes for 0; write 0"),
    ],
)
def test_odd_constants_are_refused_in_words(tmp_path, operator, constant, said):
    b = Builder([None, 3])
    b(operator, constant, name="odd", **({"equation": b"\xc7k,kn->bn"} if operator == "Einsum" else {}))
    path = b.save(tmp_path)
    refused(path, "'odd'", said)
    with pytest.raises(ModelError) as caught:
        load_network(path)
    assert "Error)" not in str(caught.value)


def test_random_constant(rng, tmp_path):
    """A Dropout in training mode on a constant is refused, because its result is random."""
    b = Builder([None, 12], opset=17)
    b.node("Dropout", [np.ones(12, np.float32), np.array(0.5, np.float32), np.array(True)], name="odd")
    b.node("Mul", ["x", b.last])
    refused(b.save(tmp_path), "'odd'", "for inference")


def test_constant_that_is_cut_by_pads(rng, tmp_path):
    b = Builder([None, 12])
    b.node("Pad", [np.ones(13, np.float32), np.array([-1, 0])], name="odd")
    b.node("Mul", ["x", b.last])
    refused(b.save(tmp_path), "'odd'", "negative pads")


def test_local_function_in_place_of_an_operator(rng, tmp_path):
    """A local function with the name of an ONNX operator is refused, because interpreters run the operator and the inliner the
    function."""
    b = Builder([None, 12])
    b("Relu")
    own = helper.make_function("", "Relu", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 13)])
    refused(b.save(tmp_path, functions=[own]), "local function Relu", "ONNX' own")


def test_local_function_of_another_opset(tmp_path):
    b = Builder([None, 12])
    b.nodes.append(helper.make_node("Own", ["x"], ["y"], "odd", domain="mine"))
    own = helper.make_function(
        "mine", "Own", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    model = b.model(outputs=["y"], functions=[own])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    refused(path, "'odd'", "of opset 17", "of opset 13", "the same one")


@pytest.mark.parametrize("what", ["values", "constant"])
@pytest.mark.parametrize("like", ["integers", "truth"])
def test_cast_like_of_no_float(rng, tmp_path, what, like):
    """A CastLike of a fraction to integers or booleans is refused, because the fraction would be lost."""
    b = Builder([None, 12], opset=18, kind=TensorProto.INT32)
    values = b("Cast", to=TensorProto.FLOAT)
    kind = "x" if like == "integers" else b.node("Greater", [values, np.array(1, np.float32)])
    b.node(
        "CastLike",
        [b.node("Mul", [values, np.array(0.25, np.float32)]) if what == "values" else np.array(0.25, np.float32), kind],
        name="odd",
    )
    b.node("Add", [values, b.node("Cast", [b.last], to=TensorProto.FLOAT)])
    refused(b.save(tmp_path), "'odd'", "not supported")


def test_claims_of_size(rng, tmp_path):
    b = mlp(rng)
    model = b.model()
    model.graph.initializer[0].dims[:] = [1 << 40, 1 << 40]
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    refused(path, "initialiser 'c0' of the shape (1099511627776, 1099511627776) has 384 bytes")
    path.write_bytes(b"\x3a\xff\xff\xff\xff\x07" + b"x" * 100)  # a graph that claims 2 GiB
    refused(path, "not an ONNX model")


@pytest.mark.parametrize("shape", [[0], ["n", 0]])
def test_empty_input(rng, tmp_path, shape):
    b = Builder(shape)
    b("Relu")
    refused(b.save(tmp_path), "input 'x' is empty")


def test_not_a_model(tmp_path):
    refused(tmp_path, "directory")
    refused(tmp_path / "absent.onnx", "No such file")
    for name, content in {"empty": b"", "text": b"hello, world\n" * 9, "zeros": bytes(1000), "png": b"\x89PNG\r\n"}.items():
        path = tmp_path / name
        path.write_bytes(content)
        refused(path, "not an ONNX model")


def test_dynamic_quantisation_is_refused_with_a_way_out(rng, tmp_path):
    b = Builder(["n", 4])
    b("DynamicQuantizeLinear", name="quantised")
    b.nodes[-1].output.extend(["scale", "zero"])
    b("MatMulInteger", np.ones((4, 3), np.uint8))
    b("Cast", to=1)
    refused(b.save(tmp_path), "operator DynamicQuantizeLinear, node 'quantised'", "float32 from before the quantisation")
