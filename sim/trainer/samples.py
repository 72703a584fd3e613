"""Samples with their right answers, as training takes them, and what a network makes of them."""

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
    """
    Parameters
    ----------
    rows : bfloat16 (count, values of a sample)
    labels : int64 (count,)
        Numbers of classes, from 0.
    """

    rows: np.ndarray
    labels: np.ndarray

    @classmethod
    def checked(cls, rows, labels, classes, what="the data"):
        """Of float32 rows, if every label is one of the classes. Raises DataError, one line."""
        labels = np.asarray(labels).astype(np.int64)
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if len(wrong):
            raise DataError(
                f"{what}: label {labels[wrong[0]]} of sample {wrong[0]} is none of the model's classes, 0 to {classes - 1}"
            )
        return cls(round_bfloat16(rows), labels)

    def __len__(self):
        return len(self.labels)

    def chosen(self, numbers):
        """Those with these numbers, in their order."""
        return LabelledSamples(self.rows[numbers], self.labels[numbers])

    @functools.cached_property
    def digest(self):
        """A text that other samples, or these in another order, do not have."""
        digest = hashlib.sha256(str(self.rows.shape).encode())
        digest.update(np.ascontiguousarray(self.rows).view(np.uint16).data)
        digest.update(self.labels.data)
        return digest.hexdigest()[:32]


@dataclass(frozen=True)
class Score:
    """
    Parameters
    ----------
    loss : float
        Mean cross-entropy.
    right, count : int
        Samples whose largest result is that of the label, and all.
    """

    loss: float
    right: int
    count: int

    @property
    def accuracy(self):
        """Share of samples that are right."""
        return self.right / self.count

    @classmethod
    def of(cls, logits, labels):
        """Of results (count, classes) and numbers of classes (count,)."""
        loss = cross_entropy(logits, one_hot(labels, logits.shape[1]))
        return cls(loss, int((logits.argmax(axis=1) == labels).sum()), len(labels))
