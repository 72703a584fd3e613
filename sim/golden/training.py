"""The definition of a training step: parameters and states after it, bit for bit.

A step depends on the batch, its order, and the state before it. It does not depend on the size of an array, on tiles or on
blocks. The rules are in :mod:`sim.golden.gradients` and :mod:`sim.golden.updates`.
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
    """Parameters and optimizer state, in the order of `TrainingGraph.parameters`.

    Parameters
    ----------
    masters : list of float32 array
    slots : list of dict of str to array
        Names and types are those in the optimizer's `slots`; the shapes equal the masters' shapes.
    steps : int
        Updates so far.
    """

    masters: list
    slots: list
    steps: int = 0


@dataclass(frozen=True, eq=False)
class StepResult:
    """The result of a training step.

    Parameters
    ----------
    state : TrainingState
        After the step.
    logits : float32 (batch, classes)
        In the model's order, by the weights before the step.
    loss : float
        Mean cross-entropy over the batch.
    gradients : list of float32 array
        Gradients of the parameters: sums over the batch.
    tensors : dict of str to bfloat16 (batch, height, width, channels)
        By name: the input, the results of stages, and D of the sums of stages (`SumsGradient.name`).
    indices : dict of int to uint8 array
        For stages with pooling, by number: the position of the largest in each window.
    slopes : dict of int to bfloat16 (batch, height, width, channels)
        For stages with a function by table, by number: its derivative at the sums, after pooling.
    """

    state: TrainingState
    logits: np.ndarray
    loss: float
    gradients: list
    tensors: dict = field(repr=False)
    indices: dict = field(repr=False)
    slopes: dict = field(repr=False)


def initial_state(graph, optimizer, masters=None):
    """Returns the state before the first step of a :class:`sim.ir.training.TrainingGraph`. `masters` default to its own
    parameters."""
    masters = [one.initial for one in graph.parameters] if masters is None else masters
    masters = [np.asarray(one, np.float32) + np.float32(0) for one in masters]  # no -0: passes would not keep its sign
    return TrainingState(masters, [new_slots(optimizer, one.shape) for one in masters])


def images(graph, state):
    """Returns the operands of the forward pass for each master: bfloat16 upper halves of weights, and float32 biases
    unchanged."""
    return [master if one.term is None else upper_half(master) for one, master in zip(graph.parameters, state.masters)]


def bound_graph(graph, state) -> Graph:
    """Returns the network, for inference, with the weights of a state."""
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
    """Returns targets, bfloat16 (batch, classes), for class numbers: `smoothing / classes` everywhere, plus 1 - smoothing at the
    label."""
    there = np.asarray(labels)[:, None] == np.arange(classes)
    return round_bfloat16((there * (1 - smoothing) + smoothing / classes).astype(np.float32))


def cross_entropy(logits, targets):
    """Returns the mean over the batch of `-sum of T log softmax(logits)`, in binary64."""
    values, shares = np.asarray(logits, np.float64), np.asarray(targets).astype(np.float64)
    with np.errstate(all="ignore"):
        values = values - values.max(axis=1, keepdims=True)
        losses = np.log(np.exp(values).sum(axis=1)) * shares.sum(axis=1) - (shares * values).sum(axis=1)
    return float(losses.mean())


def forward(graph, x, masks, sums):
    """Returns `(tensors, indices, slopes, logits)` of a network without Softmax: bfloat16 by name, uint8 and bfloat16 by stage
    number, float32 (batch, 1, 1, classes). Masks are bfloat16, by stage number."""
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
    """Runs one training step.

    Parameters
    ----------
    graph : sim.ir.training.TrainingGraph
    state : TrainingState
    optimizer : Sgd or Adam
        From :mod:`sim.ir.optimizers`.
    x : float32 or bfloat16 (batch, input size)
        Samples, in the model's order.
    targets : bfloat16 (batch, classes)
        In the order of the model's results; see :func:`one_hot`.
    rate : float
    masks : dict of int to bfloat16 (batch, height, width, channels), or None
        Factors of stages' results, by stage number; see :class:`sim.golden.dropout.Dropout`.
    sums : sim.golden.gradients.Sums or None
        None: the definition. :func:`sim.golden.compiled_sums.fastest_sums` gives the same bits.
    cores : int
        Cores of a ring. Each processes an equal share of the samples, in order; see :mod:`sim.golden.shards`.

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
    """Returns the :class:`sim.golden.table_lookup.Table` of the derivative of a stage's function.

    Raises
    ------
    sim.ir.errors.ModelError
        If no table can represent it; one line.
    """
    try:
        return table_of(Derivative(stage.function))
    except ValueError as error:
        raise ModelError(f"{stage.title or f'stage {stage.name!r}'}: {error}; replace the function by another") from None


def _stage_gradients(graph, bound, tensors, indices, slopes, last, masks, sums):
    """Returns D of the sums of all stages, by name."""
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
