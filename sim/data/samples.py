"""Samples of any model: checks of shapes and types, and random samples."""

from dataclasses import dataclass
from math import prod

import numpy as np
from ml_dtypes import bfloat16

from .digits import DataError
from .printable import quoted

__all__ = [
    "Samples",
    "as_rows",
    "as_samples",
    "float_places",
    "joined_inputs",
    "random_samples",
    "takes_digits",
    "takes_integers",
]

_LARGEST = 2.0**128 - 2.0**119  # least magnitude that rounds to infinity in bfloat16


@dataclass(frozen=True)
class Samples:
    """Samples whose shape and values have been checked."""

    rows: np.ndarray
    alone: bool = False  # True if the user gave one sample without a batch axis


def _sample_shape(network):
    return tuple(network.input_shape) or (network.sample_size,)


def _elements(network):
    """Returns `[(name, slice, element type)]` of the inputs, with their slices of a flattened sample."""
    if network.origin is None:
        return [("", slice(None), np.dtype(np.float32))]
    from onnx import helper  # slow to import, and only needed for networks from ONNX files

    types = (np.dtype(helper.tensor_dtype_to_np_dtype(one.element)) for one in network.origin.inputs)
    return [(one.name, one.place, element) for one, element in zip(network.origin.inputs, types)]


def float_places(network):
    """Returns True for each value of a sample that is neither an integer nor a row number of a table, (values of a sample,)."""
    places = np.zeros(network.sample_size, bool)
    for _, place, element in _elements(network):
        places[place] = element.kind not in "iub"
    for feed in network.feeds:
        if feed.table is not None:
            places[feed.places] = False
    return places


def as_rows(network, array):
    """Reshapes an array of samples to (count, values of a sample), without a copy. Raises DataError if the shape does not fit.
    The message lists the valid shapes.

    Parameters
    ----------
    array : array
        Shape (count, *shape of a sample) or (count, values of a sample). Axes of one element may be left out or added. A model
        of flat samples takes samples of any shape with as many values, in row-major order. If the model's input has no batch
        axis: also the shape of one sample.

    Returns
    -------
    array, bool
        The reshaped samples, and True if the array is one sample without a batch axis.
    """
    shape, size, array = _sample_shape(network), network.sample_size, np.asarray(array)
    alone = network.origin is not None and network.origin.batch == 0
    alone = alone and (array.shape == shape or array.ndim == 0 and size == 1)
    if alone or array.ndim and len(array) and _has_values(array.shape[1:], shape, size):
        return array.reshape(-1, size), alone
    fitting = dict.fromkeys([("count", *shape), ("count", size)])
    if network.origin is not None and network.origin.batch == 0:
        fitting[shape] = None
    raise DataError(
        f"samples of shape {_shown(array.shape)} do not fit the model; it takes {' or '.join(map(_shown, fitting))}"
        + (", with a count of at least 1" if 0 in array.shape[:1] else "")
    )


def _has_values(given, shape, size):
    """Returns True if samples of the shape `given` have the values of a model's sample, `shape`, in the same order."""
    is_flat = len(shape) == 1 or given == (size,)
    return prod(given) == size and (is_flat or _long_axes(given) == _long_axes(shape))


def _long_axes(shape):
    return [count for count in shape if count != 1]


def joined_inputs(network, arrays):
    """Concatenates the arrays of a model's inputs, {name: array (count, *shape)}, to samples (count, values). Raises DataError
    if names, shapes or numbers of samples do not fit.

    If the model has one input, its array is returned unchanged. Arrays of the shapes of a model without a batch are one sample.
    """
    inputs = network.origin.inputs
    names = [one.name for one in inputs]
    if set(arrays) != set(names):
        wanted, given = (", ".join(map(quoted, map(str, one))) or "nothing" for one in (names, arrays))
        raise DataError(f"the model's {'inputs are' if len(names) > 1 else 'input is'} {wanted}, not {given}")
    arrays = [np.asarray(arrays[name]) for name in names]
    if len(arrays) == 1:
        return arrays[0]
    if network.origin.batch == 0 and all(array.shape == tuple(one.shape) for one, array in zip(inputs, arrays)):
        return np.concatenate([array.reshape(-1) for array in arrays])
    for one, array in zip(inputs, arrays):
        if array.shape != (len(arrays[0]) if arrays[0].ndim else 0, *one.shape) or not len(array):
            raise DataError(
                f"input {quoted(one.name)}: an array of shape {_shown(array.shape)} does not fit; it takes "
                f"{_shown(('count', *one.shape))}, with the same count for each input, at least 1"
            )
    return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def _shown(shape):
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def as_samples(network, array, most=None):
    """Checks an array of samples. Converts at most `most` samples to the type of the model's input, and then to float32. Raises
    DataError if the shape or a value does not fit. The message is one line that names it.
    Returns :class:`Samples`.

    NaNs, infinities, and values that are infinite in bfloat16 are refused, because the core's results would differ from ONNX.

    Parameters
    ----------
    array : array
        Numbers in a shape that :func:`as_rows` accepts.
    """
    array = np.asarray(array)
    if array.dtype.kind not in "fiub" and array.dtype != bfloat16:
        raise DataError(f"samples must be numbers, best float32, not {array.dtype}")
    rows, alone = as_rows(network, array)
    rows, inputs = rows[:most], _elements(network)
    parts = [_converted(rows[:, place], element, quoted(name) if len(inputs) > 1 else "") for name, place, element in inputs]
    values = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    for feed in network.feeds:
        if feed.table is not None:
            _check_row_numbers(network, rows, values, feed)
    return Samples(values, alone)


def _converted(rows, element, name):
    """Returns an input's values in float32, by way of its element type."""
    with np.errstate(all="ignore"):
        values = rows.astype(np.float32)
        if element.kind in "iub":
            limits = (0, 1) if element.kind == "b" else (np.iinfo(element).min, np.iinfo(element).max)
            _refuse(
                rows,
                (rows != np.rint(values)) | (values < limits[0]) | (values > limits[1]),
                f"is not of type {element}, which the model takes; convert the samples",
                name,
            )
        elif element.itemsize < 4:
            values = rows.astype(element).astype(np.float32)
        _refuse(rows, ~np.isfinite(rows), "is not a finite number", name)
        too_large = f"is too large for {'float16' if element == np.float16 else 'bfloat16'}"
        _refuse(rows, ~(np.abs(values) < _LARGEST), too_large, name)
    return values


def _check_row_numbers(network, rows, values, feed):
    count, places = len(feed.table), feed.places
    outside = (values[:, places] < -count) | (values[:, places] >= count)
    if outside.any():
        sample, position = np.argwhere(outside)[0]
        place = places[position]
        one = next(one for one in network.origin.inputs if one.place.start <= place < one.place.stop)
        where = f"value {place - one.first} of sample {sample}"
        raise DataError(
            f"input {quoted(one.name)}: {where}, {int(rows[sample, place])}, is not a row of its table of {count} rows; "
            f"it must be from 0 to {count - 1}; {int(outside.sum())} such values in all"
        )


def _refuse(rows, bad, why, name):
    if bad.any():
        sample, value = np.argwhere(bad)[0]
        where = f"value {value} of sample {sample}{f' of input {name}' if name else ''}"
        raise DataError(f"{where}, {rows[sample, value]}, {why}; {int(bad.sum())} such values in all")


def random_samples(network, count, seed):
    """Returns `count` random samples from a seed.

    Values are normally distributed with mean 0 and deviation 1. For an integer input they are uniform from 0 to 255, to the
    type's maximum, or to the last row of the table that they select from. The first samples do not depend on `count`.
    """
    inputs, random = _elements(network), np.random.default_rng(seed)
    if all(element.kind not in "iub" for _, _, element in inputs):
        return as_samples(network, random.standard_normal((count, network.sample_size), np.float32))
    limits = np.full(network.sample_size, 255)
    for _, place, element in inputs:
        if element.kind in "iub":
            limits[place] = 1 if element.kind == "b" else min(255, np.iinfo(element).max)
    for feed in network.feeds:
        if feed.table is not None:
            limits[feed.places] = np.minimum(limits[feed.places], len(feed.table) - 1)
    rows = random.integers(0, limits + 1, (count, network.sample_size))
    if any(element.kind not in "iub" for _, _, element in inputs):
        rows = rows.astype(np.float64)
        for _, place, element in inputs:
            if element.kind not in "iub":
                rows[:, place] = random.standard_normal(rows[:, place].shape)
    return as_samples(network, rows)


def takes_digits(network):
    """Returns True if the model's input is an image of 28 x 28 pixels."""
    shape = tuple(size for size in _sample_shape(network) if size != 1)
    return prod(shape) == 784 and shape in ((784,), (28, 28))


def takes_integers(network):
    """Returns True if all inputs of the model have integer types."""
    return all(element.kind in "iub" for _, _, element in _elements(network))
