"""Inputs and outputs of a model: names, shapes and types, and the conversion of arrays to samples."""

from dataclasses import dataclass

import numpy as np
from onnx import helper

from ..data.errors import DataError
from ..data.printable import printable
from ..data.samples import as_samples, joined_inputs
from .arguments import as_array

__all__ = ["Value", "inputs_of", "outputs_of", "samples_of"]


@dataclass(frozen=True)
class Value:
    """The description of an input or output of a model.

    Parameters
    ----------
    name : str
    shape : tuple
        Shape in the model. The batch axis, of any size, is None. On an output, the size of this axis may be a multiple of the
        number of samples.
    dtype : dtype
        Type in the model. Inputs of other numeric types are accepted. Outputs are float32, or int64 for class numbers.
    """

    name: str
    shape: tuple
    dtype: np.dtype


def _shape(origin, sample):
    return tuple(sample) if origin.batch == 0 else (None, *sample)


def inputs_of(network):
    """Returns the inputs of a network, as a tuple of :class:`Value`."""
    origin = network.origin
    types = (np.dtype(helper.tensor_dtype_to_np_dtype(one.element)) for one in origin.inputs)
    return tuple(Value(one.name, _shape(origin, one.shape), dtype) for one, dtype in zip(origin.inputs, types))


def outputs_of(network):
    """Returns the outputs of a network, as a tuple of :class:`Value`."""
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
    """Converts an array or tensor, or a dict of them by the names of the inputs, to :class:`sim.data.samples.Samples`.

    For a model with several inputs, an array has the values of all inputs in each row, one input after the other.

    Raises
    ------
    sim.data.digits.DataError
        If a name is unknown, an array does not fit the model, or a list has an array for each of several inputs.
    """
    inputs = network.origin.inputs
    if isinstance(x, (list, tuple)) and len(inputs) == len(x) > 1 and any(getattr(one, "ndim", 0) > 1 for one in x):
        names = ", ".join(f"{one.name!r}: ..." for one in inputs)
        raise DataError(f"a list of arrays does not name the model's inputs; give a dict, {printable('{' + names + '}', 200)}")
    if isinstance(x, dict):
        x = joined_inputs(network, {name: as_array(one) for name, one in x.items()})
    return as_samples(network, as_array(x))
