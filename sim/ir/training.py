"""Training data structures: the parameters of a network, and the gradients of its stages' sums.

A step runs forward through the graph, computes the softmax P of the logits, takes the targets T, and runs backward:

- the gradient of the last stage's sums is `D = bf16(P - T)`;
- the gradient of any other stage's sums adds up, over all readers of its result, the reader's gradient times the reader's weights
  (kernels mirrored, channels swapped). It is multiplied by the derivative of the stage's function at its sums, or masked where
  the function passes a sum: where the result is above 0 (ReLU), at the first largest place of each window (pooling);
- the gradient of weights is the sum of source times D over (sample, y, x); the gradient of a bias is the sum of D.
"""

from dataclasses import dataclass, field

import numpy as np

from .graph import Graph, Term

__all__ = ["Parameter", "GradientTerm", "SumsGradient", "TrainingGraph", "NOWHERE"]

#: Index of a place in a pooling window that means none: no value is above 0, if the stage's function is relu.
NOWHERE = 255


@dataclass(frozen=True, eq=False)
class Parameter:
    """The weights or the bias of a stage.

    Parameters
    ----------
    name : str
    stage : int
        Index of the stage in the graph.
    term : int or None
        Index of the stage's term; None: the stage's bias.
    initial : float32 array
        Weights (kernel height, kernel width, channels of the source, channels of the result), or bias (channels of the result,).
    """

    name: str
    stage: int
    term: int | None
    initial: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class GradientTerm:
    """The contribution of one reader to the gradient of a tensor.

    Parameters
    ----------
    source : str
        Gradient of the reader's sums.
    stage, term : int
        Index of the reader in the graph, and of its term that reads the tensor.
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
        Name of the tensor.
    stage : int
        Index of the stage in the graph.
    terms : tuple of GradientTerm
        In the order of addition. Empty for the last stage, whose gradient is P - T.
    """

    name: str
    stage: int
    terms: tuple[GradientTerm, ...]


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """A network that is trained with softmax cross-entropy.

    Parameters
    ----------
    graph : Graph
        The forward pass, up to the logits.
    parameters : tuple of Parameter
    gradients : tuple of SumsGradient
        In an order in which they can be computed: the last stage's first. A stage has none if it precedes all trained stages.
    """

    graph: Graph
    parameters: tuple[Parameter, ...]
    gradients: tuple[SumsGradient, ...]

    def parameter(self, stage, term):
        """Returns the :class:`Parameter` of a stage's term (None: its bias), or None if it is fixed."""
        return next((one for one in self.parameters if (one.stage, one.term) == (stage, term)), None)

    def mirrored(self, part, weights):
        """Returns the :class:`sim.ir.graph.Term` of a :class:`GradientTerm`, with its reader's weights mirrored in y and x. It is
        a convolution of stride 1 over the gradient of the reader's sums, stretched by :meth:`stretch`."""
        term = self.graph.stages[part.stage].terms[part.term]
        height, width, inputs, outputs = weights.shape
        kernel = weights[::-1, ::-1].reshape(height, width, inputs, term.groups, -1).swapaxes(2, 4)
        kernel = np.ascontiguousarray(kernel.reshape(height, width, outputs // term.groups, -1))
        padding = tuple((size - 1) * apart - before for size, apart, before in zip(term.kernel, term.dilation, term.padding))
        return Term(part.source, kernel, dilation=term.dilation, padding=padding, groups=term.groups, fixed=term.fixed)

    def stretch(self, part):
        """Returns :meth:`sim.ir.graph.Term.stretch` of the reader. :meth:`mirrored` reads this number of positions less one as +0
        between two positions of the gradient of its sums. These zeros do not change a sum, so they need not be multiplied."""
        stage = self.graph.stages[part.stage]
        return stage.terms[part.term].stretch(stage.sums_size)
