"""Tests that the remedy of a refusal works: each model is refused, and accepted once it is changed as the message says."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim.frontend.load import load_network
from onnx_models import Builder, refused

INT64, INT32, FLOAT, BOOL = TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.BOOL
IMAGE, VECTOR = ("n", 2, 6, 6), ("n", 4)


def numbers(*shape):
    return (np.arange(np.prod(shape)).reshape(shape) % 7 / 7 - 0.4).astype(np.float32)


def number(value):
    return np.array(value, np.float32)


def sizes(*values):
    return np.array(values, np.int64)


DENSE = ("MatMul", numbers(4, 4))
MASK = number([0, -np.inf, 0, 0])


def chain(shape, *steps, opset=17, kind=FLOAT, result=FLOAT):
    """Returns a builder of consecutive nodes, each `(operator, constants..., attributes)`, and the options of its `save`."""
    b = Builder(list(shape), opset=opset, kind=kind)
    for operator, *inputs in steps:
        attributes = inputs.pop() if inputs and isinstance(inputs[-1], dict) else {}
        b(operator, *inputs, **attributes)
    return b, {"kinds": [result]}


def second_output(shape, operator, *inputs, used=False, **attributes):
    b = Builder(list(shape), opset=17)
    b(operator, *inputs, **attributes)
    b.nodes[-1].output.append("second")
    if used:
        b.node("Cast", ["second"], to=FLOAT)
    return b, {}


def embedded(kind, *casts, add=None):
    """Returns a builder that looks up rows of a table with an input of type `kind`, after Cast nodes."""
    b = Builder(["n", 3], kind=kind)
    last = "x"
    for one in casts:
        last = b("Cast", to=one)
    if add is not None:
        last = b.node("Add", [last, sizes(add)])
    b.node("Gather", [numbers(5, 4), last])
    b(*DENSE)
    return b, {}


def of_batch(batch, operator="Shape"):
    b = Builder([batch, 4])
    x = b(*DENSE)
    count = b.node(operator, ["x"])
    count = b.node("Gather", [count, np.array(0)]) if operator == "Shape" else count
    b.node("Mul", [x, b.node("Cast", [count], to=FLOAT)])
    return b, {}


def where(operator, bound, *sides):
    """Returns a builder of Where, whose condition compares a dense layer with `bound`, or joins two such comparisons."""
    b = Builder(list(VECTOR))
    x = b(*DENSE)
    given = {"value": x, "curve": b.node("Tanh", [x]), "zero": number(0)}
    if operator in ("And", "Or"):
        condition = b.node(operator, [b.node(one, [x, number(bound)]) for one in ("Less", "Greater")])
    else:
        condition = b.node(operator, [x] if bound is None else [x, number(bound)])
    b.node("Where", [condition, *(given[side] for side in sides)])
    return b, {}


def chosen(condition):
    b = Builder([1, 4])
    if condition is None:
        b.inputs.append(helper.make_tensor_value_info("condition", BOOL, []))
    x = b(*DENSE)
    branch = [
        helper.make_graph([helper.make_node("Relu", [x], [n])], n, [], [helper.make_tensor_value_info(n, FLOAT, None)])
        for n in "ab"
    ]
    b.node("If", ["condition" if condition is None else np.array(condition)], then_branch=branch[0], else_branch=branch[1])
    return b, {}


def windows(operator, *inputs, **attributes):
    return chain(IMAGE, (operator, *inputs, attributes))


def resized(opset=18, shape=IMAGE, scales=None, to=None, **attributes):
    given = ["", scales] if to is None else ["", "", to]
    return chain(shape, ("Resize", *given, {"mode": "linear", **attributes}), ("Relu",), opset=opset)


def lstm(**attributes):
    layer = ("LSTM", numbers(1, 8, 4), numbers(1, 8, 2), {"hidden_size": 2, **attributes})
    return chain(("n", 3, 4), ("Transpose", {"perm": [1, 0, 2]}), layer, ("Transpose", {"perm": [2, 0, 1, 3]}))


def attention(heads):
    b = Builder(["n", 4, 8], opset=23)
    b.node("Attention", ["x"] * 3, q_num_heads=heads, kv_num_heads=heads)
    return b, {}


POOL, UP, CORNERS = (
    {"kernel_shape": [3, 3], "strides": [2, 2]},
    numbers(2, 3, 3, 3),
    {"coordinate_transformation_mode": "align_corners"},
)
#: name -> (model, words of the remedy, the model that it describes)
REMEDIES = {
    "Squeeze": (
        chain(("n", 1, 4), ("Squeeze",), ("Softmax", {"axis": 0})),
        "give the Squeeze its axes",
        chain(("n", 1, 4), ("Squeeze", sizes(1)), DENSE),
    ),
    "mask": (
        chain(VECTOR, DENSE, ("Add", MASK), ("Relu",), ("Softmax",)),
        "must be added directly before a Softmax",
        chain(VECTOR, DENSE, ("Relu",), ("Add", MASK), ("Softmax",), DENSE),
    ),
    "weights": (chain(VECTOR, ("MatMul", numbers(4, 4) * number(np.nan))), "give it finite numbers", chain(VECTOR, DENSE)),
    "bounds": (chain(VECTOR, ("Clip", number(np.inf))), "leave out the infinite bound", chain(VECTOR, ("Clip",), DENSE)),
    "integers": (
        chain(VECTOR, ("Neg",), kind=INT32, result=INT32),
        "put a Cast to float before it",
        chain(VECTOR, ("Cast", {"to": FLOAT}), ("Neg",), kind=INT32),
    ),
    "row numbers": (embedded(INT64, add=1), "compute row numbers on the host", embedded(INT64)),
    "ids as numbers": (embedded(FLOAT, INT64), "declare the input itself as integers", embedded(INT64)),
    "Cast to integers": (
        chain(VECTOR, DENSE, ("Cast", {"to": INT64}), ("Cast", {"to": FLOAT})),
        "is not supported; remove it",
        chain(VECTOR, DENSE),
    ),
    "attribute": (lstm(clip=1.0), "leave it out", lstm()),
    "negative pads": (
        windows("Conv", numbers(3, 2, 3, 3), pads=[-1, 0, 0, 0]),
        "cut with a Slice before it",
        chain(IMAGE, ("Slice", sizes(1), sizes(6), sizes(2)), ("Conv", numbers(3, 2, 3, 3))),
    ),
    "negative Pad": (
        windows("Pad", sizes(0, 0, -1, 0, 0, 0, 1, 0), mode="edge"),
        "cut with a Slice",
        chain(
            IMAGE, ("Slice", sizes(1), sizes(6), sizes(2)), ("Pad", sizes(0, 0, 0, 0, 0, 0, 1, 0), {"mode": "edge"}), ("Relu",)
        ),
    ),
    "VALID": (
        windows("MaxPool", auto_pad="VALID", ceil_mode=1, **POOL),
        "write explicit pads",
        windows("MaxPool", pads=[0, 0, 0, 0], ceil_mode=1, **POOL),
    ),
    "two pads": (
        windows("Conv", UP.transpose(1, 0, 2, 3), auto_pad="SAME_UPPER", pads=[1, 1, 1, 1]),
        "leave one out",
        windows("Conv", UP.transpose(1, 0, 2, 3), auto_pad="SAME_UPPER"),
    ),
    "output_shape": (
        windows("ConvTranspose", UP, strides=[2, 2], output_shape=[14, 14]),
        "leave out output_shape or auto_pad, and give output_padding",
        windows("ConvTranspose", UP, strides=[2, 2], output_padding=[1, 1]),
    ),
    "auto_pad of ConvTranspose": (
        windows("ConvTranspose", UP[:, :, :1, :1], strides=[2, 2], auto_pad="SAME_UPPER"),
        "leave out output_shape or auto_pad, and give output_padding",
        windows("ConvTranspose", UP[:, :, :1, :1], strides=[2, 2], output_padding=[1, 1]),
    ),
    "indices": (second_output(IMAGE, "MaxPool", kernel_shape=[2, 2]), "leave it out", windows("MaxPool", kernel_shape=[2, 2])),
    "mask of Dropout": (second_output(VECTOR, "Dropout", used=True), "leave it out", chain(VECTOR, ("Dropout",), DENSE)),
    "statistics": (
        second_output(VECTOR, "LayerNormalization", np.ones(4, np.float32)),
        "leave them out",
        chain(VECTOR, ("LayerNormalization", np.ones(4, np.float32))),
    ),
    "corners of an open batch": (
        resized(scales=number([1, 1, 1.4, 1.4]), **CORNERS),
        "give its sizes, of an open batch only those of the attribute axes",
        resized(to=sizes(8, 8), axes=[2, 3], **CORNERS),
    ),
    "corners": (
        resized(opset=13, shape=(1, 2, 6, 6), scales=number([1, 1, 1.4, 1.4]), **CORNERS),
        "give its sizes",
        resized(opset=13, shape=(1, 2, 6, 6), to=sizes(1, 2, 8, 8), **CORNERS),
    ),
    "sizes": (resized(to=sizes(1, 2, 9, 9)), "give scales", resized(scales=number([1, 1, 1.5, 1.5]))),
    "sizes of axes": (resized(to=sizes(1, 2, 9, 9)), "or name the other axes", resized(to=sizes(9, 9), axes=[2, 3])),
    "antialias": (resized(scales=number([1, 1, 2, 2]), antialias=1), "leave them out", resized(scales=number([1, 1, 2, 2]))),
    "Einsum": (
        chain(VECTOR, ("Einsum", numbers(4), {"equation": "bk,k->bk"})),
        "write it with Transpose, MatMul, Mul and ReduceSum",
        chain(VECTOR, ("Mul", numbers(4))),
    ),
    "heads": (attention(3), "set q_num_heads", attention(2)),
    "Sqrt": (chain(VECTOR, DENSE, ("Sqrt",)), "add a Clip before it", chain(VECTOR, DENSE, ("Clip", number(0)), ("Sqrt",))),
    "Log": (chain(VECTOR, DENSE, ("Log",)), "cut the model before it", chain(VECTOR, DENSE)),
    "operator": (chain(VECTOR, DENSE, ("Round",)), "or cut the model before it", chain(VECTOR, DENSE)),
    "LogSoftmax": (
        chain(VECTOR, DENSE, ("LogSoftmax",), ("Relu",)),
        "let the model end with it",
        chain(VECTOR, DENSE, ("LogSoftmax",)),
    ),
    "cancelled constants": (
        chain(VECTOR, ("Add", number(1e6)), ("Sub", number(1e6)), DENSE),
        "remove these constants from the model",
        chain(VECTOR, DENSE),
    ),
    "large weights": (
        chain(VECTOR, ("MatMul", np.full((4, 4), 3.4e38, np.float32))),
        "scale them down",
        chain(VECTOR, ("MatMul", np.full((4, 4), 3.4e37, np.float32))),
    ),
    "size of the batch": (of_batch("n"), "export the model with a fixed batch", of_batch(3)),
    "bound that is computed": (
        (lambda b: (b.node("Clip", ["x", "", b("ReduceMax", keepdims=0)]), (b, {}))[1])(Builder([1, 4])),
        "all of its inputs but one must be constant",
        chain((1, 4), ("Clip", "", number(2))),
    ),
    "condition": (chosen(None), "make the input constant", chosen(True)),
    "two functions": (where("Less", 0, "curve", "value"), "functions of `tpu run --operators`", chain(VECTOR, DENSE, ("Elu",))),
    "jump": (where("Greater", 0.5, "value", "zero"), "cut the model before it", chain(VECTOR, DENSE)),
    "Equal": (where("Equal", 0, "zero", "value"), "cut the model before it", chain(VECTOR, DENSE)),
    "And": (where("And", 0, "zero", "value"), "cut the model before it", chain(VECTOR, DENSE)),
    "Or": (where("Or", 0, "zero", "value"), "cut the model before it", chain(VECTOR, DENSE)),
    "IsNaN": (where("IsNaN", None, "zero", "value"), "leave it out", chain(VECTOR, DENSE)),
    "number of values": (of_batch("n", "Size"), "export the model with a fixed batch", of_batch(3, "Size")),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_remedy(tmp_path, name):
    (bad, of_bad), words, (good, of_good) = REMEDIES[name]
    refused(bad.save(tmp_path, **of_bad), words)
    load_network(good.save(tmp_path, **of_good))


def test_remedy_of_open_sizes(tmp_path):
    """The option of the message, with numbers in place of the question marks, as an argument of `tpu.load`."""
    b, _ = chain(("n", "tokens", 4), DENSE)
    path = b.save(tmp_path)
    refused(path, "--shape x=?,?,4")
    load_network(path, shapes={"x": (1, 3, 4)})
