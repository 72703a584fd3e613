"""Tests of learning rate schedules against formulas written out here."""

import math

import pytest

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
