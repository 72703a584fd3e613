"""Parameter updates as stages; :mod:`sim.ir.optimizers` has the formulas."""

import numpy as np

from ..ir.inverse_root import InverseRoot
from ..ir.optimizers import Sgd
from .stages import add_like, scaled

__all__ = ["add_update"]


def add_update(step, optimizer, name, master, gradient):
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
    """
    tensor = step.tensors[master]
    step.masters[name], step.slots[name] = master, {}
    for slot, kind in optimizer.slots.items():
        kept = step.add_tensor(f"{master}, {slot}", tensor.shape, samples=False, wide=kind == np.float32)
        step.slots[name][slot] = kept
    decays = step.parameters[name].decays and optimizer.weight_decay
    decay = [_scaled(step, master, "decay")] if decays else []
    (_add_sgd if isinstance(optimizer, Sgd) else _add_adam)(step, name, master, gradient, decay)


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
    moved = add("step", (), start=product, times=beyond)
    terms = (_scaled(step, moved, "rate"), *decay)
    step.state[master] = add("next", terms, start=master, wide=True)
