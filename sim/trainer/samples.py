"""Samples with labels or wanted numbers for training, and the loss and accuracy of a network on them."""

import functools
import hashlib
from dataclasses import dataclass, replace

import numpy as np

from ..data.digits import DataError
from ..data.labels import PADDING
from ..golden.arithmetic import round_bfloat16
from ..golden.losses import Positions, cross_entropy, loss_of, one_hot
from ..ir.losses import JointLoss

__all__ = ["LabelledSamples", "Objective", "Score", "windows_of_text"]

_HASHED = 4096  # samples that a digest reads at a time


@dataclass(frozen=True, eq=False)
class LabelledSamples:
    """Samples and their classes, or the numbers that a network should compute."""

    #: Bfloat16 or float32 (count, values of a sample). float32 for models whose inputs are row numbers of tables.
    rows: np.ndarray  # or an object that becomes a part of such an array by an index and `np.asarray`
    #: Int64 (count,) or (count, positions); bfloat16 (count, output size). Class numbers, counted from 0; `PADDING` does not
    #: count. Wanted numbers for losses that are not of classes.
    labels: np.ndarray
    #: Bfloat16 (count, output size) or None. Shares of the classes in place of one label, in the order of the model's outputs.
    shares: np.ndarray | None = None
    #: Float32 (count, positions) or None. Factor of the loss of each position.
    factors: np.ndarray | None = None

    @classmethod
    def checked(cls, rows, labels, classes, what="the data"):
        """Rounds float32 rows to bfloat16 and checks the labels. Raises DataError, one line, if a label is neither below
        `classes` nor `PADDING`. `what` names the samples in the message."""
        labels = np.asarray(labels).astype(np.int64)
        wrong = np.argwhere(((labels < 0) | (labels >= classes)) & (labels != PADDING))
        if len(wrong):
            where = f"sample {wrong[0][0]}" + (f", position {wrong[0][1]}," if labels.ndim > 1 else "")
            raise DataError(f"{what}: label {labels[tuple(wrong[0])]} of {where} is not a class of the model, 0 to {classes - 1}")
        return cls(round_bfloat16(rows), labels)

    def __len__(self):
        return len(self.labels)

    def chosen(self, numbers):
        """Returns the samples with the given numbers, in the given order."""
        more = (None if one is None else one[numbers] for one in (self.shares, self.factors))
        return LabelledSamples(self.rows[numbers], self.labels[numbers], *more)

    @property
    def is_counted(self):
        """Returns True if a label is `PADDING`, or positions have factors."""
        return self.factors is not None or self.labels.dtype == np.int64 and bool((self.labels == PADDING).any())

    @property
    def is_plain(self):
        """Returns True without shares and factors."""
        return self.shares is None and self.factors is None

    @functools.cached_property
    def digest(self):
        """Returns a digest of samples and labels, which depends on their order."""
        digest = hashlib.sha256(str(self.rows.shape).encode())
        for array in (one for one in (self.rows, self.labels, self.shares, self.factors) if one is not None):
            for first in range(0, len(array), _HASHED):  # an array in a file is not read as a whole
                digest.update(np.ascontiguousarray(array[first : first + _HASHED]).view(np.uint8).data)
        return digest.hexdigest()[:32]


def windows_of_text(ids, tokens):
    """Returns samples of `tokens` consecutive token ids, whose labels are the ids one place later. Windows do not overlap; the
    end of the text that does not fill a window is dropped."""
    count = (len(ids) - 1) // tokens
    rows, labels = (np.asarray(ids)[first : first + count * tokens].reshape(count, tokens) for first in (0, 1))
    return LabelledSamples(rows.astype(np.float32), labels.astype(np.int64))


class Objective:
    """The loss of a network, with the arrangement of its results.

    Parameters
    ----------
    network : sim.ir.graph.Graph
    """

    def __init__(self, network):
        self.network, self.positions = network, Positions(network)

    def targets(self, labels, shares=None, factors=None):
        """Returns `(targets, counted)` of a step, as :func:`sim.golden.training.step` takes them. Arguments are as in
        :class:`LabelledSamples`."""
        if not self.network.loss.is_of_classes:
            return labels, None if factors is None else _scaled(np.ones(factors.shape), factors)
        counted = (np.asarray(labels).reshape(len(labels), -1) != PADDING).astype(np.int64) if self.network.is_counted else None
        targets = self.positions.targets(labels) if shares is None else shares
        return targets, counted if factors is None else _scaled(counted, factors)

    def score(self, results, labels, shares=None, factors=None):
        """Returns the :class:`Score` of results (count, output size). Arguments are as in :class:`LabelledSamples`. Factors and
        shares change the loss alone, not the accuracy."""
        vectors = self.positions.vectors(results)
        loss = self.network.loss
        if shares is not None or factors is not None:
            targets, counted = self.targets(labels, shares, factors)
            return replace(self.score(results, labels), loss=loss_of(loss, vectors, self.positions.vectors(targets), counted))
        if isinstance(loss, JointLoss):
            return Score.of_outputs(loss, vectors, self.positions.vectors(labels))
        if not loss.is_of_classes:
            return Score.of_numbers(loss, vectors, self.positions.vectors(labels))
        return Score.of(vectors, np.asarray(labels).reshape(len(labels), -1))


def _scaled(counted, factors):
    """Returns the factors of counted positions. A step divides by the number of factors above 0, so factors of 0 make the others
    smaller."""
    factors = counted * factors
    return round_bfloat16((factors * (np.count_nonzero(factors) / max(1, counted.sum()))).astype(np.float32))


@dataclass(frozen=True)
class Score:
    """Loss and accuracy on a set of samples."""

    loss: float  # mean loss over the counted positions of the samples
    #: Number of correctly classified positions; of results on the right side of 0.5 for the binary cross-entropy. None for losses
    #: of numbers.
    right: int | None
    count: int  # number that `right` is a share of; of samples for losses of numbers

    @property
    def accuracy(self):
        """Returns the fraction of correctly classified positions, 0 to 1, or None for losses of numbers."""
        return None if self.right is None else self.right / max(1, self.count)

    @classmethod
    def of(cls, logits, labels):
        """Computes loss and accuracy of logits (..., classes) for labels (...); `PADDING` does not count."""
        counted = labels != PADDING
        loss = cross_entropy(logits, one_hot(labels, logits.shape[-1]), None if counted.all() else counted)
        return cls(loss, int((logits.argmax(axis=-1) == labels).sum()), int(counted.sum()))

    @classmethod
    def of_numbers(cls, loss, vectors, wanted):
        """Computes a loss that is not of classes, and the accuracy of logits, for wanted numbers (count, positions, channels)."""
        mean = loss_of(loss, vectors, wanted)
        if not loss.is_of_logits:
            return cls(mean, None, len(wanted))
        return cls(mean, int(((vectors > 0) == (wanted.astype(np.float32) > 0.5)).sum()), wanted.size)

    @classmethod
    def of_outputs(cls, loss, vectors, wanted):
        """Computes a joint loss, and the accuracy over all outputs that have one."""
        scores = cls.by_output(loss, vectors, wanted)
        right = [one for one in scores.values() if one.right is not None]
        total = sum(head.weight * scores[head.name].loss for head in loss.heads)
        count = sum(one.count for one in right) if right else len(wanted)
        return cls(total, sum(one.right for one in right) if right else None, count)

    @classmethod
    def by_output(cls, loss, vectors, wanted):
        """Returns the score of each output of a joint loss, by name."""
        found = {}
        for head in loss.heads:
            one, other = vectors[..., head.place], wanted[..., head.place]
            numbers = head.loss, one, other
            found[head.name] = cls.of(one, other.argmax(-1)) if head.loss.is_of_classes else cls.of_numbers(*numbers)
            if head.loss.is_of_classes:  # targets may be shares of classes
                found[head.name] = replace(found[head.name], loss=loss_of(*numbers))
        return found
