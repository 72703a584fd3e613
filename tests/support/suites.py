"""Selection of cases of a parametrised test for the fast suite and for the slow one (`pytest -m slow`)."""

import itertools

import pytest

__all__ = ["slow", "all_but"]


def slow(*cases):
    """The cases, for the slow suite."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


def all_but(fast, *axes):
    """Every combination of a value from each axis; those that are not in the list `fast` are for the slow suite."""
    cases = list(itertools.product(*axes)) if len(axes) > 1 else list(axes[0])
    missing = [case for case in fast if case not in cases]
    assert not missing, f"no such cases: {missing}"
    return [case if case in fast else slow(case)[0] for case in cases]
