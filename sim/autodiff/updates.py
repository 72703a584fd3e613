"""Parameter updates as stages; :mod:`sim.ir.optimizers` has the formulas."""

import numpy as np

from ..functions.functions import Function
from ..ir.inverse_root import InverseRoot, NormFactor
from ..ir.optimizers import Sgd
from ..ir.stage import Stage, Term
from .rings import kind_of
from .stages import add_like, filled, identity, row_sum, scaled

__all__ = ["add_norm_factor", "add_update", "times"]


def add_update(step, optimizer, name, master, gradient, factor=None):
    """Adds the update of a parameter.

    Parameters
    ----------
    step : Graph
    optimizer : Sgd or Adam
    name : str
        The parameter.
    master : str
        Tensor that is updated: the whole parameter, or the share of one core.
    gradient : str
        Wide tensor of the master's shape, the sum over the batch.
    factor : str or None
        Tensor of one number, which multiplies the gradient.
    """
    tensor = step.tensors[master]
    step.masters[name], step.slots[name] = master, {}
    for slot, kind in optimizer.slots.items():
        kept = step.add_tensor(f"{master}, {slot}", tensor.shape, samples=False, wide=kind == np.float32)
        step.slots[name][slot] = kept
    scale, power = step.parameters[name].scale, 2
    if optimizer.clip_value is not None:
        terms = (_scaled(step, _rounded(step, times(step, gradient, scale)), "clip"),)
        clipped = add_like(step, master, f"{gradient}, clipped", terms, function=Function("clip", (-1, 1)))
        gradient, power = add_like(step, master, f"{clipped}, sums", (identity(step, clipped),), wide=True), 1
    elif factor is not None:
        terms = (scaled(step, _rounded(step, times(step, gradient, scale)), factor),)
        gradient, power = add_like(step, master, f"{gradient}, clipped", terms, wide=True), 1
    if isinstance(optimizer, Sgd):
        gradient = times(step, gradient, scale**power)
    decays = step.parameters[name].decays and optimizer.weight_decay
    decay = [_scaled(step, master, "decay")] if decays else []
    (_add_sgd if isinstance(optimizer, Sgd) else _add_adam)(step, name, master, gradient, decay)


def times(step, gradient, scale):
    """Returns the name of a gradient times a number. Times :attr:`.Parameter.scale` it is the gradient of the file's weight, and
    times the square the change of the parameter if that weight changes by its gradient."""
    name = f"{gradient} * {scale:g}" if scale != 1 else gradient
    if name not in step.tensors:
        add_like(step, gradient, name, (scaled(step, _rounded(step, gradient), filled(step, scale)),), wide=True)
    return name


def add_norm_factor(step, gradients):
    """Adds the number that multiplies all gradients, {parameter: gradient}, to clip their norm. Returns its name."""
    norm = None
    for name, gradient in gradients.items():
        square = add_like(step, gradient, f"{gradient}, square", (), start=gradient, times=_rounded(step, gradient))
        height, width, channels = step.tensors[gradient].shape
        if height * width > 1 or kind_of(step, name)[0]:  # a core has a row for each output, also of weights with one input
            square = step.add_stage(Stage(f"{square}, summed", (row_sum(step, square),)), channels, samples=False)
        total = Stage("square of clip_norm", (Term(square, filled(step, 1, 1, channels), swapped=True),), start=norm)
        norm = step.add_stage(total, 1, samples=False, wide=True)
    return add_like(step, norm, "factor of clip_norm", (_scaled(step, norm, "norm"),), function=NormFactor())


def _rounded(step, gradient):
    """Returns the name of a gradient in bfloat16."""
    name = f"{gradient}, rounded"
    return name if name in step.tensors else add_like(step, gradient, name, (), start=gradient)


def _scaled(step, source, factor):
    if factor not in step.factors:
        step.factors[factor] = step.add_tensor(factor, (1, 1, 1), samples=False)
    return scaled(step, source, step.factors[factor])


def _add_sgd(step, name, master, gradient, decay):
    momentum = step.slots[name]["momentum"]
    terms = (_scaled(step, momentum, "momentum"), *decay)
    step.state[momentum] = moved = add_like(step, master, f"{momentum}, next", terms, start=gradient)
    terms = (_scaled(step, moved, "rate"),)
    step.state[master] = add_like(step, master, f"{master}, next", terms, start=master, wide=True)


def _add_adam(step, name, master, gradient, decay):
    def add(output, terms, **fields):
        return add_like(step, master, f"{master}, {output}", terms, **fields)

    first, second = step.slots[name]["first"], step.slots[name]["second"]
    rounded = add("gradient", (), start=gradient)
    square = add("square", (), start=gradient, times=rounded)
    moment = (_scaled(step, first, "first"),)
    step.state[first] = add("first, next", moment, start=gradient)
    terms = (_scaled(step, second, "moved"), _scaled(step, square, "square"))
    step.state[second] = after = add("second, next", terms, start=second, wide=True)
    root = add("root", terms, start=second, function=InverseRoot())
    beyond = add("root beyond", (_scaled(step, after, "beyond"),), function=InverseRoot())
    product = add("first * root", moment, start=gradient, times=root)
    scale = step.parameters[name].scale  # the root has removed it
    terms = () if scale == 1 else (scaled(step, product, filled(step, scale)),)
    moved = add("step", terms, start=None if terms else product, times=beyond)
    terms = (_scaled(step, moved, "rate"), *decay)
    step.state[master] = add("next", terms, start=master, wide=True)
