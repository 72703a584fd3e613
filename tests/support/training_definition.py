"""A training step, written a second time: loops over stages and parameters, without a graph of the step.

:func:`defined_step` matches :func:`sim.golden.training.step` bit for bit, for the operators that it supports.
"""

from dataclasses import dataclass, field

import numpy as np

from amaranth_tpu.sim.autodiff.rings import segment_outputs
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.golden.function_tables import table_of
from amaranth_tpu.sim.golden.ring import ring_sum
from amaranth_tpu.sim.golden.shards import shards_of
from amaranth_tpu.sim.golden.softmax import softmax
from amaranth_tpu.sim.golden.step_graph import slope_table
from amaranth_tpu.sim.golden.sums import Sums, scaled, upper_half
from amaranth_tpu.sim.golden.training import TrainingState, bound_graph
from amaranth_tpu.sim.golden.windows import Convolution
from amaranth_tpu.sim.ir.inverse_root import InverseRoot
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from reverse_graph import reverse_graph
from second_network import convolution, first_sums


@dataclass(frozen=True, eq=False)
class DefinedStep:
    """The state after a step, logits float32 (batch, classes), gradients of parameters, and tensors by name: results and
    gradients of sums."""

    state: TrainingState
    logits: np.ndarray
    gradients: list
    tensors: dict = field(repr=False)


def last_gradient(logits, targets):
    """Returns D of the last stage's sums, bfloat16 (batch, classes): P - T, for float32 logits and bfloat16 targets (batch,
    classes)."""
    bits = np.ascontiguousarray(logits).view(np.uint32)
    probabilities = np.asarray(softmax(bits)).view(bfloat16)
    return round_bfloat16(scaled(probabilities.astype(np.float32), targets, np.full(targets.shape, -1, bfloat16)))


def data_gradient(graph, one, gradients, weights, sums):
    """Returns the gradient of a tensor, bfloat16 (batch, height, width, channels), from the gradients of its readers' sums.

    Parameters
    ----------
    graph : reverse_graph.ReverseGraph
    one : reverse_graph.SumsGradient
        For the stage that writes the tensor.
    gradients : dict of str to bfloat16 (batch, height, width, channels)
        D of the readers.
    weights : function of a GradientTerm
        Returns the weights of its reader, bfloat16.
    sums : Sums
    """
    stage = graph.graph.stages[one.stage]
    total = None
    for part in one.terms:
        source, (down, across) = gradients[part.source], graph.stretch(part)
        if total is None:
            total = np.zeros((len(source), *stage.result_size, graph.graph.channels(stage)), np.float32)
        if (down, across) != (1, 1):
            batch, height, width, channels = source.shape
            apart = np.zeros((batch, (height - 1) * down + 1, (width - 1) * across + 1, channels), bfloat16)
            apart[:, ::down, ::across] = source
            source = apart
        total = sums.add_term(total, source, graph.mirrored(part, weights(part)))
    return sums.rounded(total)


def stage_gradient(stage, gradient, result, index, mask, sums, slope=None):
    """Returns D of a stage's sums from the gradient of its result. The gradient is multiplied by the dropout mask, and by the
    slope of a function by table. With ReLU, it is kept where the result is above 0. With pooling, it is kept at the largest
    position of each window.

    Parameters
    ----------
    gradient, result : bfloat16 (batch, height, width, channels)
    index : uint8 (batch, height, width, channels) or None
        Only of a stage with pooling.
    mask, slope : bfloat16 (batch, height, width, channels) or None
    """
    for factor in (mask, slope):
        if factor is not None:
            gradient = sums.product(gradient, factor)
    if stage.pool:
        return sums.spread(gradient, index, stage.pool, stage.sums_size)
    if stage.function.name == "relu":
        return sums.kept(gradient, result)
    return gradient


def update(optimizer, factors, decays, master, slots, gradient, sums):
    """Returns `(master, slots)` after an update.

    Parameters
    ----------
    factors : dict
        From `optimizer.factors`.
    decays : bool
        True if weight decay applies to the parameter. It applies to weights, not to biases.
    master, gradient : float32 array
    slots : dict of str to array of the same shape
    sums : sim.golden.sums.Sums
    """
    if not decays or not factors["decay"]:
        factors = {**factors, "decay": None}
    rule = {Sgd: _sgd, Adam: _adam}[type(optimizer)]
    return rule(factors, master, slots, gradient, sums)


def _sgd(factors, master, slots, gradient, sums):
    total = sums.scaled(gradient, slots["momentum"], factors["momentum"])
    if factors["decay"] is not None:
        total = sums.scaled(total, upper_half(master), factors["decay"])
    momentum = sums.rounded(total)
    return sums.scaled(master, momentum, factors["rate"]), {"momentum": momentum}


def _adam(factors, master, slots, gradient, sums):
    rounded = sums.rounded(gradient)
    square = sums.product(rounded, rounded)
    first = sums.rounded(sums.scaled(gradient, slots["first"], factors["first"]))
    second = sums.scaled(slots["second"], upper_half(slots["second"]), factors["moved"])
    second = sums.scaled(second, square, factors["square"])
    beyond = sums.scaled(np.zeros(second.shape, np.float32), upper_half(second), factors["beyond"])
    step = sums.product(sums.product(first, _inverse_root(sums, second)), _inverse_root(sums, beyond))
    master_next = sums.scaled(master, step, factors["rate"])
    if factors["decay"] is not None:
        master_next = sums.scaled(master_next, upper_half(master), factors["decay"])
    return master_next, {"first": first, "second": second}


def summed(shards, is_bias, sums):
    """Returns the gradient of a parameter, float32, from the gradients of the cores' shards.

    Parameters
    ----------
    shards : list of float32 array
        One per core; outputs are the last axis.
    is_bias : bool
    sums : sim.golden.sums.Sums
    """
    cores, outputs = len(shards), shards[0].shape[-1]
    each = outputs if is_bias else segment_outputs(outputs, cores)
    segments = [slice(first, first + each) for first in range(0, outputs, each)]
    parts = [ring_sum([shard[..., part] for shard in shards], number, sums.added) for number, part in enumerate(segments)]
    return np.concatenate(parts, axis=-1)


def forward(graph, x, masks, sums):
    """Returns `(tensors, indices, slopes, logits)` of a network without Softmax: bfloat16 by name, uint8 and bfloat16 by stage
    number, float32 (batch, 1, 1, classes). Masks are bfloat16, by stage number."""
    tensors, indices, slopes = {graph.input: graph.arrange_input(x)}, {}, {}
    for number, stage in enumerate(graph.stages):
        values = first_sums(graph, stage, len(x))
        for term in stage.terms:
            values = sums.add_term(values, tensors[term.source], convolution(graph, term))
        rectified = stage.function.name == "relu"
        if stage.pool:
            values, indices[number] = sums.pool(values, stage.pool, rectified)
        if number == len(graph.stages) - 1:
            return tensors, indices, slopes, values
        if stage.function.is_table:
            result = sums.looked_up(values, table_of(stage.function))
            slopes[number] = sums.looked_up(sums.rounded(values, False).astype(np.float32), slope_table(stage))
        else:
            result = sums.rounded(values, rectified)
        if number in masks:
            result = sums.product(result, masks[number])
        tensors[stage.output] = result


def defined_step(training, state, optimizer, x, targets, rate, masks=None, sums=None, cores=1):
    """Runs one training step; see :func:`sim.golden.training.step`."""
    graph, sums, masks, shards = reverse_graph(training), sums or Sums(), masks or {}, shards_of(len(x), cores)
    x = x if x.dtype == bfloat16 else round_bfloat16(x)
    bound = bound_graph(training, state)
    tensors, indices, slopes, logits = forward(bound, x, masks, sums)
    classes = logits.shape[3]
    of_last = np.array(np.asarray(targets, bfloat16))
    if bound.output_order is not None:
        of_last[:, bound.output_order] = targets
    last = last_gradient(logits.reshape(-1, classes), of_last)
    tensors |= _stage_gradients(graph, bound, tensors, indices, slopes, last, masks, sums)
    gradients = [_parameter_gradient(graph, name, tensors, sums, shards) for name in training.parameters]
    factors = optimizer.factors(rate, len(x), state.steps + 1)
    updated = [
        update(optimizer, factors, one.decays, master, slots, gradient, sums)
        for one, master, slots, gradient in zip(training.parameters.values(), state.masters, state.slots, gradients)
    ]
    after = TrainingState([master for master, _ in updated], [slots for _, slots in updated], state.steps + 1)
    return DefinedStep(after, bound.arrange_output({bound.output: logits}), gradients, tensors)


def _stage_gradients(graph, bound, tensors, indices, slopes, last, masks, sums):
    gradients = {}
    for one in graph.gradients:
        if not one.terms:
            gradients[one.name] = last.reshape(len(last), 1, 1, -1)
            continue
        whole = data_gradient(graph, one, gradients, lambda part: bound.kernel(bound.stages[part.stage].terms[part.term]), sums)
        number, stage = one.stage, bound.stages[one.stage]
        gradients[one.name] = stage_gradient(
            stage, whole, tensors[stage.output], indices.get(number), masks.get(number), sums, slopes.get(number)
        )
    return gradients


def _parameter_gradient(graph, parameter, tensors, sums, shards):
    is_bias, shape = not graph.graph.parameters[parameter].decays, graph.graph.tensors[parameter].shape
    number = next(number for number, stage in enumerate(graph.graph.stages) if parameter in stage.operands)
    name = next(one.name for one in graph.gradients if one.stage == number)
    parts = [tensors[name][shard] for shard in shards]
    if is_bias:
        gradients = [sums.bias_gradient(part).reshape(shape) for part in parts]
    else:
        term = next(term for term in graph.graph.stages[number].terms if term.weights == parameter)
        values, kernel = tensors[term.source], np.broadcast_to(bfloat16(0), (*term.kernel, *shape[1:]))
        term = Convolution(kernel, term.stride, term.dilation, term.padding, term.groups)
        gradients = [sums.weight_gradient(values[shard], term, part).reshape(shape) for shard, part in zip(shards, parts)]
    return summed(gradients, is_bias, sums) if len(shards) > 1 else gradients[0]


def _inverse_root(sums, values):
    return sums.looked_up(values, table_of(InverseRoot()))
