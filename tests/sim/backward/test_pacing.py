"""Tests of the ways in which spatial stages of a training step overlap."""

import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim.autodiff.differentiate import differentiate
from amaranth_tpu.sim.backward import compile as compiler
from amaranth_tpu.sim.backward.pacing import Pace
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.models.shipped import SHIPPED


def _cycles(name, batch):
    training = differentiate(load_network(SHIPPED[name]))
    return compiler.compile_step(training, Sgd(momentum=0.9), from_preset("training"), batch).predicted_cycles


def test_the_chosen_pace_is_faster_than_the_usual_one(monkeypatch):
    chosen = _cycles("c", 4)
    monkeypatch.setattr(compiler, "fastest_paces", lambda *_: (Pace(), Pace()))
    assert chosen < 0.95 * _cycles("c", 4)


@pytest.mark.slow
def test_no_pair_of_paces_is_much_faster_for_more_samples(monkeypatch):
    chosen = _cycles("c", 32)
    for forward in (Pace(0.3, 1), Pace(0.3, 2), Pace(1.0, 2), Pace(0.3, 4)):
        for backward in (Pace(0.3, 1), Pace(1.0, 1), Pace(1.0, 2), Pace(1000.0, 1)):
            monkeypatch.setattr(compiler, "fastest_paces", lambda *_, pair=(forward, backward): pair)
            assert chosen < 1.05 * _cycles("c", 32), (forward, backward)
