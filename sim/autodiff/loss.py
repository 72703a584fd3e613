"""Losses of each position of a network's result: softmax cross-entropy, and squared error."""

from ..ir.losses import Loss
from .stages import add_like, add_twin, filled, identity, scaled

__all__ = ["add_loss"]


def add_loss(step, loss, counted):
    """Adds the gradient of the loss. Returns the name of the gradient.

    It is P - T for the cross-entropy, where P is the Softmax of the logits and T are the targets. It is Y - T for the squared
    error of the result Y, which is half the gradient of (Y - T)^2. The targets become a tensor that the host writes. With
    `counted`, the host also writes a tensor with a factor for the loss of each position, for example 0 for padding.
    """
    last = next(stage for stage in step.stages if stage.output == step.output)
    tensor = step.tensors[step.output]
    step.targets = step.add_tensor("targets", tensor.shape)
    if counted:
        step.counted = step.add_tensor("counted", (tensor.height, tensor.width, 1))
    name, less = f"gradient of {step.output}", scaled(step, step.targets, filled(step, -1))
    if loss is Loss.SQUARED_ERROR:
        return add_like(step, step.output, name, (less,), start=step.output, times=step.counted)
    probabilities = add_twin(step, last, "softmax", softmax=True)
    return add_like(step, step.output, name, (identity(step, probabilities), less), times=step.counted)
