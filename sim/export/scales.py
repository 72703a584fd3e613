"""Constant factors of parameters, such as attention's 1 / sqrt(width of a head), as powers of two.

The reader multiplies such a factor into the weights, which are then rounded. A file with a power of two in place of the factor
can hold every rounded weight.
"""

import math

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

__all__ = ["FLOATS", "parameter_values", "with_powers"]

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_ALIKE = 0.02  # relative difference of factors, above the rounding to bfloat16
_APART = 0.1  # of a power of four from a number, as a logarithm to the base 4
_CLEAR = 0.1  # largest difference of a measured exponent from a multiple of 1/2


def parameter_values(graph, parameters):
    """Returns the values of the parameters in a graph with the same stages. A missing one is None."""
    return [graph.constants.get(name) for name in parameters]


def with_powers(model, read, parameters):
    """Replaces single numbers in a model that only multiply parameters. Each becomes a power of four, whose root is a power of
    two, too. The power is far enough from the number to show in the rounded parameters. Returns `(model, ratios, names)`.

    Parameters
    ----------
    model : onnx.ModelProto
    read : callable
        `read(model)` returns the graph of a model whose weights are all near 1, or None.
    parameters : dict of str to sim.ir.graph.Parameter

    Returns
    -------
    model : onnx.ModelProto
        A changed copy.
    ratios : array
        For each parameter, its constant factor in the changed model divided by its factor in the model; NaN if it is not known.
    names : list of str
        Initializers that were replaced.
    """
    changed, ratios, names = onnx.ModelProto(), np.ones(len(parameters)), []
    changed.CopyFrom(model)
    before = read(changed)
    for tensor, value in _numbers(changed):
        array, power = numpy_helper.to_array(tensor), 4.0 ** math.floor(math.log2(value) / 2 - _APART)
        tensor.CopyFrom(numpy_helper.from_array(np.full_like(array, power), tensor.name))
        after = read(changed)
        if after is not None and _only_parameters_differ(before, after, parameters):
            pairs = zip(parameter_values(before, parameters), parameter_values(after, parameters))
            ratios *= [(power / value) ** _exponent(*pair, power / value) for pair in pairs]
            before = after
            names.append(tensor.name)
        else:
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return changed, ratios, names


def _exponent(before, after, ratio):
    """Returns the exponent of a constant in the factor of a parameter, from the parameter's rounded values before and after the
    constant was multiplied by `ratio`. Returns NaN if the rounding hides it."""
    if before is None or not before.size or not (before > 0).all():
        return 0
    found = np.log(after.astype(np.float64) / before.astype(np.float64)).mean() / math.log(ratio)
    exponent = round(2 * found) / 2
    return exponent if abs(found - exponent) < _CLEAR else math.nan


def _numbers(model):
    """Returns the tensors of one number that is positive and no power of two, with the number."""
    constants = (
        one.t for node in model.graph.node if node.op_type == "Constant" for one in node.attribute if one.name == "value"
    )
    found = []
    for tensor in (*model.graph.initializer, *constants):
        if tensor.data_type in FLOATS and math.prod(tensor.dims) == 1:
            value = float(numpy_helper.to_array(tensor).reshape(()))
            if 0 < value < math.inf and math.frexp(value)[0] != 0.5:
                found.append((tensor, value))
    return found


def _only_parameters_differ(one, other, parameters):
    """Returns True if two graphs differ in nothing but a factor of each parameter."""
    pairs = [(one.constants[name], other.constants.get(name), name in parameters) for name in one.constants]
    return [*one.stages] == [*other.stages] and all(_are_alike(*pair) for pair in pairs)


def _are_alike(one, other, may_differ):
    if other is None or one.shape != other.shape:
        return False
    one, other = (values.astype(np.float64) for values in (one, other))
    if not may_differ or (one <= 0).any():
        return bool(np.array_equal(one, other))
    ratios = other / one
    return bool((np.abs(ratios / ratios.flat[0] - 1) < _ALIKE).all())
