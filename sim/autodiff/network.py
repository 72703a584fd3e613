"""The network of a training step, from a graph of the compiler."""

from dataclasses import replace

from ..functions.functions import NONE
from ..ir.step import Norm, StepGraph, StepStage, StepTensor, StepTerm
from .found_norms import norms_in
from .reshapes import is_repeated, reshapes_in
from .stages import filled

__all__ = ["step_network"]


def step_network(graph, parameters=(), masked=()):
    """Returns the :class:`sim.ir.step.StepGraph` of a graph's forward pass.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
        A graph whose stages each compute a whole tensor, or copies that are reshapes.
    parameters : sequence of sim.ir.training.Parameter
        Weights and biases that are trained. The parameters of the network are in the same order. All other weights and biases
        are constants.
    masked : sequence of int
        Numbers of stages whose results are multiplied by a mask. The masks are inputs of the network, in this order.
    """
    reshapes = reshapes_in(graph)
    tensors = {one.name: StepTensor(one.name, one.channels, *reshapes.size(one)) for one in graph.tensors.values()}
    network = StepGraph(tensors, inputs=graph.input_names, output=graph.output)
    trained, tied = {}, set()
    for one in parameters:
        values = one.initial
        if one.term is not None:
            values = values.reshape(-1, *values.shape[-2:])
        else:
            size = reshapes.size(graph.tensors[graph.stages[one.stage].output]) if values.ndim == 3 else (1, 1)
            values = values.reshape(*size, -1)
        trained[one.stage, one.term] = name = network.add_parameter(one.name, values, one.term is not None)
        trained |= dict.fromkeys(one.tied, name)
        tied |= {*one.tied}
    shapes = {number: tensors[graph.stages[number].output].shape for number in masked}
    masks = {number: network.add_input(f"mask {number}", shape, is_mask=True) for number, shape in shapes.items()}
    norms = norms_in(graph) if parameters else {}  # the forward pass has the stages of the graph
    within = {number for numbers, _ in norms.values() for number in numbers}
    for number, stage in enumerate(graph.stages):
        if number in within or number in reshapes.stages:
            network.tensors.pop(stage.output, None)
            continue
        terms = tuple(
            _term(network, reshapes, stage, place, trained.get((number, place)), (number, place) in tied)
            for place in range(len(stage.terms))
        )
        size = reshapes.sizes.get(stage.output, stage.size) if stage.size != (1, 1) else stage.size
        start = trained.get((number, None))
        if start is None and stage.bias is not None:
            bias = stage.bias.reshape(*size, -1) if stage.has_bias_rows else stage.bias.reshape(1, 1, -1)
            start = network.add_constant(f"{stage.name}.bias", bias)
        times = stage.times and reshapes.name(stage.times)
        made = StepStage(
            stage.output, terms, size, start, stage.pool, function=stage.function, softmax=stage.softmax, times=times
        )
        if is_repeated(stage):
            made = _repeated(network, made, stage.channels)
        if number in norms:
            made = replace(made, times=None, norm=Norm(norms[number][1], centred=False))
        if number in masks and stage.times:  # a stage has one product
            before = replace(made, output=f"{stage.output}, before dropout")
            made = StepStage(stage.output, (), made.result_size, network.add_stage(before, stage.channels))
        network.stages.append(replace(made, times=masks.get(number, made.times)))
        if graph.is_wide(stage) and stage.function == NONE:
            network.tensors[stage.output] = StepTensor(stage.output, stage.channels, *made.result_size, wide=True)
    return network


def _repeated(network, made, channels):
    """Adds a stage with the result at one position. Returns a stage that copies the result to all positions of `made.pool`: each
    sum has one product, by 1."""
    height, width = size = made.pool.size
    first = network.add_stage(replace(made, output=f"{made.output}, at one position", pool=None, times=None), channels)
    ones = filled(network, 1, 1, channels, height * width)
    return StepStage(
        made.output, (StepTerm(first, ones, size, padding=(height - 1, width - 1), groups=channels),), size, times=made.times
    )


def _term(network, reshapes, stage, place, parameter, tied):
    term = stage.terms[place]
    source, data = reshapes.name(term.source), term.data and reshapes.name(term.data)
    kernel = term.kernel
    if kernel != (1, 1) and source in reshapes.sizes:
        kernel = reshapes.sizes[source]
    weights = parameter or data
    if weights is None:
        weights = network.add_constant(f"{stage.name}.weights{place}", term.weights.reshape(-1, *term.weights.shape[2:]))
    swapped = tied or term.data is not None and not term.rows
    return StepTerm(source, weights, kernel, term.stride, term.dilation, term.padding, term.groups, swapped=swapped)
