"""The definition of a training step, bit for bit: parameters and optimizer state after the step.

A step depends on the batch, the order of its samples, and the state before the step. It does not depend on the size of the array
or on tiles. The rules are in :mod:`sim.golden.gradients` and :mod:`sim.golden.updates`.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from ..functions.derivatives import Derivative
from ..ir.errors import ModelError
from ..ir.graph import Graph
from .arithmetic import bfloat16, round_bfloat16
from .function_tables import table_of
from .gradients import Sums, data_gradient, last_gradient, stage_gradient, upper_half
from .network import first_sums
from .shards import shards_of, summed
from .updates import new_slots, update

__all__ = [
    "TrainingState",
    "StepResult",
    "initial_state",
    "images",
    "bound_graph",
    "one_hot",
    "cross_entropy",
    "forward",
    "slope_table",
    "step",
]


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Parameters and optimizer state. Lists are in the order of `TrainingGraph.parameters`.

    Parameters
    ----------
    masters : list of float32 array
    slots : list of dict of str to array
        Optimizer state of each parameter. Names and types are those in the optimizer's `slots`; the shapes equal the masters'
        shapes.
    steps : int
        Number of updates so far.
    """

    masters: list
    slots: list
    steps: int = 0


@dataclass(frozen=True, eq=False)
class StepResult:
    """The results of one training step.

    Parameters
    ----------
    state : TrainingState
        Parameters and optimizer state after the step.
    logits : float32 (batch, classes)
        In the order of the model's outputs, computed with the weights before the step.
    loss : float
        Mean cross-entropy over the batch.
    gradients : list of float32 array
        Gradient of each parameter, summed over the batch.
    tensors : dict of str to bfloat16 (batch, height, width, channels)
        Tensors by name: the input, the results of stages, and the gradients D of the sums of stages (`SumsGradient.name`).
    indices : dict of int to uint8 array
        For each stage with pooling, by stage number: the position of the largest number in each window.
    slopes : dict of int to bfloat16 (batch, height, width, channels)
        For each stage with a function by table, by stage number: the function's derivative at the sums, after pooling.
    """

    state: TrainingState
    logits: np.ndarray
    loss: float
    gradients: list
    tensors: dict = field(repr=False)
    indices: dict = field(repr=False)
    slopes: dict = field(repr=False)


def initial_state(graph, optimizer, masters=None):
    """Returns the state before the first step of a :class:`sim.ir.training.TrainingGraph`. Default for `masters`: the parameters
    in the graph."""
    masters = [one.initial for one in graph.parameters] if masters is None else masters
    masters = [np.asarray(one, np.float32) + np.float32(0) for one in masters]  # + 0 removes -0, which the core cannot keep
    return TrainingState(masters, [new_slots(optimizer, one.shape) for one in masters])


def images(graph, state):
    """Returns the operands of the forward pass for each parameter: the bfloat16 upper halves of weights, and float32 biases
    unchanged."""
    return [master if one.term is None else upper_half(master) for one, master in zip(graph.parameters, state.masters)]


def bound_graph(graph, state) -> Graph:
    """Returns the network for inference, with the weights of a training state."""
    stages = list(graph.graph.stages)
    for one, values in zip(graph.parameters, images(graph, state)):
        stage = stages[one.stage]
        if one.term is None:
            stages[one.stage] = replace(stage, bias=values)
        else:
            terms = list(stage.terms)
            terms[one.term] = replace(terms[one.term], weights=values)
            stages[one.stage] = replace(stage, terms=tuple(terms))
    return replace(graph.graph, stages=tuple(stages))


def one_hot(labels, classes, smoothing=0.0):
    """Returns targets, bfloat16 (batch, classes), for class numbers. With label smoothing, each target is `smoothing / classes`,
    plus 1 - smoothing at the label."""
    there = np.asarray(labels)[:, None] == np.arange(classes)
    return round_bfloat16((there * (1 - smoothing) + smoothing / classes).astype(np.float32))


def cross_entropy(logits, targets):
    """Returns the mean of `-sum of T log softmax(logits)` over the batch, computed in binary64."""
    values, shares = np.asarray(logits, np.float64), np.asarray(targets).astype(np.float64)
    with np.errstate(all="ignore"):
        values = values - values.max(axis=1, keepdims=True)
        losses = np.log(np.exp(values).sum(axis=1)) * shares.sum(axis=1) - (shares * values).sum(axis=1)
    return float(losses.mean())


def forward(graph, x, masks, sums):
    """Computes the forward pass of a network without Softmax. `masks` are bfloat16, by stage number.

    Returns `(tensors, indices, slopes, logits)`: bfloat16 tensors by name, uint8 pooling indices and bfloat16 slopes by stage
    number, and float32 logits (batch, 1, 1, classes).
    """
    tensors, indices, slopes = {graph.input: graph.arrange_input(x)}, {}, {}
    for number, stage in enumerate(graph.stages):
        values = first_sums(stage, len(x))
        for term in stage.terms:
            values = sums.add_term(values, tensors[term.source], term)
        rectified = stage.function.name == "relu"
        if stage.pool:
            values, indices[number] = sums.pool(values, stage.pool, rectified)
        if number == len(graph.stages) - 1:
            return tensors, indices, slopes, values
        if stage.function.is_table:
            result = sums.looked_up(values, table_of(stage.function))
            slopes[number] = sums.looked_up(values, slope_table(stage))
        else:
            result = sums.rounded(values, rectified)
        if number in masks:
            result = sums.product(result, masks[number])
        tensors[stage.output] = result


def step(graph, state, optimizer, x, targets, rate, masks=None, sums=None, cores=1):
    """Computes one training step.

    Parameters
    ----------
    graph : sim.ir.training.TrainingGraph
    state : TrainingState
    optimizer : Sgd or Adam
        From :mod:`sim.ir.optimizers`.
    x : float32 or bfloat16 (batch, input size)
        Samples, in the order of the model's input.
    targets : bfloat16 (batch, classes)
        In the order of the model's outputs; see :func:`one_hot`.
    rate : float
    masks : dict of int to bfloat16 (batch, height, width, channels), or None
        Dropout masks of stages' results, by stage number; see :class:`sim.golden.dropout.Dropout`.
    sums : sim.golden.gradients.Sums or None
        Implementation of the long sums. Default: the definition. :func:`sim.golden.compiled_sums.fastest_sums` gives the same
        bits.
    cores : int
        Number of cores in the ring. Each processes an equal share of the samples, in order; see :mod:`sim.golden.shards`.

    Returns
    -------
    StepResult

    Raises
    ------
    ValueError
        If the batch cannot be split equally among the cores.
    """
    sums, masks, shards = sums or Sums(), masks or {}, shards_of(len(x), cores)
    x = x if x.dtype == bfloat16 else round_bfloat16(x)
    bound = bound_graph(graph, state)
    tensors, indices, slopes, logits = forward(bound, x, masks, sums)
    classes = logits.shape[3]
    of_last = np.array(np.asarray(targets, bfloat16))
    if bound.output_order is not None:
        of_last[:, bound.output_order] = targets
    last = last_gradient(logits.reshape(-1, classes), of_last)
    tensors |= _stage_gradients(graph, bound, tensors, indices, slopes, last, masks, sums)
    gradients = [_parameter_gradient(graph, one, tensors, sums, shards) for one in graph.parameters]
    factors = optimizer.factors(rate, len(x), state.steps + 1)
    updated = [
        update(optimizer, factors, one.term is not None, master, slots, gradient, sums)
        for one, master, slots, gradient in zip(graph.parameters, state.masters, state.slots, gradients)
    ]
    after = TrainingState([master for master, _ in updated], [slots for _, slots in updated], state.steps + 1)
    logits = bound.arrange_output(logits)
    return StepResult(after, logits, cross_entropy(logits, targets), gradients, tensors, indices, slopes)


def slope_table(stage):
    """Returns the :class:`sim.golden.table_lookup.Table` for the derivative of a stage's activation function.

    Raises
    ------
    sim.ir.errors.ModelError
        If no table can represent the derivative. The message is one line.
    """
    try:
        return table_of(Derivative(stage.function))
    except ValueError as error:
        raise ModelError(f"{stage.title or f'stage {stage.name!r}'}: {error}; replace the function by another") from None


def _stage_gradients(graph, bound, tensors, indices, slopes, last, masks, sums):
    """Computes D, the gradient of the sums, for every stage. Returns the gradients by name."""
    gradients = {}
    for one in graph.gradients:
        if not one.terms:
            gradients[one.name] = last.reshape(len(last), 1, 1, -1)
            continue
        whole = data_gradient(graph, one, gradients, lambda part: bound.stages[part.stage].terms[part.term].weights, sums)
        number, stage = one.stage, bound.stages[one.stage]
        gradients[one.name] = stage_gradient(
            stage, whole, tensors[stage.output], indices.get(number), masks.get(number), sums, slopes.get(number)
        )
    return gradients


def _parameter_gradient(graph, parameter, tensors, sums, shards):
    name, is_bias = next(one.name for one in graph.gradients if one.stage == parameter.stage), parameter.term is None
    parts = [tensors[name][shard] for shard in shards]
    if is_bias:
        gradients = [sums.bias_gradient(part) for part in parts]
    else:
        term = graph.graph.stages[parameter.stage].terms[parameter.term]
        values = tensors[term.source]
        gradients = [sums.weight_gradient(values[shard], term, part) for shard, part in zip(shards, parts)]
    return summed(gradients, is_bias, sums) if len(shards) > 1 else gradients[0]
