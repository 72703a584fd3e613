"""Tests that tuned constants change no bits. With small values, small programs have the divisions and orders of large ones."""

import sys

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler import tuning
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from graphs import check, random_graph, random_values
from trainable_graphs import random_trainable_graph
from training_steps import run_steps

#: All constants that are numbers, except shares of a memory, which leave nothing if they are 1.
CONSTANTS = {name: value for name, value in vars(tuning).items() if isinstance(value, int) and not name.endswith("SHARE")}


@pytest.fixture
def constants(monkeypatch, rng):
    """Replaces each constant, in all modules of the compiler that import it, by a value from 1 to its own."""
    drawn = {name: int(rng.choice([1, 2, -(-value // 8), value])) for name, value in CONSTANTS.items()}
    for module in [one for name, one in sys.modules.items() if name.startswith(tuning.__name__.rpartition(".")[0])]:
        for name, value in drawn.items():
            if name in vars(module):
                monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("constants")
@pytest.mark.parametrize("number", range(3))
def test_networks(rng, number):
    for _ in range(3):
        config = Config(n=int(rng.choice([2, 4])), accumulator_depth=int(rng.choice([64, 256])))
        widths = [int(rng.integers(1, most)) for most in (40, 40, 3 * config.n)]
        layers = [
            (f"layer{i}", random_values(rng, size), random_values(rng, size[1]).astype(np.float32), "none")
            for i, size in enumerate(zip(widths, widths[1:]))
        ]
        check(dense_chain("dense", layers), config, int(rng.integers(1, 40)), rng)
        check(random_graph(rng, stages=2, channels=7, size=7), config, int(rng.integers(1, 9)), rng)


@pytest.mark.usefixtures("constants")
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("optimizer", [Sgd(0.9), Adam()], ids=["sgd", "adam"])
def test_steps(rng, cores, optimizer):
    training = with_parameters(random_trainable_graph(rng, stages=int(rng.integers(0, 3)), channels=7, size=6))
    core = Config(n=int(rng.choice([2, 4])), training=True, ring=True, update_lanes=int(rng.integers(2)))
    program = compile_step(training, optimizer, core, int(rng.integers(1, 20)), cores=cores)
    run_steps(program, training, optimizer, rng, 1)
