"""Comparisons of integers of an input with constants. They give truth values, the numbers 0 and 1.

The core rounds integers above 256 to bfloat16. Rounding keeps their order, so comparisons with small constants stay exact.
"""

from dataclasses import replace

import numpy as np

from ...functions.functions import RELU, Function
from ...ir.errors import ModelError
from ..index.values import SymbolicTensor
from ..registry import ELEMENTWISE, operator
from .activations import apply_function
from .elementwise import affine

__all__ = ["compared"]

#: Operator to the operator with its operands exchanged.
_EXCHANGED = {
    "Equal": "Equal",
    "Greater": "Less",
    "GreaterOrEqual": "LessOrEqual",
    "Less": "Greater",
    "LessOrEqual": "GreaterOrEqual",
}
_MOST = 255  # a larger integer may be rounded to the next one


@operator("Equal", group=ELEMENTWISE, counts_from_end=True)
def _equal(step, tensor):
    raise ModelError(f"{step.title}: is only supported for integers of an input and a constant; cut the model before it")


def compared(step, tensor):
    """Returns the truth values of a comparison of integers with a constant. Returns None for any other operator, and for a scalar
    input, which selects a branch in most models and then must be constant."""
    if step.operator not in _EXCHANGED or not tensor.integer or tensor.truth or tensor.dims == ():
        return None
    constant = step.arguments[step.arguments[0] is tensor]
    if isinstance(constant, SymbolicTensor):
        return None
    if constant.size and np.abs(constant.astype(np.float64)).max() > _MOST:
        largest = constant.flat[np.abs(constant.astype(np.float64)).argmax()]
        raise ModelError(
            f"{step.title}: compares integers with {largest}; only constants from -{_MOST} to {_MOST} are supported; "
            f"compare on the host"
        )
    kind = step.operator if step.arguments[0] is tensor else _EXCHANGED[step.operator]
    constant, tensor = constant.astype(np.float64), replace(tensor, integer=False)
    if kind == "Equal":
        distance = apply_function(step, affine(step, tensor, shift=-constant), Function("abs"))
        result = apply_function(step, affine(step, distance, scale=np.array(-1.0), shift=np.array(1.0)), RELU)
    else:
        sign = 1.0 if kind.startswith("Greater") else -1.0
        shift = (1.0 if kind.endswith("Equal") else 0.0) - sign * constant
        result = apply_function(step, affine(step, tensor, scale=np.array(sign), shift=shift), Function("clip", (0.0, 1.0)))
    return replace(result, integer=True, truth=True)
