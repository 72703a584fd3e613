"""The network of a training step, from a graph of the compiler."""

from dataclasses import replace

from ..functions.functions import NONE
from ..ir.step import Norm, StepGraph, StepStage, StepTensor, StepTerm
from .found_norms import norms_in

__all__ = ["step_network"]


def step_network(graph, parameters=(), masked=()):
    """Returns the :class:`sim.ir.step.StepGraph` of a graph's forward pass.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
        A graph whose stages each compute a whole tensor.
    parameters : sequence of sim.ir.training.Parameter
        Weights and biases that are trained. The parameters of the network are in the same order. All other weights and biases
        are constants.
    masked : sequence of int
        Numbers of stages whose results are multiplied by a mask. The masks are inputs of the network, in this order.
    """
    tensors = {one.name: StepTensor(one.name, one.channels, one.height, one.width) for one in graph.tensors.values()}
    network = StepGraph(tensors, inputs=graph.input_names, output=graph.output)
    trained, tied = {}, set()
    for one in parameters:
        values = one.initial
        if one.term is not None:
            values = values.reshape(-1, *values.shape[-2:])
        elif values.ndim == 1:
            values = values.reshape(1, 1, -1)
        trained[one.stage, one.term] = name = network.add_parameter(one.name, values, one.term is not None)
        trained |= dict.fromkeys(one.tied, name)
        tied |= {*one.tied}
    shapes = {number: (*graph.stages[number].result_size, graph.stages[number].channels) for number in masked}
    masks = {number: network.add_input(f"mask {number}", shape, is_mask=True) for number, shape in shapes.items()}
    norms = norms_in(graph) if parameters else {}  # the forward pass has the stages of the graph
    within = {number for numbers, _ in norms.values() for number in numbers}
    for number, stage in enumerate(graph.stages):
        if number in within:
            del network.tensors[stage.output]
            continue
        terms = tuple(
            _term(network, stage, place, trained.get((number, place)), (number, place) in tied)
            for place in range(len(stage.terms))
        )
        start = trained.get((number, None))
        if start is None and stage.bias is not None:
            bias = stage.bias if stage.has_bias_rows else stage.bias.reshape(1, 1, -1)
            start = network.add_constant(f"{stage.name}.bias", bias)
        made = StepStage(
            stage.output, terms, stage.size, start, stage.pool, function=stage.function, softmax=stage.softmax, times=stage.times
        )
        if number in norms:
            made = replace(made, times=None, norm=Norm(norms[number][1], centred=False))
        if number in masks and stage.times:  # a stage has one product
            before = replace(made, output=f"{stage.output}, before dropout")
            made = StepStage(stage.output, (), stage.result_size, network.add_stage(before, stage.channels))
        network.stages.append(replace(made, times=masks.get(number, made.times)))
        if graph.is_wide(stage) and stage.function == NONE:
            network.tensors[stage.output] = StepTensor(stage.output, stage.channels, *stage.result_size, wide=True)
    return network


def _term(network, stage, place, parameter, tied):
    term = stage.terms[place]
    weights = parameter or term.data
    if weights is None:
        weights = network.add_constant(f"{stage.name}.weights{place}", term.weights.reshape(-1, *term.weights.shape[2:]))
    swapped = tied or term.data is not None and not term.rows
    return StepTerm(term.source, weights, term.kernel, term.stride, term.dilation, term.padding, term.groups, swapped=swapped)
