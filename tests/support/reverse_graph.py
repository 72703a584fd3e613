"""Gradients of a training graph's stages, for the second definition of a step.

The gradient D of the last stage's sums is P - T. The gradient of another stage's sums adds, over all readers of its result, the
reader's gradient times the reader's weights. :mod:`sim.autodiff.make_step` defines these rules and their bits.
"""

from dataclasses import dataclass

import numpy as np

from amaranth_tpu.sim.golden.windows import Convolution
from amaranth_tpu.sim.ir.graph import Graph


@dataclass(frozen=True)
class GradientTerm:
    """The contribution of one reader, a stage that reads the tensor, to the gradient of a tensor.

    Parameters
    ----------
    source : str
        Name of the gradient of the reader's sums.
    stage, term : int
        Index of the reader in the graph, and index of the reader's term that reads the tensor.
    """

    source: str
    stage: int
    term: int


@dataclass(frozen=True)
class SumsGradient:
    """The gradient of a stage's sums. As a tensor it is bfloat16 (batch, *stage.sums_size, stage.channels).

    Parameters
    ----------
    name : str
        Name of the gradient's tensor.
    stage : int
        Index of the stage in the graph.
    terms : tuple of GradientTerm
        Contributions in the order of addition. Empty for the last stage, whose gradient is P - T.
    """

    name: str
    stage: int
    terms: tuple[GradientTerm, ...]


@dataclass(frozen=True, eq=False)
class ReverseGraph:
    """A network with parameters, `graph`, and the gradients of its stages.

    Parameters
    ----------
    gradients : tuple of SumsGradient
        Gradients in an order in which they can be computed, starting with the last stage. Stages before all trained stages have
        no gradient.
    """

    graph: Graph
    gradients: tuple[SumsGradient, ...]

    def mirrored(self, part, weights):
        """Returns the convolution that computes the contribution of a :class:`GradientTerm`. The weights are the weights of the
        reader, mirrored in y and x. The stride over the gradient of the reader's sums is 1, with zeros inserted as
        :meth:`stretch` describes."""
        term = self.graph.stages[part.stage].terms[part.term]
        height, width, inputs, outputs = weights.shape
        kernel = weights[::-1, ::-1].reshape(height, width, inputs, term.groups, -1).swapaxes(2, 4)
        kernel = np.ascontiguousarray(kernel.reshape(height, width, outputs // term.groups, -1))
        padding = tuple((size - 1) * apart - before for size, apart, before in zip(term.kernel, term.dilation, term.padding))
        return Convolution(kernel, dilation=term.dilation, padding=padding, groups=term.groups)

    def stretch(self, part):
        """Returns the distance, along y and x, between positions of the reader's gradient for the term of :meth:`mirrored`:
        distance - 1 zeros are inserted between two positions. The zeros do not change a sum, so they need not be multiplied."""
        stage = self.graph.stages[part.stage]
        return tuple(1 if count == 1 else stride for count, stride in zip(stage.sums_size, stage.terms[part.term].stride))


def reverse_graph(graph):
    stages, gradients = graph.stages, []
    names = [f"gradient of {stage.name}" for stage in stages]
    for number in reversed(graph.differentiated):
        terms = tuple(
            GradientTerm(names[reader], reader, place)
            for reader in range(number + 1, len(stages))
            for place, term in enumerate(stages[reader].terms)
            if term.source == stages[number].output
        )
        gradients.append(SumsGradient(names[number], number, terms))
    return ReverseGraph(graph, tuple(gradients))
