"""Updates by momentum SGD on the update lanes, in place of sums in the array."""

from itertools import pairwise

from .sums import MatrixSum, Phase, Product, Result, Update

__all__ = ["use_update_lanes"]


def use_update_lanes(lowered):
    """Replaces the updates of :class:`sim.ir.optimizers.Sgd` without weight decay by :class:`.Update`. Each update is two
    consecutive sums, V' and W'."""
    step, replaced = lowered.step, set()
    expected = [_phases(lowered, step.masters[name], slots["momentum"]) for name, slots in step.slots.items() if slots]
    for moved, master in pairwise(lowered.sums):
        if not (isinstance(moved, MatrixSum) and isinstance(master, MatrixSum)):
            continue
        for update, *phases in expected:
            if [moved.phases[-1], master.phases[0]] == phases and master.start == update.master:
                moved.phases[-1] = Phase((), update=update)
                replaced.add(id(master))
    lowered.sums = [one for one in lowered.sums if id(one) not in replaced]


def _phases(lowered, master, momentum):
    step, phases = lowered.step, []
    for name, source, factor in ((momentum, momentum, "momentum"), (master, step.state[momentum], "rate")):
        product = Product("diagonal", lowered.matrix(source), lowered.matrix(step.factors[factor], "number"))
        phases.append(Phase((product,), [Result(lowered.matrix(step.state[name]))]))
    return Update(lowered.matrix(master), lowered.matrix(momentum)), *phases
