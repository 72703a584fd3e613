"""A network that can be trained, and its parameters."""

from dataclasses import dataclass, field

import numpy as np

from .graph import Graph

__all__ = ["Parameter", "TrainingGraph", "NOWHERE"]

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


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """A network to be trained with softmax cross-entropy.

    Parameters
    ----------
    graph : Graph
        The forward pass, up to the logits.
    parameters : tuple of Parameter
    """

    graph: Graph
    parameters: tuple[Parameter, ...]

    @property
    def differentiated(self):
        """Numbers of the stages that depend on a parameter: the trained stages, and the stages between them and the end."""
        trained, moved, found = {one.stage for one in self.parameters}, set(), []
        for number, stage in enumerate(self.graph.stages):
            read = {name for term in stage.terms for name in (term.source, term.data)}
            if number in trained or moved & (read | {stage.times}):
                moved.add(stage.output)
                found.append(number)
        return tuple(found)

    def parameter(self, stage, term):
        """Returns the :class:`Parameter` for a term of a stage, or for the stage's bias if `term` is None. Returns None if this
        term or bias is not trained."""
        return next((one for one in self.parameters if (one.stage, one.term) == (stage, term)), None)
