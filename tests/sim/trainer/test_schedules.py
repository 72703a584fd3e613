"""Tests of learning rate schedules against formulas written out here."""

import math

import pytest

from amaranth_tpu.sim.trainer.errors import ArgumentError
from amaranth_tpu.sim.trainer.schedules import parse_schedule

_STEPS, _TOTAL = 7, 35


def _cosine(last):
    return lambda step: last + (1 - last) * (1 + math.cos(math.pi * step / _TOTAL)) / 2


@pytest.mark.parametrize(
    "text, factor",
    [
        ("constant", lambda step: 1),
        ("fifths", lambda step: 1 if step < 14 else 0.5 if step < 21 else 0.2 if step < 28 else 0.1),
        ("cosine", _cosine(0)),
        ("cosine:0.1", _cosine(0.1)),
        ("linear", lambda step: 1 - step / _TOTAL),
        ("linear:0.1", lambda step: 1 - 0.9 * step / _TOTAL),
        ("warmup:5+linear", lambda step: min(1, (step + 1) / 5) * (1 - step / _TOTAL)),
        (lambda step: 0.5**step, lambda step: 0.5**step),
        ("steps:1,3:0.1", lambda step: 1 if step < 7 else 0.1 if step < 21 else 0.01),
        ("exponential:0.9", lambda step: 0.9 ** (step // 7)),
        ("exponential:0.96/10", lambda step: 0.96 ** (step / 10)),
        ("1,.5", lambda step: 1 if step < 7 else 0.5),
        ("warmup:5+constant", lambda step: min(1, (step + 1) / 5)),
        ("warmup:5+cosine", lambda step: min(1, (step + 1) / 5) * _cosine(0)(step)),
    ],
)
def test_factors(text, factor):
    schedule = parse_schedule(text)
    found = [schedule.at(step, _STEPS, _TOTAL) for step in range(_TOTAL)]
    assert found == pytest.approx([factor(step) for step in range(_TOTAL)])


@pytest.mark.parametrize("factor", [-0.5, math.nan, math.inf, None, "1"])
def test_factors_of_a_function_that_are_none(factor):
    with pytest.raises(ArgumentError, match="`schedule` must return a factor of at least 0 for each step, not .* for step 3"):
        parse_schedule(lambda step: factor).at(3, _STEPS, _TOTAL)
