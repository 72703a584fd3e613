"""The stages of a graph of the compiler as a :class:`sim.ir.step.StepGraph`: a network, or the network of a training step."""

from collections import Counter
from dataclasses import replace

from ..functions.functions import NONE
from ..ir.errors import ModelError
from ..ir.graph import Pool
from ..ir.step import Norm, StepGraph, StepStage, StepTensor, StepTerm
from .found_norms import norms_in
from .reshapes import Reshapes, is_part, is_repeated, reshapes_in
from .stages import constant, filled, identity

__all__ = ["Network", "network_of", "step_network", "windows_are_apart"]


def network_of(graph):
    """Returns the :class:`sim.ir.step.StepGraph` of a graph, with a stage for each stage."""
    made = Network(graph, Reshapes(), graph.input_names)
    made.network.stages = [made.stage(number, stage) for number, stage in enumerate(graph.stages)]
    return made.network


def step_network(graph, parameters=(), masked=()):
    """Returns the network of a training step: a :class:`sim.ir.step.StepGraph` whose stages have gradients. Each stage writes a
    whole tensor, and windows of pooling are side by side.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
    parameters : sequence of sim.ir.training.Parameter
        Weights and biases that are trained. The parameters of the network are in the same order. All other weights and biases
        are constants.
    masked : sequence of int
        Numbers of stages whose results are multiplied by a mask. The masks are inputs of the network, in this order.

    Raises
    ------
    ModelError
        If a pass of :mod:`sim.compiler.passes.pipeline` has changed the graph to a form that a step does not have.
    """
    _check_form(graph)
    maker = _StepNetwork(graph, parameters, masked)
    for number, stage in enumerate(graph.stages):
        maker.add(number, stage)
    return maker.network


def _check_form(graph):
    for stage in graph.stages:
        views = [name for name in (term.source for term in stage.terms) if graph.tensors[name].view]
        lanes = graph.tensors[stage.times].channels if stage.times else 1
        if views or stage.reflow or lanes not in (1, stage.channels):
            form = f"has {lanes} lanes in its factor"
            form = f"reads the view {views[0]!r}" if views else "has `reflow`" if stage.reflow else form
            raise ModelError(f"stage {stage.name!r}: it {form}, which a step cannot have; give it the graph before the passes")


class Network:
    """The stages of a graph, with names and sizes of tensors after reshapes.

    Members
    -------
    network : StepGraph
        Has all tensors of the graph, and no stages yet.
    reshapes : Reshapes
    trained : dict of (int, int or None) to str
        The parameter of a term, or of a bias, of a stage.
    """

    def __init__(self, graph, reshapes, inputs):
        self.graph, self.reshapes, self.trained = graph, reshapes, {}
        self._names = {}  # constants by the place of their values in memory, with the values
        wide = {stage.output for stage in graph.stages if graph.is_wide(stage)}
        tensors = {
            one.name: StepTensor(one.name, one.channels, *reshapes.size(one), wide=one.name in wide)
            for one in graph.tensors.values()
        }
        self.network = StepGraph(tensors, inputs=inputs, output=graph.output, beside=graph.beside)

    def stage(self, number, stage):
        """Returns a stage of the graph with the names and sizes of the network."""
        network, terms = self.network, tuple(self.term(number, stage, place) for place in range(len(stage.terms)))
        size, start = self.size(stage, terms), self.trained.get((number, None))
        if start is None and stage.bias is not None:
            bias = stage.bias.reshape(*size, -1) if stage.has_bias_rows else stage.bias.reshape(1, 1, -1)
            start = constant(network, f"{stage.name}.bias", bias)
        fields = {"function": stage.function, "softmax": stage.softmax, "name": stage.name, "origin": stage.origin}
        times = stage.times and self.reshapes.name(stage.times)
        return StepStage(stage.output, terms, size, start, stage.pool and _within(stage.pool, size), times=times, **fields)

    def size(self, stage, terms):
        """Returns the (height, width) of the sums of a stage with these terms."""
        if stage.size == (1, 1) or is_part(self.graph, stage):
            return stage.size
        return self.reshapes.sizes.get(stage.output, stage.sums_size)

    def term(self, number, stage, place):
        """Returns a term of a stage."""
        reshapes, term = self.reshapes, stage.terms[place]
        source, data = reshapes.name(term.source), term.data and reshapes.name(term.data)
        kernel = term.kernel if term.kernel == (1, 1) else reshapes.sizes.get(source, term.kernel)
        weights, groups = self.trained.get((number, place)) or data, term.groups
        if weights is None:
            weights, groups = self.constant_weights(stage, term)
        swapped = data is not None and not term.rows
        return StepTerm(source, weights, kernel, term.stride, term.dilation, term.padding, groups, swapped=swapped)

    def constant_weights(self, stage, term):
        """Returns the name of the constant weights of a term, and the number of their groups. Steps of a recurrent layer share
        their weights."""
        weights = term.weights.reshape(-1, *term.weights.shape[2:])
        key = weights.__array_interface__["data"][0], weights.shape, weights.strides
        if key not in self._names:
            self._names[key] = constant(self.network, f"{stage.name}.weights", weights), weights
        return self._names[key][0], term.groups


def _within(pool, size):
    """Returns a :class:`.Pool` whose only window along an axis, without padding, is not larger than the `size` of the sums."""
    window = tuple(
        min(want, (have - 1) // dilation + 1) if count == 1 and not padding else want
        for want, have, count, dilation, padding in zip(pool.window, size, pool.size, pool.dilation, pool.padding)
    )
    return replace(pool, window=window)


class _StepNetwork(Network):
    """Adds the stages of a graph to a network in the forms that have gradients.

    If several stages write parts of one tensor, each part is a tensor of its own. The sum of all parts, with +0 around each part,
    is the whole tensor.

    Members
    -------
    writers : Counter of str
        Number of stages that are not added yet, for each tensor that they write.
    parts : dict of str to list of StepTerm
        Terms of the sum of a tensor's parts, for the parts so far.
    """

    def __init__(self, graph, parameters, masked):
        super().__init__(graph, reshapes_in(graph), graph.input_names)
        self.writers = Counter(stage.output for stage in graph.stages)
        self.parts, self.tied = {}, set()
        for one in parameters:
            self._add_parameter(one)
        shapes = {number: (*self._result_size(stage), stage.channels) for number, stage in enumerate(graph.stages)}
        self.masks = {number: self.network.add_input(f"mask {number}", shapes[number], is_mask=True) for number in masked}
        self.norms = norms_in(graph) if parameters else {}  # the forward pass has the stages of the graph
        self.left_out = {number for numbers, _ in self.norms.values() for number in numbers} | self.reshapes.stages

    def _result_size(self, stage):
        return stage.result_size if is_part(self.graph, stage) else self.reshapes.size(self.graph.tensors[stage.output])

    def _add_parameter(self, one):
        values = one.initial
        if one.term is not None:
            values = values.reshape(-1, *values.shape[-2:])
        else:
            size = self._result_size(self.graph.stages[one.stage]) if values.ndim == 3 else (1, 1)
            values = values.reshape(*size, -1)
        name = self.network.add_parameter(one.name, values, one.term is not None)
        self.trained |= {(one.stage, one.term): name} | dict.fromkeys(one.tied, name)
        self.tied |= {*one.tied}

    def term(self, number, stage, place):
        made = super().term(number, stage, place)
        return replace(made, swapped=True) if (number, place) in self.tied else made

    def add(self, number, stage):
        network = self.network
        self.writers[stage.output] -= 1
        if number in self.left_out:
            network.tensors.pop(stage.output, None)
            return
        made = replace(self.stage(number, stage), name="", origin=(0, 0))
        if is_repeated(stage):
            made = _repeated(network, made, stage.channels)
        elif made.pool and not windows_are_apart(made.pool, made.size):
            made = _pooled(network, made, stage.channels)
        if number in self.norms:
            made = replace(made, times=None, norm=Norm(self.norms[number][1], centred=False))
        made = self._masked(number, stage, made)
        if is_part(self.graph, stage):
            self._add_part(stage, made)
            return
        network.stages.append(made)
        if stage.function != NONE or stage.softmax:  # rounded, as its readers need it
            network.tensors[stage.output] = replace(network.tensors[stage.output], wide=False)

    def _masked(self, number, stage, made):
        """Returns a stage with its mask, if it has one. A stage has one product, so another product precedes it."""
        if number not in self.masks:
            return made
        if stage.times:
            before = replace(made, output=f"{made.output}, before dropout")
            made = StepStage(made.output, (), made.result_size, self.network.add_stage(before, stage.channels))
        return replace(made, times=self.masks[number])

    def _add_part(self, stage, made):
        """Adds a part of a tensor. The last one is followed by the sum."""
        network, parts = self.network, self.parts.setdefault(stage.output, [])
        if self._is_copied(made):
            parts += [replace(term, padding=stage.origin) for term in made.terms]
        else:
            name = network.add_stage(replace(made, output=f"{stage.output}, part {len(parts)}"), stage.channels)
            ones = filled(network, 1, 1, stage.channels)
            parts.append(StepTerm(name, ones, padding=stage.origin, groups=stage.channels))
        if not self.writers[stage.output]:
            tensor = network.tensors[stage.output]
            network.stages.append(StepStage(stage.output, tuple(parts), (tensor.height, tensor.width)))

    def _is_copied(self, made):
        """Returns True if a stage's terms read the same positions of whole tensors, so that they can be terms of a sum of
        parts."""
        sources = (self.network.tensors[term.source] for term in made.terms)
        plain = StepStage(made.output, made.terms, made.size) == made
        return plain and all(
            (one.height, one.width) == made.size and StepTerm(one.name, term.weights, groups=term.groups) == term
            for one, term in zip(sources, made.terms)
        )


def _repeated(network, made, channels):
    """Adds a stage with the result at one position. Returns a stage that copies the result to all positions of `made.pool`: each
    sum has one product, by 1."""
    height, width = size = made.pool.size
    first = network.add_stage(replace(made, output=f"{made.output}, at one position", pool=None, times=None), channels)
    ones = filled(network, 1, 1, channels, height * width)
    return StepStage(
        made.output, (StepTerm(first, ones, size, padding=(height - 1, width - 1), groups=channels),), size, times=made.times
    )


def windows_are_apart(pool, size):
    """Returns True if the windows of pooling cover the first of `size` positions once each, and no others."""
    steps = (have if count == 1 else by for count, by, have in zip(pool.size, pool.stride, pool.window))
    plain = tuple(steps) == pool.window and pool.padding == (0, 0) and pool.dilation == (1, 1)
    return plain and all(count * window <= have for count, window, have in zip(pool.size, pool.window, size))


def _pooled(network, made, channels):
    """Adds a stage with the sums before pooling. Returns a stage that pools a copy with the windows side by side."""
    sums = replace(made, output=f"{made.output}, before pooling", pool=None, function=NONE, times=None)
    copied, pool = network.add_stage(sums, channels), made.pool
    for axis in range(2):
        copied = _with_windows_apart(network, copied, pool, axis)
    tensor = network.tensors[copied]
    fields = {"pool": Pool(pool.window, pool.size, pool.window), "function": made.function, "times": made.times}
    return StepStage(made.output, (identity(network, copied),), (tensor.height, tensor.width), **fields)


def _with_windows_apart(network, source, pool, axis):
    """Adds a copy of a tensor whose windows along an axis are side by side. Each position of a window is a copy at the stride of
    the windows, with +0 outside of the tensor. Returns the name of the copy."""
    tensor, window, count = network.tensors[source], pool.window[axis], pool.size[axis]
    ones = filled(network, 1, 1, tensor.channels)

    def along(value, other=1):
        return (value, other) if axis == 0 else (other, value)

    def add(output, terms, length):
        size = along(length, (tensor.width, tensor.height)[axis])
        return network.add_stage(StepStage(f"{source}, {output}", tuple(terms), size), tensor.channels)

    terms = []
    for place in range(window):
        before = along(pool.padding[axis] - place * pool.dilation[axis], 0)
        term = StepTerm(source, ones, stride=along(pool.stride[axis]), padding=before, groups=tensor.channels)
        part = add(f"position {place} of windows along {'yx'[axis]}", [term], count)
        terms.append(StepTerm(part, ones, padding=along(place, 0), groups=tensor.channels, apart=along(window)))
    return add(f"windows along {'yx'[axis]}", terms, count * window)
