"""The definition of the optimizers' updates; see :mod:`sim.ir.optimizers`. Sums are binary32, operands bfloat16."""

import numpy as np

from ..ir.optimizers import Adam, Sgd
from .gradients import upper_half

__all__ = ["update", "new_slots"]


def new_slots(optimizer, shape):
    """Returns an optimizer's initial state for a parameter with this shape: {name: array of zeros}."""
    return {name: np.zeros(shape, kind) for name, kind in optimizer.slots.items()}


def update(optimizer, factors, decays, master, slots, gradient, sums):
    """Updates one parameter. Returns its new `(master, slots)`.

    Parameters
    ----------
    factors : dict
        Constants of this step, from `optimizer.factors`.
    decays : bool
        True if weight decay applies to the parameter. It applies to weights, not to biases.
    master, gradient : float32 array
    slots : dict of str to array of the same shape
    sums : sim.golden.gradients.Sums
    """
    if not decays or not factors["decay"]:
        factors = {**factors, "decay": None}
    rule = {Sgd: _sgd, Adam: _adam}[type(optimizer)]
    return rule(factors, master, slots, gradient, sums)


def _sgd(factors, master, slots, gradient, sums):
    total = sums.scaled(gradient, slots["momentum"], factors["momentum"])
    if factors["decay"] is not None:
        total = sums.scaled(total, upper_half(master), factors["decay"])
    momentum = sums.rounded(total)
    return sums.scaled(master, momentum, factors["rate"]), {"momentum": momentum}


def _adam(factors, master, slots, gradient, sums):
    rounded = sums.rounded(gradient)
    square = sums.product(rounded, rounded)
    first = sums.rounded(sums.scaled(gradient, slots["first"], factors["first"]))
    second = sums.scaled(slots["second"], upper_half(slots["second"]), factors["moved"])
    second = sums.scaled(second, square, factors["square"])
    beyond = sums.scaled(np.zeros(second.shape, np.float32), upper_half(second), factors["beyond"])
    step = sums.product(sums.product(first, sums.inverse_root(second)), sums.inverse_root(beyond))
    master_next = sums.scaled(master, step, factors["rate"])
    if factors["decay"] is not None:
        master_next = sums.scaled(master_next, upper_half(master), factors["decay"])
    return master_next, {"first": first, "second": second}
