"""A network that can be trained, and its parameters."""

from dataclasses import dataclass, field

import numpy as np

from .graph import Graph
from .losses import Loss

__all__ = ["Parameter", "TrainingGraph", "NOWHERE"]

#: Index in a pooling window that stands for none: with ReLU, no value of the window is above 0.
NOWHERE = 255


@dataclass(frozen=True, eq=False)
class Parameter:
    """A trained parameter: the weights of a term of a stage, or the bias of a stage."""

    name: str
    stage: int  # index of the stage in the graph
    term: int | None  # Index of the term in the stage. None: the parameter is the stage's bias.
    #: Float32 array. Initial values: weights (kernel height, kernel width, channels of the source, channels of the result), or
    #: bias (channels of the result,) or (height, width, channels of the result).
    initial: np.ndarray = field(repr=False)
    tied: tuple[tuple[int, int], ...] = ()  # further terms, as (stage, term), whose weights are the transpose of this parameter


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """A network to be trained."""

    graph: Graph  # The forward pass, up to the logits. A table of embeddings is the weights of a stage that reads one-hot rows.
    parameters: tuple[Parameter, ...]
    loss: Loss = field(default=Loss.CROSS_ENTROPY, kw_only=True)
    #: The host writes a factor for the loss of each position: 1, or 0 for padding.
    counted: bool = field(default=False, kw_only=True)

    @property
    def differentiated(self):
        """Numbers of the stages that depend on a parameter: the trained stages, and the stages between them and the end."""
        trained = {one.stage for one in self.parameters} | {stage for one in self.parameters for stage, _ in one.tied}
        moved, found = set(), []
        for number, stage in enumerate(self.graph.stages):
            read = {name for term in stage.terms for name in (term.source, term.data)}
            if number in trained or moved & (read | {stage.times}):
                moved.add(stage.output)
                found.append(number)
        return tuple(found)
