"""Small models of many operators, and random changes to one node, tensor or version of a model."""

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnx_models import Builder, weights

_OPERATORS = "Relu Gemm Gelu HardSwish Mish Softmax Flatten MaxPool Conv Add Clip ReduceMax Squeeze Concat Pad LRN".split()
_OPERATORS.append("Upsample")
_ATTRIBUTES = "axis alpha transB strides stride negative_slope keepdims spatial mode to group kernel_shape axes pads perm".split()
_ATTRIBUTES += ["auto_pad", "training_mode", "bogus"]
_WORDS = "SAME same_upper NOTSET VALID SAME_LOWER edge wrap reflect constant none tanh bk,kn->nb".split()


def bases(rng):
    """Returns models with most of the supported operators, which ONNX, onnxruntime and the reader accept."""

    def dense():
        b = Builder(["n", 12])
        b("Gemm", weights(rng, 12, 8), weights(rng, 8), alpha=1.0, transB=0)
        b("LeakyRelu", alpha=0.1)
        b("MatMul", weights(rng, 8, 6))
        b("Add", weights(rng, 6))
        b("Clip", np.array(0, np.float32), np.array(6, np.float32))
        b("Softmax", axis=-1)
        return b.model()

    def image():
        b = Builder(["n", 2, 8, 8], opset=18)
        settings = dict(pads=[1] * 4, strides=[1, 1], dilations=[1, 1], group=1, kernel_shape=[3, 3])
        b("Conv", weights(rng, 4, 2, 3, 3), weights(rng, 4), **settings)
        b("BatchNormalization", *[np.abs(weights(rng, 4)) + np.float32(0.5) for _ in range(4)], epsilon=1e-5, momentum=0.9)
        same = b("Relu")
        b("Conv", weights(rng, 4, 2, 3, 3), group=2, auto_pad="SAME_UPPER")
        b("Add", same)
        b("MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=0)
        b("AveragePool", kernel_shape=[2, 2], pads=[1, 1, 0, 0], count_include_pad=1)
        b("Flatten", axis=1)
        b("Gemm", weights(rng, 3, 64), weights(rng, 3), transB=1)
        return b.model()

    def shapes():
        b = Builder(["n", 3, 6, 6], opset=18)
        b("Pad", np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect")
        b("Slice", np.array([0, 1]), np.array([7, 8]), np.array([2, 3]), np.array([1, 1]))
        b("Transpose", perm=[0, 2, 3, 1])
        b("Transpose", perm=[0, 3, 1, 2])
        b("ReduceMean", np.array([2, 3]), keepdims=0)
        b("Unsqueeze", np.array([2]))
        b("Squeeze", np.array([2]))
        b("Reshape", np.array([0, -1]))
        b("Gather", np.array([0, 2, 1]), axis=1)
        b("MatMul", weights(rng, 3, 4))
        return b.model()

    def functions():
        b = Builder(["n", 4, 4, 4], opset=20)
        b.node("Mul", ["x", b("Sigmoid")])
        average = b("GlobalAveragePool")
        b.node("Concat", [average, b.node("GlobalMaxPool", ["x"])], axis=1)
        b("Reshape", np.array([-1, 8]))
        b("Gemm", weights(rng, 8, 5))
        b("Gelu", approximate="tanh")
        b("Elu", alpha=0.5)
        b("HardSigmoid", alpha=0.2, beta=0.5)
        b("PRelu", np.array([0.2], np.float32))
        b("Gemm", weights(rng, 5, 3), beta=1.0)
        b("ArgMax", axis=1, keepdims=0)
        return b.model(kinds=[TensorProto.INT64])

    def parts():
        b = Builder(["n", 6])
        b.nodes.append(helper.make_node("Split", ["x"], ["one", "two"], "split", axis=1))
        b.node("Sub", ["one", "two"])
        values = b("Concat", "one", axis=-1)
        b.node("MatMul", [values, b.node("Constant", [], value=numpy_helper.from_array(weights(rng, 6, 3)))])
        b("Dropout")
        b("Tanh")
        b("Cast", to=TensorProto.FLOAT)
        b("Mul", np.array(2, np.float32))
        b("Max", np.array(0, np.float32))
        b("Sum", np.ones(3, np.float32))
        b("Expand", np.array([1, 3]))
        b("LogSoftmax", axis=1)
        return b.model()

    def computed():
        b = Builder(["n", 3, 4], opset=12)
        b("Flatten")
        values = b("Einsum", weights(rng, 12, 4), equation="bk,kn->bn")
        b.node("Gather", [b.node("Shape", ["x"]), np.array(0)], axis=0)
        b("Unsqueeze", axes=[0])
        b("Concat", np.array([4]), axis=0)
        b.node("Reshape", [values, b.last])
        b("ReduceSum", axes=[1], keepdims=1)
        b("Relu")
        return b.model()

    models = [make() for make in (dense, image, shapes, functions, parts, computed)]
    for model in models:  # ONNX needs the rank of the output
        output = model.graph.output[0]
        output.CopyFrom(onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph.output[0])
        if not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.dim.add()
            output.type.tensor_type.shape.dim.add()
    return models


def _draw(rng, values):
    return values[int(rng.integers(len(values)))]


def _with_attributes(model):
    return [node for node in model.graph.node if node.attribute]


def _set(node, name, value):
    rest = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*rest, *([] if value is None else [helper.make_attribute(name, value)])])
    return f"{node.op_type}: {name} = {value}"


def _attribute(model, rng):
    return _set(
        _draw(rng, model.graph.node),
        _draw(rng, _ATTRIBUTES),
        _draw(rng, (0, 1, -1, 7, 1.5, [1, 1], [2, 2, 2], "SAME", "VALID", "x", [0.5])),
    )


def _value(model, rng):
    node = _draw(rng, _with_attributes(model))
    attribute = _draw(rng, node.attribute)
    old, value = helper.get_attribute_value(attribute), None
    if attribute.type == AttributeProto.INT:
        value = _draw(rng, (0, 1, -1, 2, 3, -2, 5, -5, 100, 1 << 40))
    elif attribute.type == AttributeProto.INTS:
        place = int(rng.integers(len(old)))
        value = (
            _draw(
                rng,
                (
                    [*old, 1],
                    old[:-1],
                    [*old[:place], _draw(rng, (0, -1, 5, 9, -7, 2)), *old[place + 1 :]],
                    [old[-1], *old[1:]],
                    [one + 1 for one in old],
                ),
            )
            or None
        )
    elif attribute.type == AttributeProto.STRING:
        value = _draw(rng, _WORDS)
    elif attribute.type == AttributeProto.FLOAT:
        value = _draw(rng, (0.0, -1.0, float("nan"), 1e30, 2.0))
    return _set(node, attribute.name, value)


def _operator(model, rng):
    node = _draw(rng, model.graph.node)
    node.op_type = _draw(rng, _OPERATORS)
    return f"operator {node.op_type}"


def _names(model):
    return [
        "x",
        "",
        "nothing",
        *(tensor.name for tensor in model.graph.initializer),
        *(name for node in model.graph.node for name in node.output),
    ]


def _inputs(model, rng):
    node, number = _draw(rng, model.graph.node), int(rng.integers(3))
    if number == 0 and node.input:
        node.input.pop()
    elif number == 1 and node.input:
        node.input[int(rng.integers(len(node.input)))] = _draw(rng, _names(model))
    else:
        node.input.append(_draw(rng, _names(model)))
    return f"{node.op_type} of {', '.join(node.input)}"


def _output(model, rng):
    node = _draw(rng, model.graph.node)
    node.output[0] = _draw(rng, _names(model))
    return f"{node.op_type} makes {node.output[0]}"


def _versions(model, rng):
    if rng.random() < 0.3:
        model.ir_version = _draw(rng, (0, 1, 2, 3, 4, 10, 99))
    elif rng.random() < 0.3:
        model.opset_import.add(domain=_draw(rng, ("", "ai.onnx", "x.y")), version=_draw(rng, (1, 13, 99)))
    else:
        model.opset_import[0].version = _draw(rng, (*range(5, 23), 99))
    return f"IR {model.ir_version}, opset {', '.join(str(entry.version) for entry in model.opset_import)}"


def _tensor(model, rng):
    tensor = _draw(rng, model.graph.initializer)
    array = numpy_helper.to_array(tensor)
    number = int(rng.integers(6))
    if number == 0:
        array = array.astype(_draw(rng, (np.int32, np.int64, np.float64, np.float16, np.uint8, bool)))
    elif number == 1:
        array = _draw(rng, (array.reshape(-1), array[None], array.T, array[..., :-1] if array.ndim else array[None]))
    elif number == 2 and array.dtype == np.int64:
        array = array.copy()
        array.reshape(-1)[int(rng.integers(array.size))] = _draw(rng, (0, -1, 1, 2, 3, 5, 9, -2, -9))
    if number < 3:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), tensor.name))
    elif number == 3:
        tensor.raw_data = tensor.raw_data[:-1] if rng.random() < 0.5 else tensor.raw_data + bytes(4)
    elif number == 4 and tensor.dims:
        tensor.dims[0] = _draw(rng, (-1, 0, 1, 7))
    else:
        model.graph.initializer.add().CopyFrom(tensor)
    return f"initialiser {tensor.name} of {list(tensor.dims)}, {len(tensor.raw_data)} bytes"


def _interface(model, rng):
    graph, number = model.graph, int(rng.integers(4))
    if number == 0:
        graph.output.add().CopyFrom(graph.output[0])
    elif number == 1:
        nodes = list(graph.node)
        one, two = rng.integers(len(nodes), size=2)
        nodes[one], nodes[two] = nodes[two], nodes[one]
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(nodes)
    elif number == 2:
        graph.output[0].type.tensor_type.elem_type = _draw(rng, (0, 1, 7, 11, 99))
    else:
        tensor = _draw(rng, graph.initializer)
        graph.input.append(helper.make_tensor_value_info(tensor.name, _draw(rng, (1, 7)), list(tensor.dims)))
    return "interface"


MUTATIONS = (_attribute,) * 2 + (_value, _tensor) * 3 + (_inputs,) * 2 + (_operator, _output, _versions, _interface)


def mutate(model, rng):
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    while True:
        change = _draw(rng, MUTATIONS)
        if change is not _tensor or copy.graph.initializer:
            return copy, change(copy, rng)
