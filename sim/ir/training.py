"""Data structures for training: the parameters of a network, and the gradients of its stages' sums.

A training step computes the forward pass, and the softmax P of the logits. With the targets T, it then computes the backward
pass:

- The gradient of the last stage's sums is `D = bf16(P - T)`.
- The gradient of any other stage's sums adds up, over all stages that read its result, the reader's gradient times the reader's
  weights (kernels mirrored, channels swapped). This sum is multiplied by the derivative of the stage's function at its sums. For
  ReLU it passes only where the result is above 0. For pooling it passes only at the first largest position of each window.
- The gradient of weights is the sum of source times D over (sample, y, x). The gradient of a bias is the sum of D.
"""

from dataclasses import dataclass, field

import numpy as np

from .graph import Graph, Term

__all__ = ["Parameter", "GradientTerm", "SumsGradient", "TrainingGraph", "NOWHERE"]

#: Index in a pooling window that stands for none: with ReLU, no value of the window is above 0.
NOWHERE = 255


@dataclass(frozen=True, eq=False)
class Parameter:
    """A trained parameter: the weights of a term of a stage, or the bias of a stage.

    Parameters
    ----------
    name : str
    stage : int
        Index of the stage in the graph.
    term : int or None
        Index of the term in the stage. None: the parameter is the stage's bias.
    initial : float32 array
        Initial values: weights (kernel height, kernel width, channels of the source, channels of the result), or bias (channels
        of the result,).
    """

    name: str
    stage: int
    term: int | None
    initial: np.ndarray = field(repr=False)


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
class TrainingGraph:
    """A network to be trained with softmax cross-entropy.

    Parameters
    ----------
    graph : Graph
        The forward pass, up to the logits.
    parameters : tuple of Parameter
    gradients : tuple of SumsGradient
        Gradients in an order in which they can be computed, starting with the last stage. Stages before all trained stages have
        none.
    """

    graph: Graph
    parameters: tuple[Parameter, ...]
    gradients: tuple[SumsGradient, ...]

    def parameter(self, stage, term):
        """Returns the :class:`Parameter` for a term of a stage, or for the stage's bias if `term` is None. Returns None if it is
        not trained."""
        return next((one for one in self.parameters if (one.stage, one.term) == (stage, term)), None)

    def mirrored(self, part, weights):
        """Returns the :class:`sim.ir.graph.Term` that computes the contribution of a :class:`GradientTerm`. Its weights are the
        reader's, mirrored in y and x. It is a convolution of stride 1 over the gradient of the reader's sums, with zeros inserted
        as :meth:`stretch` describes."""
        term = self.graph.stages[part.stage].terms[part.term]
        height, width, inputs, outputs = weights.shape
        kernel = weights[::-1, ::-1].reshape(height, width, inputs, term.groups, -1).swapaxes(2, 4)
        kernel = np.ascontiguousarray(kernel.reshape(height, width, outputs // term.groups, -1))
        padding = tuple((size - 1) * apart - before for size, apart, before in zip(term.kernel, term.dilation, term.padding))
        return Term(part.source, kernel, dilation=term.dilation, padding=padding, groups=term.groups, fixed=term.fixed)

    def stretch(self, part):
        """Returns the distance, along y and x, between positions of the reader's gradient for the term of :meth:`mirrored`:
        distance - 1 zeros are inserted between two positions. It is :meth:`sim.ir.graph.Term.stretch` of the reader. The zeros do
        not change a sum, so they need not be multiplied."""
        stage = self.graph.stages[part.stage]
        return stage.terms[part.term].stretch(stage.sums_size)
