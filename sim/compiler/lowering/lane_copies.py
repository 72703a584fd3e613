"""Copies as vectors: which vectors of the source, or which of their lanes, each vector of the result has."""

from dataclasses import dataclass, field, replace

import numpy as np

from ...golden.arithmetic import bfloat16
from ...ir.strided_copies import places_of
from ...ir.tiles import tiles_of

__all__ = ["LaneCopies", "VectorCopies", "with_lanes"]


@dataclass(eq=False)
class VectorCopies:
    """The copies of a product, vector by vector, by tiles of weights."""

    #: Int array (copies, 5). Position and tile of a vector of the result, position and tile of a vector of the source, and number
    #: of the tile of weights.
    entries: np.ndarray
    #: Int array (copies, 5). Position and tile of a vector of the result, position and tile of the first vector of the source,
    #: and the lane. A vector of the result has one lane of consecutive vectors of the source, which are the weights.
    turned: np.ndarray = field(default_factory=lambda: np.zeros((0, 5), int))


class LaneCopies(VectorCopies):
    """The copies of a term. Each has one tile of weights, of zeros and ones, which chooses lanes.

    Members
    -------
    choices : int array (choices, n)
        For each lane of the result, the lane of the source; -1: none.
    """

    def __init__(self, copies, source, result, n):
        size, tiles = result.height * result.width, tiles_of(result.channels, n)
        index = places_of(copies, size * result.channels).reshape(size, result.channels)
        index = np.pad(index, ((0, 0), (0, tiles * n - result.channels)), constant_values=-1).reshape(-1, n)
        position, channel = np.divmod(index, source.channels)
        lanes, each = channel % n, tiles_of(source.channels, n)
        lasts = np.where(np.arange(len(index)) % tiles == tiles - 1, (result.channels - 1) % n + 1, n)
        beyond = np.arange(n) >= lasts[:, None]
        is_turned = (index[:, 0] >= 0) & (lasts > 1) & (beyond | (channel == channel[:, :1])).all(axis=1)
        is_turned &= (beyond | (position == position[:, :1] + np.arange(n))).all(axis=1)
        written = np.flatnonzero(is_turned)
        firsts = position[written, 0], channel[written, 0] // n, lanes[written, 0]
        self.turned = np.stack([written // tiles, written % tiles, *firsts], axis=1)
        left, found = np.where((index < 0) | is_turned[:, None], -1, position * each + channel // n), []
        while (vectors := np.flatnonzero((left >= 0).any(axis=1))).size:
            some = left[vectors]
            vector = some.max(axis=1)
            own = some == vector[:, None]
            found.append((vectors, vector, np.where(own, lanes[vectors], -1)))
            left[vectors] = np.where(own, -1, some)
        empty = np.zeros(0, int), np.zeros(0, int), np.full((0, n), -1)
        written, read, chosen = map(np.concatenate, zip(empty, *found))
        self.choices, numbers = np.unique(chosen if len(chosen) else np.arange(n)[None], axis=0, return_inverse=True)
        numbers = numbers.reshape(-1)[: len(written)]
        self.entries = np.stack([written // tiles, written % tiles, read // each, read % each, numbers], axis=1)

    @property
    def weights(self):
        """Returns the tiles of all choices side by side, bfloat16 (1, n, choices * n)."""
        lane = np.arange(self.choices.shape[1])
        return np.where(lane[:, None, None] == self.choices, 1, bfloat16(-0.0)).astype(bfloat16).reshape(1, len(lane), -1)


def with_lanes(step, n):
    """Returns the step in which the weights of copies by strides are tiles that choose lanes."""
    if not any(term.copies for stage in step.stages for term in stage.terms):
        return step
    made, stages = step.copied(), []
    for stage in step.stages:
        terms = tuple(_with_choices(made, stage, term, n) if term.copies else term for term in stage.terms)
        stages.append(replace(stage, terms=terms))
    made.stages = stages
    return made


def _with_choices(made, stage, term, n):
    copies = LaneCopies(term.copies, made.tensors[term.source], made.tensors[stage.output], n)
    return replace(term, weights=made.constant(f"{stage.name or stage.output}, lanes", copies.weights), copies=copies)
