"""Tests of learning-rate schedules, and of the order of samples."""

import numpy as np
import pytest

from amaranth_tpu.sim.trainer.order import epoch_order, held_out
from amaranth_tpu.sim.trainer.schedules import parse_schedule


@pytest.mark.parametrize(
    "text, epochs, wanted",
    [
        ("constant", 3, [1, 1, 1, 1, 1, 1]),
        ("fifths", 5, [1, 1, 1, 1, 0.5, 0.5, 0.2, 0.2, 0.1, 0.1]),
        ("fifths", 1, [1, 0.5]),
        ("steps:1,3:0.5", 4, [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]),
        ("exponential:0.9", 3, [1, 1, 0.9, 0.9, 0.81, 0.81]),
        ("1,1,.5,.2,.1", 6, [1, 1, 1, 1, 0.5, 0.5, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1]),
        ("2", 2, [2, 2, 2, 2]),
    ],
)
def test_factors_by_hand(text, epochs, wanted):
    """Schedules give hand-computed factors, for two steps per epoch."""
    schedule = parse_schedule(text)
    found = [schedule.at(step, 2, 2 * epochs) for step in range(2 * epochs)]
    assert found == pytest.approx(wanted, abs=1e-12)


def test_fifths_within_an_epoch():
    factors = [parse_schedule("fifths").at(step, 100, 100) for step in range(100)]
    assert [factors.count(one) for one in (1, 0.5, 0.2, 0.1)] == [40, 20, 20, 20] and factors == sorted(factors, reverse=True)


@pytest.mark.parametrize(
    "text",
    "steps steps:2 steps:2: steps::0.1 steps:2.5:0.1 steps:3,2:0.1 steps:0:0.1 exponential exponential:x exponential:0 1,,2 1,-1 "
    "nan 1,inf quadratic linear:0 linear:1:2 constant:1 fifths:2 cosine:0 cosine:1:2 exponential:0.9/ exponential:0.9/0 warmup:5 "
    "warmup+cosine up:5+cosine".split()
    + [""],
)
def test_what_is_no_schedule(text):
    with pytest.raises(ValueError, match="is not a schedule; write fifths") as caught:
        parse_schedule(text)
    assert "\n" not in str(caught.value)


def test_every_sample_once(rng):
    count, seed, epoch = (int(rng.integers(low, 500)) for low in (1, 0, 0))
    order = epoch_order(seed, epoch, count)
    assert (np.sort(order) == np.arange(count)).all()
    assert (order == epoch_order(seed, epoch, count)).all()
    if count > 20:
        assert (order != epoch_order(seed, epoch + 1, count)).any() and (order != epoch_order(seed + 1, epoch, count)).any()


def test_order_equals_recorded_numbers():
    """The order of an epoch's samples equals recorded numbers, so that it does not change with the version of numpy."""
    assert epoch_order(1, 0, 8).tolist() == [7, 1, 6, 3, 5, 0, 2, 4]


def test_order_is_uniform():
    """Each of 4 samples comes first in about a quarter of 4,000 epochs (standard deviation 27)."""
    counts = np.bincount([epoch_order(9, epoch, 4)[0] for epoch in range(4000)], minlength=4)
    assert np.abs(counts - 1000).max() < 150, counts


def test_held_out(rng):
    seed = int(rng.integers(1000))
    kept, held = held_out(seed, 200, 0.15)
    assert len(held) == 30 and (np.sort(np.concatenate([kept, held])) == np.arange(200)).all()
    assert (np.diff(kept) > 0).all() and (np.diff(held) > 0).all()
    assert (held != held_out(seed + 1, 200, 0.15)[1]).any()
    assert len(held_out(seed, 200, 0.0)[1]) == 0
