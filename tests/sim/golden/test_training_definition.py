"""Tests that two independent definitions of a training step agree in every bit, on random graphs and the shipped networks."""

import numpy as np
import pytest

from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.compiled_sums import fastest_sums
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.models.shipped import SHIPPED
from step_comparison import steps_differ
from suites import all_but
from trainable_graphs import random_trainable_graph

OPTIMIZERS = {"sgd": Sgd(), "sgd with decay": Sgd(weight_decay=0.01), "adam": Adam(), "adam with decay": Adam(weight_decay=0.01)}


def _check_random(rng, cores):
    training = with_parameters(random_trainable_graph(rng, tables=float(rng.choice([0, 0.5, 1])), size=int(rng.integers(4, 9))))
    optimizer, share = OPTIMIZERS[str(rng.choice([*OPTIMIZERS]))], float(rng.choice([0, 0.3]))
    sums = fastest_sums(1) if rng.random() < 0.5 else None
    batch = int(rng.integers(1, 6))
    assert not steps_differ(training, optimizer, rng, batch, dropout=Dropout(share), cores=cores, sums=sums)


@pytest.mark.parametrize("cores", [1, 2, 3, 4])
def test_random_graphs(rng, cores):
    for _ in range(3):
        _check_random(rng, cores)


@pytest.mark.slow
def test_many_random_graphs(rng):
    for _ in range(335):
        _check_random(rng, int(rng.choice([1, 1, 1, 2, 3, 4])))


@pytest.mark.parametrize(
    "name, optimizer, cores",
    all_but([("d", "sgd with decay", 3), ("d", "adam", 1)], ["default", "d", "c", "a", "b"], OPTIMIZERS, range(1, 5)),
)
def test_shipped_networks(name, optimizer, cores):
    training, share = with_parameters(load_network(SHIPPED[name])), 0.25 * ("decay" in optimizer)
    differ = steps_differ(
        training, OPTIMIZERS[optimizer], np.random.default_rng(7), 4, dropout=Dropout(share), cores=cores, sums=fastest_sums()
    )
    assert not differ
