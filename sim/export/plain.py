"""Conversion of a graph to a plain ONNX model, with Conv, Add, MaxPool, Flatten and activation functions."""

import numpy as np
from onnx import TensorProto, defs, helper, numpy_helper

from ..functions.functions import NONE
from ..ir.errors import ModelError
from ..ir.stage import span

__all__ = ["plain_model"]

_IR, _OPSET = 8, 13  # versions of 2021, which every ONNX reader supports


def plain_model(graph):
    """Returns the onnx.ModelProto of a graph. The stages of the graph must be sums, max pooling, and functions that have an
    ONNX operator. Raises ModelError if these operators cannot compute a function of the graph, or the order of its values. The
    message is one line.

    Weights are float32 with bfloat16 values. If the graph's own model ended with a Softmax, this model does too. If the input's
    values are in the order (channel, y, x), the input has the shape of the original model's input; otherwise its shape is
    (height, width, channels).
    """
    return _Writer(graph).model()


def _edges(have, count, stride, kernel, dilation, before):
    """Returns the padding before and after an axis of `have` positions, for `count` windows."""
    behind = span(count, stride, kernel, dilation) - before - have
    there = (have + before + max(0, behind) - span(1, stride, kernel, dilation)) // stride + 1
    return (before, max(0, behind)) if before >= 0 and there == count else None


class _Writer:
    def __init__(self, graph):
        self.graph, self.nodes, self.tensors = graph, [], []
        self.values = {}  # name of a tensor in the graph -> name of the tensor (batch, channels, height, width) in the ONNX model

    def model(self):
        entry = self._input()
        for number, stage in enumerate(self.graph.stages):
            self.values[stage.output] = self._stage(stage, f"stage{number}")
        result = self._output()
        graph = helper.make_graph(self.nodes, self.graph.name, [entry], [result], self.tensors)
        model = helper.make_model(
            graph, producer_name="amaranth-tpu", ir_version=_IR, opset_imports=[helper.make_opsetid("", _OPSET)]
        )
        if self.graph.preprocess:
            helper.set_model_props(model, {"preprocess": self.graph.preprocess})
        return model

    def _node(self, operator, inputs, name, **attributes):
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def _constant(self, array, name):
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _input(self):
        graph = self.graph
        tensor = graph.tensors[graph.input]
        height, width, channels = tensor.shape
        in_order = np.arange(graph.input_size)
        order = in_order if graph.input_order is None else graph.input_order
        channels_first = np.array_equal(order, in_order.reshape(channels, height, width).transpose(1, 2, 0).ravel())
        if not channels_first and not np.array_equal(order, in_order):
            raise ModelError("a plain ONNX model cannot express the order of its input's values")
        wanted = (channels, height, width) if channels_first else (height, width, channels)
        shape, value = tuple(graph.input_shape) or wanted, "input"
        if shape != wanted:
            value = self._node("Reshape", ["input", self._constant(np.array([-1, *wanted], np.int64), "shape")], "samples")
        if not channels_first:
            value = self._node("Transpose", [value], "image", perm=[0, 3, 1, 2])
        self.values[graph.input] = value
        return helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", *shape])

    def _output(self):
        graph = self.graph
        tensor = graph.tensors[graph.output]
        if (tensor.height, tensor.width) != (1, 1) or graph.output_order is not None:
            raise ModelError("its results are not one vector in order, which a plain ONNX model needs")
        result = self._node("Flatten", [self.values[graph.output]], "logits", axis=1)
        if graph.softmax:
            result = self._node("Softmax", [result], "probabilities", axis=1)
        return helper.make_tensor_value_info(result, TensorProto.FLOAT, ["batch", tensor.channels])

    def _stage(self, stage, name):
        whole = self.graph.tensors[stage.output]
        is_part = stage.result_size != (whole.height, whole.width)
        repeats = any(0 in term.stride for term in stage.terms)
        if stage.times or stage.softmax or self.graph.has_bias_rows(stage) or is_part or repeats:
            raise ModelError(f"'{stage.name}': cannot be written as sums, MaxPool and a function")
        bias = None if stage.start is None else self._constant(self.graph.constants[stage.start].reshape(-1), f"{name}.bias")
        value = None
        for number, term in enumerate(stage.terms):
            part = self._term(stage, term, bias if value is None else None, f"{name}.{number}")
            value = part if value is None else self._node("Add", [value, part], f"{name}.sum{number}")
        if stage.pool:
            value = self._pool(stage, value, f"{name}.pool")
        return value if stage.function == NONE else self._function(stage, value, name)

    def _function(self, stage, value, name):
        function, definition = stage.function, stage.function.definition
        if function.name == "clip":
            sides = zip(("low", "high"), function.parameters)
            limits = [self._constant(np.float32(limit), f"{name}.{side}") if np.isfinite(limit) else "" for side, limit in sides]
            return self._node("Clip", [value, *limits], f"{name}.clip")
        operator = definition.operator
        if not operator or not defs.has(operator, _OPSET, ""):
            raise ModelError(
                f"'{stage.name}': its function {function.name} is not an operator of opset {_OPSET}, which a plain ONNX model has"
            )
        attributes = dict(zip(definition.attributes, function.parameters))
        return self._node(operator, [value], f"{name}.{operator.lower()}", **attributes)

    def _term(self, stage, term, bias, name):
        source = self.graph.tensors[term.source]
        kernel = self.graph.kernel(term)
        if bias is None and _is_identity(stage, term, source, kernel):
            return self.values[term.source]
        edges = [
            _edges(have, count, stride, kernel, dilation, before)
            for have, count, stride, kernel, dilation, before in zip(
                (source.height, source.width), stage.size, term.stride, term.kernel, term.dilation, term.padding
            )
        ]
        if None in edges or term.copies:
            raise ModelError(f"'{stage.name}': reads only a part of its operand, or copies, which cannot be written as Conv")
        weights = self._constant(kernel.astype(np.float32).transpose(3, 2, 0, 1), f"{name}.weights")
        return self._node(
            "Conv",
            [self.values[term.source], weights, *([bias] if bias else [])],
            name,
            kernel_shape=list(term.kernel),
            strides=list(term.stride),
            dilations=list(term.dilation),
            pads=[edge[0] for edge in edges] + [edge[1] for edge in edges],
            group=term.groups,
        )

    def _pool(self, stage, value, name):
        pool = stage.pool
        edges = [_edges(*axis) for axis in zip(stage.size, pool.size, pool.stride, pool.window, pool.dilation, pool.padding)]
        if None in edges:
            raise ModelError(f"'{stage.name}': pools only a part of its sums, which cannot be written as MaxPool")
        return self._node(
            "MaxPool",
            [value],
            name,
            kernel_shape=list(pool.window),
            strides=list(pool.stride),
            dilations=list(pool.dilation),
            pads=[edge[0] for edge in edges] + [edge[1] for edge in edges],
        )


def _is_identity(stage, term, source, kernel):
    return (
        term.groups == source.channels == kernel.shape[3]
        and term.kernel == term.stride == (1, 1)
        and term.padding == (0, 0)
        and stage.size == (source.height, source.width)
        and (kernel == 1).all()
    )
