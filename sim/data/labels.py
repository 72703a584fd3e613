"""Labels of samples: checks of class numbers and of wanted results."""

import numpy as np
from ml_dtypes import bfloat16

from .errors import DataError

__all__ = ["PADDING", "as_labels", "as_wanted"]

#: Label of a position that does not count, as in PyTorch.
PADDING = -100


def as_labels(array, count, classes, positions=1, what="labels"):
    """Returns the classes of samples, int64 (count,), or (count, positions) for several positions. Raises DataError if the
    shape or a value does not fit. The message is one line.

    Integers of shape (count,) or (count, 1), or one-hot rows (count, classes), fit a model of one position. For several
    positions, integers of shape (count, positions) or (count, height, width) fit, where -100 does not count. Integers may have
    any type, also float.

    Parameters
    ----------
    array : array
    count, classes, positions : int
        Number of samples, of classes, and of positions of each sample.
    what : str
        Name of the array for messages.
    """
    array = np.asarray(array)
    if positions == 1 and classes > 1 and array.shape == (count, classes) and _are_one_hot(array):
        return array.argmax(axis=1).astype(np.int64)
    wanted = (count,) if positions == 1 else (count, positions)
    fits = array.ndim and len(array) == count and array.size == count * positions
    if not fits or not _are_integers(array):
        each = "one per sample" if positions == 1 else f"{positions} per sample"
        one_hot = f", or one-hot rows ({count}, {classes})" if positions == 1 else ""
        raise DataError(
            f"{what}: must hold {count * positions} integers of shape {wanted}, {each}{one_hot}, not {array.dtype} of shape "
            f"{array.shape}"
        )
    array = array.astype(np.int64).reshape(wanted)
    wrong = np.argwhere(((array < 0) | (array >= classes)) & ((array != PADDING) | (positions == 1)))
    if len(wrong):
        at = f"sample {wrong[0][0]}" + (f", position {wrong[0][1]}," if positions > 1 else "")
        raise DataError(f"{what}: label {array[tuple(wrong[0])]} of {at} is not a class of the model, 0 to {classes - 1}")
    return array


def _are_integers(array):
    return array.dtype.kind in "iu" or array.dtype.kind == "f" and bool((array == np.rint(array)).all())


def _are_one_hot(array):
    return bool((((array == 0) | (array == 1)).all(axis=1) & ((array == 1).sum(axis=1) == 1)).all())


def as_wanted(array, count, size, what="labels"):
    """Returns wanted results of a network, `size` numbers for each of `count` samples, as bfloat16 (count, size). `what` names
    the array in messages. Raises DataError."""
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" or not array.ndim or len(array) != count or array.size != count * size:
        raise DataError(
            f"{what}: must hold the wanted results, numbers of shape ({count}, {size}), not {array.dtype} of shape {array.shape}"
        )
    values = array.astype(np.float32).reshape(count, size)
    if not np.isfinite(values.astype(bfloat16).astype(np.float32)).all():
        raise DataError(f"{what}: has wanted results that are not finite in bfloat16; scale them")
    return values.astype(bfloat16)
