"""Dropout at any tensor of a model: where a framework drops values, and masks as inputs of the core."""

import re
from dataclasses import dataclass, replace

import onnx
from onnx import TensorProto, helper

from ..export.recurrent_biases import ADDED
from ..frontend.inputs import in_training_form
from ..ir.errors import ModelError

__all__ = ["MaskedModel", "dropout_rate", "drops_of", "with_masks", "with_values"]

_MASK = "dropout of "
_LEFT_OUT = ("Constant", "Dropout", "Identity")
#: PyTorch's exporter leaves out the dropout of attention, but notes the operator that it replaces.
_ATTENTION = re.compile(r"scaled_dot_product_attention\.default\]\(args = \((?:[^,]+, ){4}([0-9.e-]+)")


def drops_of(training, model):
    """Returns `{tensor of the model: dropout rate}`, from an export of the same object in training mode. Returns None if the two
    exports have other operators."""
    nodes, others, rates, place = _operators(training), _operators(model), {}, {}
    if [one.op_type for one in nodes] != [one.op_type for one in others]:
        return None
    for one, other in zip(nodes, others):
        place |= dict(zip(one.output, other.output))
        noted = " ".join(entry.value for entry in one.metadata_props)
        if one.op_type == "Softmax" and (found := _ATTENTION.search(noted)) and float(found[1]):
            rates[other.output[0]] = float(found[1])
    place |= {one.name: other.name for one, other in zip(training.graph.input, model.graph.input)}
    numbers = {one.name: onnx.numpy_helper.to_array(one) for one in training.graph.initializer}
    for node in training.graph.node:
        if node.op_type in ("Dropout", "Identity"):
            place[node.output[0]] = place[node.input[0]] if node.input[0] in place else node.input[0]
        if node.op_type == "Dropout":
            rate = float(numbers[node.input[1]]) if len(node.input) > 1 and node.input[1] in numbers else 0.5
            tensor = place[node.input[0]]
            if tensor in rates:
                return None
            rates[tensor] = rate
    return {tensor: rate for tensor, rate in rates.items() if rate}


def _operators(model):
    """Returns the nodes that compute, in order, without nodes that a :class:`.Source` added."""
    return [one for one in model.graph.node if one.op_type not in _LEFT_OUT and one.name and not one.name.endswith(ADDED)]


@dataclass(frozen=True)
class MaskedModel:
    """A model whose last inputs are masks, one for each of `rates`, `{tensor: rate}`."""

    model: onnx.ModelProto
    rates: dict

    def network(self, network):
        """Returns the loaded network with masks that are no part of a sample, and the rates for :class:`.Dropout`."""
        inputs = network.origin.inputs[: -len(self.rates) or None]
        rates = {_MASK + tensor: rate for tensor, rate in self.rates.items()}
        feeds = tuple(feed for feed in network.feeds if feed.tensor not in rates)
        rates = tuple((feed.tensor, rates[feed.tensor]) for feed in network.feeds if feed.tensor in rates)
        shape = inputs[0].shape if len(inputs) == 1 else (inputs[-1].place.stop,)
        fields = {"feeds": feeds, "masks": tuple(name for name, _ in rates), "input_shape": shape}
        return replace(network.copied(), origin=replace(network.origin, inputs=inputs), **fields), rates


def with_masks(model, rates, title):
    """Returns the :class:`MaskedModel` of a model with a product by a mask at tensors, `{tensor: rate}`. Raises ModelError."""
    made = in_training_form(model)
    graph = made.graph
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    known = {one.name: one.type.tensor_type for one in (*inferred.value_info, *inferred.input, *inferred.output)}
    batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for tensor in rates:
        dims = [one.dim_value or one.dim_param for one in known[tensor].shape.dim] if tensor in known else []
        if dims.count(batch) != 1 or not all(isinstance(one, int) for one in dims if one != batch):
            raise ModelError(
                f"{title}: it drops values of {tensor!r}, without an axis of the samples; give fit the argument `dropout`"
            )
        _add_mask(graph, tensor, dims, dims.index(batch))
    return MaskedModel(made, rates)


def with_values(model, other):
    """Returns a copy of an onnx.ModelProto with the initializers of another one that has all of their names."""
    made, values = onnx.ModelProto(), {one.name: one for one in other.graph.initializer}
    made.CopyFrom(model)
    for one in made.graph.initializer:
        one.CopyFrom(values[one.name])
    return made


def _add_mask(graph, tensor, dims, axis):
    """Multiplies a tensor by an input, whose first axis is the batch."""
    mask, before = _MASK + tensor, f"{tensor}, before dropout"
    shape = [dims[axis], *dims[:axis], *dims[axis + 1 :]]
    graph.input.append(helper.make_tensor_value_info(mask, TensorProto.FLOAT, shape))
    makers = [place for place, node in enumerate(graph.node) if tensor in node.output]
    result, made, factor = tensor, [], mask
    for place in makers:
        graph.node[place].output[:] = [before if name == tensor else name for name in graph.node[place].output]
    if not makers:  # an input of the model
        before, result = tensor, f"{tensor}, dropped"
        for node in graph.node:
            node.input[:] = [result if name == tensor else name for name in node.input]
    if axis:
        factor = f"{mask}, transposed"
        perm = [place + 1 if place < axis else 0 if place == axis else place for place in range(len(dims))]
        made.append(helper.make_node("Transpose", [mask], [factor], factor, perm=perm))
    made.append(helper.make_node("Mul", [before, factor], [result], f"{mask}, product"))
    for offset, node in enumerate(made):
        graph.node.insert((makers[0] + 1 if makers else 0) + offset, node)


def dropout_rate(title, layers, elsewhere=False):
    """Returns the dropout rate of a network, 0 without Dropout. If the network drops other values than the hidden dense layers of
    :class:`sim.golden.dropout.Dropout`, returns the ModelError if they cannot be found.

    Parameters
    ----------
    title : str
        Name of the object for messages.
    layers : list of str or float
        Layers in order: "dense" or "other" for a layer with weights, and the rate of a Dropout layer.
    elsewhere : bool
        True if other parts drop values, too, such as attention.
    """
    after, rates, weighted = [], {one for one in layers if not isinstance(one, str)} - {0}, 0
    for one in layers:
        if isinstance(one, str):
            weighted += 1
        elif one:
            after.append(weighted - 1)
    kinds = [one for one in layers if isinstance(one, str)]
    dense = [number for number, kind in enumerate(kinds[:-1]) if kind == "dense"]
    if not rates and not elsewhere:
        return 0.0
    if elsewhere or len(rates) > 1 or after != (dense or [len(kinds) - 2]):
        found = f"its Dropout layers, of rate {', '.join(f'{rate:g}' for rate in sorted(rates))}, drop" if rates else "it drops"
        return ModelError(
            f"{title}: the tensors that {found} are not found in its export; give fit the argument `dropout`, one rate for the "
            "hidden dense layers"
        )
    return float(rates.pop())
