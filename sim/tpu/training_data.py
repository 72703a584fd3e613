"""Samples and labels for training and evaluation, from arrays."""

import numpy as np

from ..data.digits import DataError
from ..trainer.errors import ArgumentError
from ..trainer.order import held_out
from ..trainer.samples import LabelledSamples
from .values import samples_of

__all__ = ["class_numbers", "labelled", "training_sets"]


def class_numbers(y, count, classes):
    """Returns the class of each sample, int64 (count,).

    Parameters
    ----------
    y : array
        Class numbers, (count,) or (count, 1), or one-hot rows (count, classes).
    count, classes : int
        Number of samples, and of classes.

    Raises
    ------
    sim.data.digits.DataError
        If the shape or a value does not fit.
    """
    y = np.asarray(y)
    if y.dtype.kind not in "fiub" or y.shape not in ((count,), (count, 1), (count, classes)):
        raise DataError(
            f"y: {y.dtype} of shape {y.shape} does not fit {count} samples; it takes class numbers ({count},), or one-hot rows "
            f"({count}, {classes})"
        )
    if y.shape == (count, classes) and classes > 1:
        wrong = np.flatnonzero(((y != 0) & (y != 1)).any(axis=1) | (y.sum(axis=1) != 1))
        if len(wrong):
            raise DataError(f"y: row {wrong[0]} is not one-hot; give one 1 and zeros, or class numbers ({count},)")
        return y.argmax(axis=1)
    y = y.reshape(count)
    wrong = np.flatnonzero(y != np.rint(y))
    if len(wrong):
        raise DataError(f"y: {y[wrong[0]]} of sample {wrong[0]} is not a class number; give integers from 0")
    return y.astype(np.int64)


def labelled(network, x, y, name="y"):
    """Returns :class:`.LabelledSamples` from arrays. `name` stands for the labels in messages. Raises DataError."""
    rows, classes = samples_of(network, x).rows, network.output_size
    return LabelledSamples.checked(rows, class_numbers(y, len(rows), classes), classes, name)


def training_sets(network, x, y, split, data, seed):
    """Returns `(training set, validation set or None)`, for the arguments `validation_split` and `validation_data` of
    :meth:`sim.tpu.model.Model.fit`. Raises DataError or ArgumentError."""
    samples = labelled(network, x, y)
    if data is not None:
        if split:
            raise ArgumentError("`validation_split` and `validation_data` exclude each other; give one")
        if not isinstance(data, (tuple, list)) or len(data) != 2:
            raise ArgumentError("`validation_data` must be a pair (x, y)")
        return samples, labelled(network, *data, name="validation_data")
    if not 0 <= split < 1:
        raise ArgumentError(f"`validation_split` must be at least 0 and less than 1, not {split!r}")
    if not split:
        return samples, None
    kept, held = held_out(seed, len(samples), split)
    if not len(held) or not len(kept):
        raise ArgumentError(f"`validation_split` {split} of {len(samples)} samples leaves a set empty; give another fraction")
    return samples.chosen(kept), samples.chosen(held)
