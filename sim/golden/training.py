"""The definition of a training step, bit for bit: parameters and optimizer state after the step.

A step depends on the batch, its order, and the state before it. It does not depend on the size of an array, on tiles or on
blocks. :mod:`sim.autodiff.make_step` has the rules, and :mod:`sim.golden.steps` the arithmetic of a stage.

On a ring each core runs the step of its share of the samples, in order. The sums of gradients depend on the number of cores, but
all cores get the same parameters.
"""

import functools
from dataclasses import dataclass, field, replace

import numpy as np

from ..autodiff.batch_norms import with_running_averages
from ..ir.graph import Graph
from ..ir.losses import JointLoss, Loss
from .arithmetic import bfloat16, round_bfloat16
from .losses import Positions, cross_entropy, loss_of, one_hot
from .ring import held_by
from .shards import shards_of
from .step_graph import step_graph
from .steps import run_step, segments_of, whole_of_segments
from .sums import upper_half

__all__ = [
    "divisor_of",
    "target_tensors",
    "TrainingState",
    "StepResult",
    "initial_state",
    "images",
    "bound_graph",
    "one_hot",
    "cross_entropy",
    "step",
]


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Parameters and optimizer state. Lists are in the order of the parameters of the graph."""

    masters: list  # list of float32 array
    #: List of dict of str to array. Optimizer state of each parameter. Names and types are those in the optimizer's `slots`; the
    #: shapes equal the masters' shapes.
    slots: list
    steps: int = 0  # number of updates so far


@dataclass(frozen=True, eq=False)
class StepResult:
    """The results of one training step."""

    state: TrainingState  # parameters and optimizer state after the step
    #: Float32 (batch, output size). In the order of the model's outputs, computed with the weights before the step. After a
    #: function in the last stage, they are rounded to bfloat16, because gradients read them; inference keeps binary32.
    logits: np.ndarray
    loss: float  # mean loss over the counted positions of the batch
    gradients: list  # List of float32 array. Gradient of each parameter, summed over the batch.
    #: Dict of str to array (batch, height, width, channels). By name: the input, and all tensors of samples in
    #: :func:`.step_graph`.
    tensors: dict = field(repr=False)


def initial_state(graph, optimizer, masters=None):
    """Returns the state before the first step of a network. Default for `masters`: the parameters in the graph."""
    masters = [one.initial for one in graph.parameters.values()] if masters is None else masters
    masters = [np.asarray(one, np.float32) + np.float32(0) for one in masters]  # + 0 removes -0, which the core cannot keep
    kinds = [{} if one.is_average else optimizer.slots for one in graph.parameters.values()]
    slots = [{slot: np.zeros(one.shape, kind) for slot, kind in some.items()} for one, some in zip(masters, kinds)]
    return TrainingState(masters, slots)


def images(graph, state):
    """Returns the operands of the forward pass for each parameter: the bfloat16 upper halves of weights, and float32 biases
    unchanged."""
    pairs = zip(graph.parameters.values(), state.masters)
    return [upper_half(master) if one.decays else master for one, master in pairs]


def bound_graph(graph, state, names=None) -> Graph:
    """Returns the network with parameters of a training state as constants. Default: all of them, as in inference."""
    names = graph.parameters if names is None else names
    made = replace(graph.copied(), parameters={name: one for name, one in graph.parameters.items() if name not in names})
    made.constants |= {name: one for name, one in zip(graph.parameters, images(graph, state)) if name in names}
    for name in names:
        made.tensors[name] = replace(graph.tensors[name], wide=made.constants[name].dtype == np.float32)
    made.stages = [replace(stage, terms=tuple(_untied(made, stage, term) for term in stage.terms)) for stage in graph.stages]
    return with_running_averages(made)


def _untied(graph, stage, term):
    """Returns a term that reads transposed constants with weights of its own."""
    if not term.swapped or term.weights not in graph.constants:
        return term
    weights = np.ascontiguousarray(graph.constants[term.weights].swapaxes(1, 2))
    return replace(term, weights=graph.constant(f"{stage.name}.weights", weights), swapped=False)


def step(graph, state, optimizer, x, targets, rate, masks=None, sums=None, cores=1, counted=None):
    """Computes one training step.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
    state : TrainingState
    optimizer : Sgd or Adam
        From :mod:`sim.ir.optimizers`.
    x : float32 or bfloat16 (batch, input size)
        Values that the core reads, as :func:`sim.golden.network.core_input` returns them.
    targets : bfloat16 (batch, output size)
        In the order of the model's outputs; see :class:`sim.golden.losses.Positions`.
    rate : float
    masks : dict to bfloat16 (batch, height, width, channels), or None
        Dropout masks of stages' results, by stage number, or of inputs, by name; see :class:`sim.golden.dropout.Dropout`.
    sums : sim.golden.sums.Sums or None
        Implementation of the long sums. Default: the definition. :func:`sim.golden.compiled_sums.fastest_sums` gives the same
        bits.
    cores : int
        Number of cores in the ring. Each processes an equal share of the samples, in order.
    counted : array (batch, positions) or None
        Factor of the loss of each position, if the graph is `counted`. The mean is over the factors that are not 0. Default: 1.

    Returns
    -------
    StepResult

    Raises
    ------
    ValueError
        If the batch cannot be split equally among the cores.
    """
    masks, shards = masks or {}, shards_of(len(x), cores)
    numbers = tuple(sorted(masks.keys() - {*graph.masks}))
    made = step_graph(graph, optimizer, numbers, cores)
    x = x if x.dtype == bfloat16 else round_bfloat16(x)
    inputs = graph.arrange_inputs(x)
    named = dict(zip(made.inputs[len(inputs) :], map(masks.get, numbers)))
    named |= {name: masks[name] for name in graph.masks if name in masks}
    values = inputs | {name: mask.reshape(-1, *made.tensors[name].shape) for name, mask in named.items()}
    values |= target_tensors(made, graph, targets, counted)
    factors = optimizer.factors(rate, divisor_of(graph, len(x), counted), state.steps + 1)
    values |= {tensor: np.full((1, 1, 1, 1), factors[name], bfloat16) for name, tensor in made.factors.items()}
    shared, kept = _kept(made, state, cores)
    tensors, own = run_step(made, values | shared, sums, kept, shards)
    masters, slots, gradients = [], [], []
    for name, one in zip(made.parameters, graph.parameters.values()):
        whole = functools.partial(_whole, made, tensors, own, name, one.initial.shape)
        masters.append(whole(made.state[made.masters[name]]))
        slots.append({slot: whole(made.state[tensor]) for slot, tensor in made.slots[name].items()})
        gradients.append(whole(made.gradients[name]))
    logits = graph.arrange_output(tensors)
    after, places = TrainingState(masters, slots, state.steps + 1), Positions(graph)
    loss = loss_of(graph.loss, places.vectors(logits), places.vectors(targets), counted)
    return StepResult(after, logits, loss, gradients, tensors)


def target_tensors(made, network, targets, counted):
    """Returns the tensors of the targets and of the factors of the positions, in the order of the output tensor."""
    shape = network.tensors[network.output].shape
    ordered = np.array(np.asarray(targets, bfloat16))
    if network.output_order is not None:
        ordered[:, network.output_order] = targets
    values = {made.targets: ordered.reshape(len(ordered), *shape)}
    if made.counted:
        factors = np.ones((len(ordered), shape[0] * shape[1]), bfloat16)
        if counted is not None:
            factors[:, Positions(network).tensor] = counted
        values[made.counted] = factors.reshape(len(ordered), *shape[:2], 1)
    return values


def divisor_of(graph, batch, counted):
    """Returns the number by which a sum of gradients is divided to give the gradient of the mean loss."""
    height, width, channels = graph.tensors[graph.output].shape
    positions = batch * height * width if counted is None else max(1, np.count_nonzero(counted))
    if graph.loss.is_of_classes or isinstance(graph.loss, JointLoss):
        return positions
    return positions * channels / (2 if graph.loss is Loss.SQUARED_ERROR else 1)


def _kept(made, state, cores):
    """Returns the kept tensors of a step, (1, height, width, channels): the shared tensors, and each core's own."""
    shared, own = {}, [{} for _ in range(cores)]
    for name, master, slots in zip(made.parameters, state.masters, state.slots):
        shape, share = made.tensors[name].shape, made.tensors[made.masters[name]].channels
        arrays = {made.masters[name]: master} | {tensor: slots[slot] for slot, tensor in made.slots[name].items()}
        arrays = {tensor: array.reshape(1, *shape) for tensor, array in arrays.items()}
        if not made.is_shared(name):
            shared |= arrays
            continue
        for tensor, array in arrays.items():
            parts = segments_of(array, cores, share)
            for rank, core in enumerate(own):
                core[tensor] = parts[held_by(rank, cores)]
    return shared, own


def _whole(made, tensors, own, name, shape, tensor):
    if made.is_shared(name):
        return whole_of_segments([values[tensor] for values in own], shape[-1]).reshape(shape)
    return (own[0][tensor] if tensor in own[0] else tensors[tensor]).reshape(shape)
