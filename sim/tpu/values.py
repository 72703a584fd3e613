"""Inputs and outputs of a model: their names, shapes and types, and how users' arrays become samples."""

from dataclasses import dataclass

import numpy as np
from onnx import helper

from ..data.samples import as_samples, joined_inputs

__all__ = ["Value", "inputs_of", "outputs_of", "samples_of"]


@dataclass(frozen=True)
class Value:
    """An input or output of a model.

    Parameters
    ----------
    name : str
    shape : tuple
        As the model has it; None is the axis of the samples, of which there may be any number. Of an output, its size may be a
        multiple of that number.
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
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(origin.element))
    return tuple(Value(one.name, _shape(origin, one.shape), dtype) for one in origin.inputs)


def outputs_of(network):
    """The outputs, a tuple of :class:`Value`."""
    origin = network.origin
    return tuple(
        Value(
            output.name,
            output.shape if origin.batch == 0 else output.shape_of(None),
            np.dtype(np.int64 if output.label else np.float32),
        )
        for output in origin.outputs
    )


def samples_of(network, x):
    """The :class:`sim.data.samples.Samples` of an array, or of a dict of arrays by the names of the inputs. The array for several
    inputs has all values of a sample one after the other.

    Raises
    ------
    sim.data.digits.DataError
        For other names, and for arrays that the model does not take.
    """
    return as_samples(network, joined_inputs(network, x) if isinstance(x, dict) else x)
