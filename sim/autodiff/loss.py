"""Losses of each position of a network's result."""

import numpy as np
from ml_dtypes import bfloat16

from ..functions.derivatives import Derivative
from ..functions.functions import NONE, Function
from ..ir.losses import Huber, JointLoss, Loss
from ..ir.stage import Stage, Term
from .stages import add_like, add_twin, filled, identity, scaled

__all__ = ["add_loss"]

#: The function of Y - T that is the gradient of a loss, up to a factor.
_OF_ERRORS = {Loss.SQUARED_ERROR: NONE, Loss.ABSOLUTE_ERROR: Derivative(Function("abs"))}


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
    if isinstance(loss, JointLoss):
        return _add_joint_loss(step, loss, name)
    if not loss.is_of_logits:
        return add_like(step, step.output, name, (less,), start=step.output, times=step.counted, **_form_of(loss))
    probabilities = add_twin(step, last, "softmax" if loss.is_of_classes else "sigmoid", **_form_of(loss))
    return add_like(step, step.output, name, (identity(step, probabilities), less), times=step.counted)


def _add_joint_loss(step, loss, name):
    """Adds the gradient of several outputs, side by side. It is a sum: the results, the targets and, of each output whose loss
    needs a function, the values of the function, all times the factors of the outputs."""
    size = step.tensors[step.output].channels
    (results, targets), terms = np.zeros((2, 1, 1, size), np.float32), []
    for head in loss.heads:
        factor = head.weight * (1 if head.loss.is_of_classes else (2 if head.loss is Loss.SQUARED_ERROR else 1) / head.size)
        chosen = np.eye(size, dtype=np.float32)[None, :, head.place]
        if head.loss is Loss.SQUARED_ERROR:
            results[..., head.place] = factor
        else:
            form, minus = _form_of(head.loss), Term(step.targets, _constant(step, f"minus target of {head.name}", -chosen))
            sums = [Term(step.output, _constant(step, f"choice of {head.name}", chosen))]
            sums += [] if head.loss.is_of_logits else [minus]
            value = step.add_stage(Stage(f"value of {head.name}", tuple(sums), **form), head.size)
            terms.append(Term(value, _constant(step, f"place of {head.name}", factor * chosen.swapaxes(1, 2))))
        if head.loss.is_of_logits or head.loss is Loss.SQUARED_ERROR:
            targets[..., head.place] = -factor
    terms += [scaled(step, step.output, _constant(step, "factors of results", results))]
    terms += [scaled(step, step.targets, _constant(step, "factors of targets", targets))]
    return add_like(step, step.output, name, terms, times=step.counted)


def _form_of(loss):
    """Returns the field of a stage that applies the function of a loss."""
    if loss.is_of_classes:
        return {"softmax": True}
    if loss is Loss.BINARY:
        return {"function": Function("sigmoid")}
    delta = loss.delta if isinstance(loss, Huber) else 1
    return {"function": _OF_ERRORS.get(loss, Function("clip", (-delta, delta)))}


def _constant(step, name, values):
    return step.constant(name, values.astype(bfloat16))
