"""What training adds to a network: its parameters, and the gradients of its stages' sums.

A step goes forward through the graph, takes the softmax P of the logits and the targets T, and comes back:

- the gradient of the last stage's sums is `D = bf16(P - T)`;
- that of any other stage's sums is the sum, over all who read its result, of their own gradients times their weights (kernels
  turned, channels swapped), times the derivative of the stage's function at its sums, or kept where that let the sums pass: where
  its result is above 0 (ReLU), at the first largest place of each window (pooling);
- that of weights is the sum of source times D over (sample, y, x), that of a bias the sum of D.
"""

from dataclasses import dataclass, field

import numpy as np

from .graph import Graph, Term

__all__ = ["Parameter", "GradientTerm", "SumsGradient", "TrainingGraph", "NOWHERE"]

#: Number of a place in a pooling window that means none: nothing in it is above 0, where the stage's function is relu.
NOWHERE = 255


@dataclass(frozen=True, eq=False)
class Parameter:
    """Weights or bias of a stage.

    Parameters
    ----------
    name : str
    stage : int
        Number of the stage in the graph.
    term : int or None
        Number of the stage's term; None: the stage's bias.
    initial : float32 array
        Weights (kernel height, kernel width, channels of the source, channels of the result), or bias (channels of the result,).
    """

    name: str
    stage: int
    term: int | None
    initial: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class GradientTerm:
    """What one reader gives to the gradient of a tensor.

    Parameters
    ----------
    source : str
        Gradient of the reader's sums.
    stage, term : int
        Number of the reader in the graph, and of its term that reads the tensor.
    """

    source: str
    stage: int
    term: int


@dataclass(frozen=True)
class SumsGradient:
    """The gradient of a stage's sums: bfloat16 (batch, *stage.sums_size, stage.channels).

    Parameters
    ----------
    name : str
        Of the tensor.
    stage : int
        Number of the stage in the graph.
    terms : tuple of GradientTerm
        In the order in which they add up; none of the last stage, whose gradient is P - T.
    """

    name: str
    stage: int
    terms: tuple[GradientTerm, ...]


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """A network that is trained by softmax cross-entropy.

    Parameters
    ----------
    graph : Graph
        Forward, to the logits.
    parameters : tuple of Parameter
    gradients : tuple of SumsGradient
        In an order in which they can be computed: the last stage's first. Stages behind which nothing is trained have none.
    """

    graph: Graph
    parameters: tuple[Parameter, ...]
    gradients: tuple[SumsGradient, ...]

    def parameter(self, stage, term):
        """The :class:`Parameter` of a stage's term (None: its bias), or None of one that is fixed."""
        return next((one for one in self.parameters if (one.stage, one.term) == (stage, term)), None)

    def mirrored(self, part, weights):
        """The :class:`sim.ir.graph.Term` of a :class:`GradientTerm`, for the weights of its reader: a convolution of stride 1
        over the gradient of the reader's sums, stretched by :meth:`stretch`, whose kernel positions come last to first."""
        term = self.graph.stages[part.stage].terms[part.term]
        height, width, inputs, outputs = weights.shape
        kernel = weights[::-1, ::-1].reshape(height, width, inputs, term.groups, -1).swapaxes(2, 4)
        kernel = np.ascontiguousarray(kernel.reshape(height, width, outputs // term.groups, -1))
        padding = tuple((size - 1) * apart - before for size, apart, before in zip(term.kernel, term.dilation, term.padding))
        return Term(part.source, kernel, dilation=term.dilation, padding=padding, groups=term.groups, fixed=term.fixed)

    def stretch(self, part):
        """As of :meth:`sim.ir.graph.Term.stretch`, of the reader. Between two positions of the gradient of its sums,
        :meth:`mirrored` reads that many less one of +0; what is +0 changes no sum, so it need not be multiplied."""
        stage = self.graph.stages[part.stage]
        return stage.terms[part.term].stretch(stage.sums_size)
