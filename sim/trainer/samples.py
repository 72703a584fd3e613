"""Samples with their right answers, as training takes them, and what a network makes of them."""

import hashlib
from dataclasses import dataclass

import numpy as np

from ..data.digits import DataError
from ..golden.arithmetic import bfloat16, round_bfloat16

__all__ = ["LabelledSamples", "one_hot", "cross_entropies", "Score"]


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

    def digest(self):
        """A text that other samples, or these in another order, do not have."""
        digest = hashlib.sha256(str(self.rows.shape).encode())
        digest.update(np.ascontiguousarray(self.rows).view(np.uint16).data)
        digest.update(self.labels.data)
        return digest.hexdigest()[:32]


def one_hot(labels, classes):
    """Targets: bfloat16 (count, classes), 1 at each label, else 0."""
    return np.eye(classes, dtype=bfloat16)[labels]


def cross_entropies(logits, labels):
    """float64 (count,): -log softmax(logits) at the labels."""
    values = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        values = values - values.max(axis=1, keepdims=True)
        return np.log(np.exp(values).sum(axis=1)) - values[np.arange(len(labels)), labels]


@dataclass(frozen=True)
class Score:
    """
    Parameters
    ----------
    loss : float
        Mean cross-entropy.
    accuracy : float
        Share of samples whose largest result is that of the label.
    """

    loss: float
    accuracy: float

    @classmethod
    def of(cls, logits, labels):
        return cls(float(cross_entropies(logits, labels).mean()), float((logits.argmax(axis=1) == labels).mean()))
