"""Losses of each position of a network's result."""

from ..functions.derivatives import Derivative
from ..functions.functions import NONE, Function
from ..ir.losses import Loss
from .stages import add_like, add_twin, filled, identity, scaled

__all__ = ["add_loss"]

#: The function of Y - T that is the gradient of a loss, up to a factor.
_OF_ERRORS = {Loss.SQUARED_ERROR: NONE, Loss.ABSOLUTE_ERROR: Derivative(Function("abs")), Loss.HUBER: Function("clip", (-1, 1))}


def add_loss(step, loss, counted):
    """Adds the gradient of the loss. Returns the name of the gradient.

    It is P - T for the cross-entropies, where P is the Softmax or the Sigmoid of the logits and T are the targets. For the
    others, it is a function of the error Y - T of the result Y. For the squared error, this is half the gradient. The targets
    become a tensor that the host writes. With `counted`, the host also writes a tensor with a factor for the loss of each
    position, for example 0 for padding.
    """
    last = next(stage for stage in step.stages if stage.output == step.output)
    tensor = step.tensors[step.output]
    step.targets = step.add_tensor("targets", tensor.shape)
    if counted:
        step.counted = step.add_tensor("counted", (tensor.height, tensor.width, 1))
    name, less = f"gradient of {step.output}", scaled(step, step.targets, filled(step, -1))
    if not loss.is_of_logits:
        return add_like(step, step.output, name, (less,), start=step.output, function=_OF_ERRORS[loss], times=step.counted)
    suffix, form = ("softmax", {"softmax": True}) if loss.is_of_classes else ("sigmoid", {"function": Function("sigmoid")})
    probabilities = add_twin(step, last, suffix, **form)
    return add_like(step, step.output, name, (identity(step, probabilities), less), times=step.counted)
