"""Labelled samples for training, and the loss and accuracy of a network on them."""

import functools
import hashlib
from dataclasses import dataclass

import numpy as np

from ..data.digits import DataError
from ..golden.arithmetic import round_bfloat16
from ..golden.training import cross_entropy, one_hot

__all__ = ["LabelledSamples", "Score"]


@dataclass(frozen=True, eq=False)
class LabelledSamples:
    """Samples and their classes.

    Parameters
    ----------
    rows : bfloat16 (count, values of a sample)
    labels : int64 (count,)
        Class numbers, counted from 0.
    """

    rows: np.ndarray
    labels: np.ndarray

    @classmethod
    def checked(cls, rows, labels, classes, what="the data"):
        """Rounds float32 rows to bfloat16 and checks the labels. Raises DataError, one line, if a label is not below `classes`.
        `what` names the samples in the message."""
        labels = np.asarray(labels).astype(np.int64)
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if len(wrong):
            raise DataError(
                f"{what}: label {labels[wrong[0]]} of sample {wrong[0]} is not a class of the model, 0 to {classes - 1}"
            )
        return cls(round_bfloat16(rows), labels)

    def __len__(self):
        return len(self.labels)

    def chosen(self, numbers):
        """Returns the samples with the given numbers, in the given order."""
        return LabelledSamples(self.rows[numbers], self.labels[numbers])

    @functools.cached_property
    def digest(self):
        """Returns a digest of samples and labels, which depends on their order."""
        digest = hashlib.sha256(str(self.rows.shape).encode())
        digest.update(np.ascontiguousarray(self.rows).view(np.uint16).data)
        digest.update(self.labels.data)
        return digest.hexdigest()[:32]


@dataclass(frozen=True)
class Score:
    """Loss and accuracy on a set of samples.

    Parameters
    ----------
    loss : float
        Mean cross-entropy over the samples.
    right, count : int
        Number of correctly classified samples, and of all samples.
    """

    loss: float
    right: int
    count: int

    @property
    def accuracy(self):
        """Returns the fraction of correctly classified samples, 0 to 1."""
        return self.right / self.count

    @classmethod
    def of(cls, logits, labels):
        """Computes loss and accuracy of logits (count, classes) for labels (count,)."""
        loss = cross_entropy(logits, one_hot(labels, logits.shape[1]))
        return cls(loss, int((logits.argmax(axis=1) == labels).sum()), len(labels))
