"""Selection of a parametrised test's cases for the fast suite or for the slow one (`pytest -m slow`)."""

import itertools

import pytest


def slow(*cases):
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


def all_but(fast, *axes):
    """Returns every combination of a value from each axis; combinations outside the list `fast` are marked slow."""
    cases = list(itertools.product(*axes)) if len(axes) > 1 else list(axes[0])
    missing = [case for case in fast if case not in cases]
    assert not missing, f"no such cases: {missing}"
    return [case if case in fast else slow(case)[0] for case in cases]
