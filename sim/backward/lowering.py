"""Lowering of a training graph to the stages that the core executes, forward and backward.

A stage with one position, a dense layer, is called *flat*: in memory, its samples are adjacent. A tensor of several positions
that a dense stage reads is first *flattened*: its positions become channels of a tensor with one position. The gradient of this
tensor is later returned to the original layout. All other stages are called spatial, and are executed sample by sample. They are
stages of the network, and stages that compute gradients of sums. For a function by table, the sums are computed a second time,
after all results, to obtain the derivative. Loading a different function table every few rows would take longer.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..compiler.memory.batching import Batched
from ..compiler.passes.im2col import fold
from ..compiler.program import CompileError
from ..functions.derivatives import Derivative
from ..golden.arithmetic import bfloat16
from ..ir.graph import Extra, Select, Stage, Tensor, Term

__all__ = [
    "Lowered",
    "lowered",
    "is_flat_gather",
    "is_stacked",
    "check_masks",
    "flat_name",
    "back_name",
    "apart_name",
    "slope_name",
]


def check_masks(lowered, numbers):
    """Raises CompileError if a spatial stage reads a result that has a dropout mask. `numbers` are the stages whose results have
    masks."""
    graph = lowered.training.graph
    for number in numbers:
        name = graph.stages[number].output
        readers = [other for other, stage in enumerate(graph.stages) if any(term.source == name for term in stage.terms)]
        if number not in lowered.flat and not set(readers) <= set(lowered.flat):
            raise CompileError(f"stage {graph.stages[number].name}: dropout between convolutions is not supported yet")


def is_stacked(lowered, parameter, n):
    """Returns True if the weights and the bias of a stage are stored in the same planes (:class:`.Stacked`).

    `parameter` must be the weights of the only trained term of a spatial stage, and its gathered input channels and the bias must
    fit n rows. The host can then provide the operands transposed. In a ring, every output needs its own vector, because the order
    of the sum depends on the output.
    """
    stage = parameter.stage
    if parameter.term is None or stage in lowered.flat or lowered.cores > 1:
        return False
    term = lowered.terms[stage][parameter.term]
    alone = sum(one.stage == stage and one.term is not None for one in lowered.training.parameters) == 1
    gathered = any(gather.term is not None and gather.tensor.name == term.source for gather in lowered.gathers)
    return alone and gathered and term.weights.shape[2] < n


def flat_name(source):
    """Returns the name of the flattened version of a tensor."""
    return f"{source}, flat"


def back_name(source):
    """Returns the name of a flattened tensor's gradient after it has been copied back to the original layout."""
    return f"gradient of results {source}"


def _index_name(tensor):
    return f"{tensor}, indices"


def slope_name(tensor):
    """Returns the name of the tensor with the derivative of a stage's function at its sums."""
    return f"{tensor}, slopes"


def _scaled_name(gradient):
    """Returns the name of the tensor that has a gradient after multiplication by the derivative, and before any other
    operation."""
    return f"{gradient}, scaled"


def apart_name(gradient, stretch):
    """Returns the name of a gradient into which zeros have been inserted between positions. If the stretch is (1, 1), no zeros
    are inserted, and the result is the name of the gradient itself."""
    return gradient if stretch == (1, 1) else f"{gradient}, {stretch[0]} x {stretch[1]} apart"


@dataclass(frozen=True, eq=False)
class Lowered:
    """The stages of a training step, dense and spatial, as the core executes them.

    Parameters
    ----------
    training : ReverseGraph
    terms : list of tuple of Term
        Terms of each stage in the graph. Terms over few input channels are replaced by terms over the input that the host
        gathers.
    gathers : list of Gather
    flat : list of int
        Numbers of the dense (flat) stages in the graph.
    stages : list of (Stage, int, bool)
        The spatial stages, first forward and then gradients: the stage, its number in the graph, and True if it computes a
        gradient.
    tensors : dict of str to Tensor
        Tensors that the spatial stages read or write.
    flattened : tuple of str
        Names of the tensors that are flattened for dense stages.
    returned : tuple of str
        Names of the flattened tensors whose gradient is returned to the original layout.
    cores : int
        Number of cores in the ring.
    """

    training: object
    terms: list
    gathers: list
    flat: list
    stages: list
    tensors: dict
    flattened: tuple
    returned: tuple
    cores: int = 1

    def batched(self, batch):
        """Returns the spatial stages in the form that the network compiler takes, for `batch` samples."""
        stages = tuple(stage for stage, _, _ in self.stages)
        return Batched(self.training.graph, stages, self.tensors, tuple(self.gathers), batch, 1, frozenset())

    def readers(self):
        """Returns the terms of spatial stages that read each tensor: {tensor: [(term, size of the sums)]}."""
        found = {}
        for stage, _, _ in self.stages:
            for term in stage.terms:
                found.setdefault(term.source, []).append((term, stage.sums_size))
        return found


def _is_flat(stage):
    return stage.size == (1, 1) and stage.pool is None


def is_flat_gather(gather):
    """Returns True if the input that the host gathers has only one position."""
    return gather.term is not None and gather.size == (1, 1)


def lowered(training, n, cores=1):
    """Lowers a training graph for one of `cores` cores with arrays of n x n cells. Raises CompileError for graphs that are not
    supported."""
    graph = training.graph
    flat = [number for number, stage in enumerate(graph.stages) if _is_flat(stage)]
    folded, gathers = fold(graph, n, flat)
    results = {graph.stages[number].output for number in flat}
    forward, slopes, tensors = [], [], {gather.tensor.name: gather.tensor for gather in gathers}
    differentiated = {one.stage: one for one in training.gradients}
    for number, stage in enumerate(folded):
        if number in flat:
            continue
        if results & {term.source for term in stage.terms}:
            raise CompileError(f"stage {stage.name}: reads one position at several, which a training step can't do")
        tensors[stage.output] = graph.tensors[stage.output]
        if stage.pool and number in differentiated:
            index = _index_name(stage.output)
            tensors[index] = replace(tensors[stage.output], name=index)
            stage = replace(stage, extras=(Extra(index, index=True),))
        forward.append((stage, number, False))
        if stage.function.is_table and number in differentiated:
            name = slope_name(stage.output)
            tensors[name] = replace(tensors[stage.output], name=name)
            made = replace(stage, name=name, output=name, function=Derivative(stage.function), extras=())
            slopes.append((made, number, False))
    terms = [stage.terms for stage in folded]
    beside = results | {gather.tensor.name for gather in gathers if is_flat_gather(gather)}
    read = dict.fromkeys(term.source for number in flat for term in terms[number])
    flattened = tuple(name for name in read if name not in beside)
    backward, returned = _gradients(training, terms, flat, flattened, tensors)
    return Lowered(training, terms, gathers, flat, forward + slopes + backward, tensors, flattened, returned, cores)


def _gradients(training, lowered_terms, flat, flattened, tensors):
    """Returns the stages that compute gradients, and the names of the tensors whose gradients are returned to the original
    layout. Adds the tensors of these stages to `tensors`."""
    graph, found, returned = training.graph, [], []
    for one in training.gradients:
        if one.stage in flat:
            continue
        stage = graph.stages[one.stage]
        tensors[one.name] = Tensor(one.name, stage.channels, *stage.sums_size)
    for one in training.gradients:
        if one.stage in flat:
            continue
        stage = graph.stages[one.stage]
        if stage.output in flattened:
            if any(part.stage not in flat for part in one.terms):
                raise CompileError(
                    f"stage {stage.name}: both dense layers and others read its result, which is not supported yet"
                )
            returned.append(stage.output)
            name = back_name(stage.output)
            tensors[name] = replace(graph.tensors[stage.output], name=name)
            terms = (_identity(name, stage),)
        else:
            terms = tuple(_mirrored(training, part) for part in one.terms)
        select = Select(stage.output) if stage.function.name == "relu" else None
        if stage.pool:
            select = Select(_index_name(stage.output), stage.pool.window, index=True)
        extras = []
        for stretch in _stretches(training, lowered_terms[one.stage], one):
            apart = apart_name(one.name, stretch)
            tensors[apart] = Tensor(apart, stage.channels, *(size * by for size, by in zip(stage.sums_size, stretch)))
            extras.append(Extra(apart, stretch))
        made = Stage(one.name, one.name, terms, stage.result_size, select=select, extras=tuple(extras))
        found += [(part, one.stage, True) for part in _scaled(made, stage, tensors)]
    return found, tuple(returned)


def _identity(source, stage):
    """Returns a depthwise 1 x 1 term with weights of 1. The term adds `source` unchanged."""
    return Term(source, np.ones((1, 1, 1, stage.channels), bfloat16), groups=stage.channels, fixed=True)


def _scaled(made, stage, tensors):
    """Returns the stages that replace `made`, the stage that computes a gradient. If the function of the forward stage is by
    table, the gradient is multiplied by the function's derivative first."""
    if not stage.function.is_table:
        return [made]
    times = slope_name(stage.output)
    if not (made.select or made.extras):
        return [replace(made, times=times)]
    name = _scaled_name(made.name)
    tensors[name] = replace(tensors[times], name=name)
    product = replace(made, name=name, output=name, times=times, select=None, extras=())
    return [product, replace(made, terms=(_identity(name, stage),))]


def _mirrored(training, part):
    """Returns the term that adds the contribution of one reader to a data gradient. The term reads the gradient of the reader
    from memory, where zeros have been inserted if needed."""
    term = training.mirrored(part, training.graph.stages[part.stage].terms[part.term].weights)
    stretch = training.stretch(part)
    return replace(term, source=apart_name(part.source, stretch))


def _stretches(training, terms, one):
    """Returns the stretches, (1, 1) excluded, with which a gradient is read: by terms of data gradients, and by the weight
    gradients of its own stage. A stretch is the distance between positions after zeros are inserted."""
    parts = (part for other in training.gradients for part in other.terms if part.source == one.name)
    size = training.graph.stages[one.stage].sums_size
    trained = {term.stretch(size) for number, term in enumerate(terms) if training.parameter(one.stage, number)}
    return sorted(({training.stretch(part) for part in parts} | trained) - {(1, 1)})
