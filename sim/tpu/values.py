"""Inputs and outputs of a model: their names, shapes and types, and how users' arrays become samples."""

from dataclasses import dataclass

import numpy as np
from onnx import helper

from ..data.digits import DataError
from ..data.printable import quoted
from ..data.samples import as_samples

__all__ = ["Value", "inputs_of", "outputs_of", "samples_of"]


@dataclass(frozen=True)
class Value:
    """An input or output of a model.

    Parameters
    ----------
    name : str
    shape : tuple
        As the model has it; None is the axis of the samples, of which there may be any number.
    dtype : dtype
        Arrays of other types of numbers are taken too; results are float32, or int64 if they are numbers of classes.
    """

    name: str
    shape: tuple
    dtype: np.dtype


def _shape(origin, sample):
    return tuple(sample) if origin.batch == 0 else (None, *sample)


def inputs_of(network):
    """The inputs, a tuple of :class:`Value`."""
    origin = network.origin
    return (Value(origin.input, _shape(origin, origin.sample), np.dtype(helper.tensor_dtype_to_np_dtype(origin.element))),)


def outputs_of(network):
    """The outputs, a tuple of :class:`Value`."""
    origin = network.origin
    return tuple(
        Value(output.name, _shape(origin, output.shape), np.dtype(np.int64 if output.label else np.float32))
        for output in origin.outputs
    )


def samples_of(network, x):
    """The :class:`sim.data.samples.Samples` of an array, or of a dict of arrays by the names of the inputs.

    Raises
    ------
    sim.data.digits.DataError
        For other names, and for arrays that the model does not take.
    """
    if isinstance(x, dict):
        name = network.origin.input
        if set(x) != {name}:
            raise DataError(f"the model's input is {quoted(name)}, not {', '.join(map(quoted, map(str, x))) or 'nothing'}")
        x = x[name]
    return as_samples(network, x)
