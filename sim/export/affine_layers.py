"""Layers `x * scale + shift` of an ONNX model, such as BatchNormalization, in the form of weights that the core trains.

Behind a convolution or a dense layer, the scale is multiplied into the weights, and the bias becomes part of the shift. A layer
elsewhere becomes a depthwise convolution of one position.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Affine", "Fold", "fold_affine"]


@dataclass(frozen=True)
class Affine:
    """A layer in an ONNX model: a Mul and an Add, whose constants have the rank of the layer's input."""

    scale: str  # initializer
    shift: str  # initializer
    axis: int  # axis of the channels
    is_apart: bool = False  # never combined with weights


@dataclass(frozen=True)
class Fold:
    """A layer that was combined with weights. The model has `weights * factor` and `shift + scale * bias` in their place."""

    layer: Affine
    weights: str  # initializer
    bias: str | None  # initializer that the model has no longer
    factor: np.ndarray  # the scale, in the shape of the weights


def fold_affine(model, layers, keeps=lambda name: False):
    """Rewrites layers in an onnx.ModelProto. Returns the :class:`Fold` of each layer that was combined with weights. A layer in
    another form than :class:`Affine` stays as it is.

    Parameters
    ----------
    layers : list of Affine
    keeps : callable
        `keeps(name)` returns True for initializers whose values must not change.
    """
    graph = _Graph(model.graph)
    return [fold for layer in layers if graph.has(layer) for fold in graph.rewrite(layer, keeps)]


class _Graph:
    def __init__(self, graph):
        self.graph = graph
        self.tensors = {one.name: one for one in graph.initializer}
        self._combined = set()  # weights with a scale; they take one
        self._index()

    def _index(self):
        self.makers = {name: node for node in self.graph.node for name in node.output}
        self.readers = Counter(name for node in self.graph.node for name in node.input)
        self.readers.update(one.name for one in self.graph.output)

    def has(self, layer):
        """Returns True if a Mul, read by an Add alone, has the constants of the layer, and no other operator has them."""
        times, plus = self._reader(layer.scale), self._reader(layer.shift)
        return bool(
            times and plus and (times.op_type, plus.op_type) == ("Mul", "Add") and self._maker(plus, layer.shift) is times
        )

    def _reader(self, name):
        return next(node for node in self.graph.node if name in node.input) if self.readers[name] == 1 else None

    def _maker(self, node, constant):
        """Returns the node that computes the other operand for this node alone, or None."""
        name = _other(node, constant)
        return self.makers.get(name) if self.readers[name] == 1 else None

    def _array(self, name):
        return numpy_helper.to_array(self.tensors[name])

    def _put(self, name, array):
        self.tensors[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array, np.float32), name))

    def rewrite(self, layer, keeps):
        """Yields the :class:`Fold` of a layer, or replaces the layer by a depthwise convolution."""
        times = self._reader(layer.scale)
        weights, place, bias = self._weights(times, layer)
        if layer.is_apart or weights is None or self.readers[weights] != 1 or weights in self._combined or keeps(weights):
            self._add_depthwise(layer, times, self._reader(layer.shift))
        else:
            scale, kernel = self._array(layer.scale), self._array(weights)
            factor = np.broadcast_to(scale.reshape(-1, *[1] * (kernel.ndim - 1 - place)), kernel.shape)
            self._put(weights, kernel * factor)
            if bias:
                self._put(layer.shift, self._array(layer.shift) + scale * self._array(bias).reshape(scale.shape))
                self._remove_bias(bias)
            self._bypass(times, layer.scale)
            self._combined.add(weights)
            yield Fold(layer, weights, bias, factor)
        self._index()

    def _weights(self, times, layer):
        """Returns `(weights, axis, bias)`: initializers of the layer before, and the axis of the outputs in its weights. The name
        of the weights is None if there is no such layer."""
        node, axis, bias = self._maker(times, layer.scale), layer.axis, None
        rank = self._array(layer.scale).ndim
        while node is not None and (node.op_type in ("Transpose", "Add", "Identity") or _is_float(node)):
            constant = None
            if node.op_type == "Transpose":
                axis = helper.get_attribute_value(node.attribute[0])[axis] if node.attribute else rank - 1 - axis
            elif node.op_type == "Add" and (bias or not (bias := self._added(node, axis, rank))):
                return None, 0, None
            node = self._maker(node, bias if node.op_type == "Add" else constant)
        return (None, 0, None) if node is None else self._layer(node, axis, rank, bias)

    def _layer(self, node, axis, rank, bias):
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            return None, 0, None
        settings = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        is_upright = node.op_type == "Gemm" and settings.get("transB", 0) or node.op_type == "Conv"
        own = node.input[2] if len(node.input) > 2 and node.op_type != "MatMul" else ""
        kernel = node.input[1]
        is_known = (
            axis == (rank - 1 if node.op_type == "MatMul" else 1)
            and kernel in self.tensors
            and (node.op_type != "MatMul" or self._array(kernel).ndim == 2)
            and (node.op_type != "ConvTranspose" or settings.get("group", 1) == 1)
            and settings.get("alpha", 1) == settings.get("beta", 1) == 1
            and not (own and (bias or own not in self.tensors or self.readers[own] != 1))
        )
        return (kernel, 0 if is_upright else 1, own or bias) if is_known else (None, 0, None)

    def _added(self, node, axis, rank):
        """Returns the constant that an Add adds to each channel, or None."""
        for name in node.input:
            if name in self.tensors and self.readers[name] == 1 and self._array(name).ndim <= rank:
                shape = [1] * (rank - self._array(name).ndim) + [*self._array(name).shape]
                return name if all(size == 1 for place, size in enumerate(shape) if place != axis) else None
        return None

    def _remove_bias(self, name):
        node = self._reader(name)
        if node.op_type == "Add":
            self._bypass(node, name)
        else:
            del node.input[2:]
            self._remove(name)

    def _bypass(self, node, constant):
        """Removes a node with a constant operand. Its readers read its other operand."""
        for other in self.graph.node:
            other.input[:] = [_other(node, constant) if name == node.output[0] else name for name in other.input]
        self.graph.node.remove(node)
        self._remove(constant)

    def _remove(self, name):
        self.graph.initializer.remove(self.tensors.pop(name))

    def _add_depthwise(self, layer, times, plus):
        """Replaces a layer by a depthwise convolution over (batch, channels, positions, 1)."""
        rank, channels = self._array(layer.scale).ndim, self._array(layer.scale).size
        to_front = [0, layer.axis, *(axis for axis in range(1, rank) if axis != layer.axis)]
        place = list(self.graph.node).index(times)
        made, value, name = [], _other(times, layer.scale), plus.output[0]

        def add(kind, *inputs, **fields):
            made.append(
                helper.make_node(kind, [made[-1].output[0] if made else value, *inputs], [f"{name}, {len(made)}"], **fields)
            )

        def shape(*sizes):
            self.graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), f"{name}, shape {len(made)}"))
            return self.graph.initializer[-1].name

        if layer.axis != 1:
            add("Transpose", perm=to_front)
        if rank == 2:
            add("Reshape", shape(0, 0, 1, 1))
        elif rank == 3:
            add("Reshape", shape(0, 0, -1, 1))
        self._put(layer.scale, self._array(layer.scale).reshape(channels, 1, 1, 1))
        self._put(layer.shift, self._array(layer.shift).reshape(channels))
        add("Conv", layer.scale, layer.shift, kernel_shape=[1, 1], group=channels)
        if rank < 4:
            add("Reshape", shape(*([0, 0, -1][:rank])))
        if layer.axis != 1:
            add("Transpose", perm=[int(axis) for axis in np.argsort(to_front)])
        made[-1].output[0] = name
        self.graph.node.remove(plus)
        self.graph.node.remove(times)
        for offset, node in enumerate(made):
            self.graph.node.insert(place + offset, node)


def _other(node, constant):
    """Returns the operand of a node that is not the constant."""
    return next(name for name in node.input if name != constant)


def _is_float(node):
    return node.op_type == "Cast" and helper.get_attribute_value(node.attribute[0]) == TensorProto.FLOAT
