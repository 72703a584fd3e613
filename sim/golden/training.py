"""The definition of a training step, bit for bit: parameters and optimizer state after the step.

A step depends on the batch, its order, and the state before it. It does not depend on the size of an array, on tiles or on
blocks. :mod:`sim.autodiff.make_step` has the rules, and :mod:`sim.golden.steps` the arithmetic of a stage.

On a ring each core runs the step of its share of the samples, in order. The sums of gradients depend on the number of cores, but
all cores get the same parameters.
"""

import functools
from dataclasses import dataclass, field, replace

import numpy as np

from ..autodiff.make_step import make_step
from ..autodiff.network import step_network
from ..functions.derivatives import Derivative
from ..ir.errors import ModelError
from ..ir.graph import Graph
from .arithmetic import bfloat16, round_bfloat16
from .function_tables import table_of
from .ring import held_by
from .shards import shards_of
from .steps import run_step, segments_of, whole_of_segments
from .sums import upper_half

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
    "step_graph",
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
    tensors : dict of str to array (batch, height, width, channels)
        By name: the input, and all tensors of samples in :func:`step_graph`.
    """

    state: TrainingState
    logits: np.ndarray
    loss: float
    gradients: list
    tensors: dict = field(repr=False)


def initial_state(graph, optimizer, masters=None):
    """Returns the state before the first step of a :class:`sim.ir.training.TrainingGraph`. Default for `masters`: the parameters
    in the graph."""
    masters = [one.initial for one in graph.parameters] if masters is None else masters
    masters = [np.asarray(one, np.float32) + np.float32(0) for one in masters]  # + 0 removes -0, which the core cannot keep
    slots = [{name: np.zeros(one.shape, kind) for name, kind in optimizer.slots.items()} for one in masters]
    return TrainingState(masters, slots)


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


def forward(graph, x, sums=None):
    """Returns all tensors of a network, {name: (batch, height, width, channels)}. `sums` is as in :func:`step`."""
    values, _ = run_step(step_network(graph), {graph.input: graph.arrange_input(x)}, sums)
    return values


@functools.lru_cache(maxsize=4)
def step_graph(graph, optimizer, masked=(), cores=1):
    """Returns the :class:`sim.ir.step.StepGraph` of a training graph's step.

    Parameters
    ----------
    graph : sim.ir.training.TrainingGraph
    optimizer : Sgd or Adam
    masked : tuple of int
        Numbers of stages whose results have a mask.
    cores : int

    Raises
    ------
    sim.ir.errors.ModelError
        If a derivative does not fit a table; one line.
    """
    network = step_network(graph.graph, graph.parameters, masked)
    for stage in (graph.graph.stages[number] for number in graph.differentiated):
        if stage.function.is_table and stage.output in network.tensors:  # else it is part of a normalization
            slope_table(stage)
    return make_step(network, optimizer, cores)


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
    sums : sim.golden.sums.Sums or None
        Implementation of the long sums. Default: the definition. :func:`sim.golden.compiled_sums.fastest_sums` gives the same
        bits.
    cores : int
        Number of cores in the ring. Each processes an equal share of the samples, in order.

    Returns
    -------
    StepResult

    Raises
    ------
    ValueError
        If the batch cannot be split equally among the cores.
    """
    masks, shards, network = masks or {}, shards_of(len(x), cores), graph.graph
    made = step_graph(graph, optimizer, tuple(sorted(masks)), cores)
    x = x if x.dtype == bfloat16 else round_bfloat16(x)
    ordered = np.array(np.asarray(targets, bfloat16))
    if network.output_order is not None:
        ordered[:, network.output_order] = targets
    values = dict(zip(made.inputs, (network.arrange_input(x), *(masks[number] for number in sorted(masks)))))
    values[made.targets] = ordered.reshape(len(x), 1, 1, -1)
    factors = optimizer.factors(rate, len(x), state.steps + 1)
    values |= {tensor: np.full((1, 1, 1, 1), factors[name], bfloat16) for name, tensor in made.factors.items()}
    shared, kept = _kept(made, state, cores)
    tensors, own = run_step(made, values | shared, sums, kept, shards)
    masters, slots, gradients = [], [], []
    for name, one in zip(made.parameters, graph.parameters):
        whole = functools.partial(_whole, made, tensors, own, name, one.initial.shape)
        masters.append(whole(made.state[made.masters[name]]))
        slots.append({slot: whole(made.state[tensor]) for slot, tensor in made.slots[name].items()})
        gradients.append(whole(made.gradients[name]))
    logits = network.arrange_output(tensors[made.output])
    after = TrainingState(masters, slots, state.steps + 1)
    return StepResult(after, logits, cross_entropy(logits, targets), gradients, tensors)


def _kept(made, state, cores):
    """Returns the kept tensors of a step graph, (1, height, width, channels): the shared tensors, and each core's own."""
    shared, own = {}, [{} for _ in range(cores)]
    for name, master, slots in zip(made.parameters, state.masters, state.slots):
        shape, share = made.tensors[name].shape, made.tensors[made.masters[name]].channels
        arrays = {made.masters[name]: master} | {tensor: slots[slot] for slot, tensor in made.slots[name].items()}
        arrays = {tensor: array.reshape(1, *shape) for tensor, array in arrays.items()}
        if not made.is_shared(name):
            shared |= arrays
            continue
        shared[name] = upper_half(master).reshape(1, *shape)
        for tensor, array in arrays.items():
            parts = segments_of(array, cores, share)
            for rank, core in enumerate(own):
                core[tensor] = parts[held_by(rank, cores)]
    return shared, own


def _whole(made, tensors, own, name, shape, tensor):
    """Returns the tensor of a parameter, its slot or its gradient, from the share that each core has."""
    if made.is_shared(name):
        return whole_of_segments([values[tensor] for values in own], shape[-1]).reshape(shape)
    return (own[0][tensor] if tensor in own[0] else tensors[tensor]).reshape(shape)


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
