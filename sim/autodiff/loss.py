"""Softmax cross-entropy, for each position of the logits."""

from .stages import add_like, add_twin, filled, identity, scaled

__all__ = ["add_loss"]


def add_loss(step, counted):
    """Adds the gradient of the logits, P - T, where P is the Softmax of the logits and T are the targets. Returns the name of
    the gradient.

    The targets become a tensor that the host writes. With `counted`, the host also writes a tensor with a factor for the loss of
    each position, for example 0 for padding.
    """
    last = next(stage for stage in step.stages if stage.output == step.output)
    tensor = step.tensors[step.output]
    step.targets = step.add_tensor("targets", tensor.shape)
    if counted:
        step.counted = step.add_tensor("counted", (tensor.height, tensor.width, 1))
    probabilities = add_twin(step, last, "softmax", softmax=True)
    terms = (identity(step, probabilities), scaled(step, step.targets, filled(step, -1)))
    return add_like(step, step.output, f"gradient of {step.output}", terms, times=step.counted)
