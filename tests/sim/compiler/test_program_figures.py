"""Tests that small programs have the instructions and cycles of a table. A fault that only makes programs slower, or only changes
the timing model, breaks no bit: these figures show it.

If a change gains cycles, or costs some for a reason that its commit states, write the new table by running this file with
`PYTHONPATH=tests/support .venv/bin/python`. `test_cycles_in_rtl` compares the cycles with the RTL.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.compiler.timing.model import simulate
from amaranth_tpu.sim.functions.functions import RELU, Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.weight_formats import FORMATS, round_weights
from amaranth_tpu.sim.host.host_image import HostImage
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from amaranth_tpu.sim.rtl.host_memory import HostMemory
from depthwise_networks import network as depthwise
from graph_steps import dense_network
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked
from step_networks import transformer
from training_steps import chain, convolutions, with_function

pytestmark = pytest.mark.search

TRAINING = Config(n=4, training=True, transpose=True, ring=True, unified_buffer_depth=1024)
SMALL = Config(n=2, unified_buffer_depth=128, accumulator_depth=32, bias_depth=16)
#: A memory whose bandwidth reads and writes share.
SHARED_MEMORY = HostMemory(20, 3.0, 5.0)


def _rng():
    return np.random.default_rng(1)


def _residual():
    """Returns a network with a shortcut, a stride, a dilation, groups, and windows of pooling that overlap."""

    def term(source, *shape, **fields):
        return GivenTerm(source, random_values(rng, shape), **fields)

    rng = _rng()
    stages = [
        GivenStage("a", "a", (term("x", 3, 3, 3, 6, padding=(1, 1)),), (8, 7), random_values(rng, 6), function=RELU),
        GivenStage("b", "b", (term("a", 3, 3, 3, 6, padding=(2, 2), dilation=(2, 2), groups=2),), (8, 7), function=RELU),
        GivenStage("c", "c", (term("b", 1, 1, 6, 6), term("a", 3, 3, 6, 6, padding=(1, 1))), (8, 7)),
        GivenStage("d", "d", (term("c", 2, 3, 6, 10, stride=(2, 1)),), (4, 5), pool=Pool((3, 2), (2, 4), (1, 1))),
        GivenStage("y", "y", (term("d", 2, 4, 10, 5),), bias=random_values(rng, 5)),
    ]
    return linked("g", Tensor("x", 3, 8, 7), stages)


def _attention(rng, tokens=5, width=8):
    """Returns a network with attention of one head, a gate and a function by table."""

    def dense(source):
        return (GivenTerm(source, random_values(rng, (1, 1, width, width), 0.3)),)

    def product(name, source, other, channels, rows, softmax=False):
        term = GivenTerm(source, np.zeros((1, 1, 1, channels), bfloat16), data=other, rows=rows)
        return GivenStage(name, name, (term,), (1, tokens), softmax=softmax)

    stages = [GivenStage(name, name, dense("x"), (1, tokens)) for name in "qkv"]
    stages += [product("s", "q", "k", tokens, False, True), product("o", "s", "v", width, True)]
    stages.append(GivenStage("g", "g", dense("o"), (1, tokens), function=Function("gelu")))
    stages.append(GivenStage("p", "p", dense("o"), (1, tokens), times="g"))
    stages.append(GivenStage("y", "y", (GivenTerm("p", random_values(rng, (1, tokens, width, 3))),)))
    return linked("g", Tensor("x", width, 1, tokens), stages)


def _network(make, core, batch):
    return compile_network(make(_rng()), core, batch)


def _graph_step(make, optimizer, core, batch, cores=1, **fields):
    return compile_graph(make_step(make(_rng()), optimizer, cores, **fields), core, batch, cores)


def _step(make, optimizer, core, batch, cores=1, sharded=True):
    return compile_step(with_parameters(make(_rng())), optimizer, core, batch, None, cores, sharded)


def _gelu(rng):
    return with_function(chain(rng, (24, 16, 5)), Function("gelu"))


def _images(rng):
    return convolutions(rng, (5, 6), 10, 3, 7)


PROGRAMS = {
    "dense": partial(_network, lambda rng: chain(rng, (40, 23, 5)), Config(n=4), 9),
    "dense, long": partial(_network, lambda rng: chain(rng, (19, 30, 9)), Config(n=4), 70),
    "dense, small": partial(_network, lambda rng: chain(rng, (40, 23, 5)), SMALL, 9),
    "table": partial(_network, _gelu, Config(n=4, table_lanes=2), 40),
    "coded": partial(
        _network,
        lambda rng: round_weights(chain(rng, (72, 40, 16)), FORMATS[0]),
        Config(n=8, weight_rows=2, weight_formats=True),
        3,
    ),
    "images": partial(_network, _images, Config(n=4), 2),
    "residual": partial(_network, lambda _: _residual(), Config(n=4), 3),
    "residual, small": partial(_network, lambda _: _residual(), replace(SMALL, unified_buffer_depth=256), 1),
    "residual, wide": partial(_network, lambda _: _residual(), Config(n=16), 2),
    "depthwise, small": partial(
        _network, lambda rng: depthwise(rng, 8, 8, 8, [(1, 1), (2, 1)]), Config(n=8, transpose=True, accumulator_depth=16), 2
    ),
    "depthwise": partial(_network, lambda rng: depthwise(rng, 8, 8, 8, [(1, 1), (2, 1)]), Config(n=8, transpose=True), 2),
    "attention": partial(_network, _attention, Config(n=4), 3),
    "attention, wide": partial(_network, _attention, Config(n=8), 2),
    "step": partial(
        _graph_step, lambda rng: dense_network(rng, (17, 13, 5)), Sgd(0.75, 0.01), replace(TRAINING, transpose=False), 21
    ),
    "step of adam": partial(_graph_step, lambda rng: dense_network(rng, (17, 13, 5)), Adam(), TRAINING, 6),
    "step of images": partial(_step, _images, Sgd(0.9), replace(TRAINING, update_lanes=2), 2),
    "step of images, wide": partial(_step, _images, Sgd(0.9), replace(TRAINING, n=8, accumulator_depth=128), 2),
    "step of residual": partial(_step, lambda _: _residual(), Sgd(0.9), replace(TRAINING, n=8), 1),
    "step of words": partial(
        _graph_step, lambda rng: transformer(rng, 5, 8, 2, 5, 1), Sgd(), replace(TRAINING, transpose=False), 2, counted=True
    ),
    "ring": partial(_step, lambda rng: chain(rng, (20, 17, 6)), Sgd(0.9), TRAINING, 3, 3),
    "ring, not sharded": partial(_step, lambda rng: chain(rng, (20, 17, 6)), Sgd(0.9), TRAINING, 3, 3, False),
    "ring of images": partial(_step, _images, Sgd(0.9), TRAINING, 2, 2),
}


#: Of each program: instructions, predicted cycles, and predicted cycles with `SHARED_MEMORY`.
FIGURES = {
    "dense": (36, 919, 1926),
    "dense, long": (44, 5095, 6553),
    "dense, small": (263, 5367, 9073),
    "table": (285, 8585, 12769),
    "coded": (30, 479, 1603),
    "images": (104, 2565, 3749),
    "residual": (463, 18675, 28768),
    "residual, small": (1973, 27736, 44570),
    "residual, wide": (108, 4587, 22947),
    "depthwise, small": (252, 3866, 19494),
    "depthwise": (52, 3282, 10799),
    "attention": (361, 9690, 13923),
    "attention, wide": (171, 6554, 10500),
    "step": (231, 4848, 10115),
    "step of adam": (672, 12426, 22762),
    "step of images": (675, 8065, 19533),
    "step of images, wide": (373, 6023, 18841),
    "step of residual": (1270, 24218, 78298),
    "step of words": (1812, 33306, 58357),
    "ring": (274, 3576, 7685),
    "ring, not sharded": (254, 4795, 11494),
    "ring of images": (1013, 12661, 27529),
}
#: The core on which the RTL runs the programs for smaller cores with n = 4, too.
WHOLE = Config(n=4, training=True, transpose=True, table_lanes=2, update_lanes=2)


def figures(name):
    program = PROGRAMS[name]()
    shared = simulate(program.ops, program.config, SHARED_MEMORY, cores=program.cores).cycles
    return len(program.ops), program.predicted_cycles, shared


@pytest.mark.parametrize("name", PROGRAMS)
def test_figures(name):
    assert figures(name) == FIGURES[name]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [HostMemory(), SHARED_MEMORY], ids=["default", "shared"])
@pytest.mark.parametrize("name", ["dense", "images", "step"])
def test_cycles_in_rtl(name, memory):
    """The predicted cycles are near the RTL's. The values are zeros, as cycles do not depend on them."""
    program = replace(PROGRAMS[name](), config=WHOLE)
    inputs, scratch = ([bytes(program.sizes[region])] for region in (Region.INPUT, Region.SCRATCH))
    image = HostImage(program, [(program.model, inputs)], scratch)
    raw = image.simulate(simulator="icarus", memory=memory.plusargs(WHOLE))
    cycles = raw["batches"][0]["cycles"]
    shared = memory is SHARED_MEMORY
    assert FIGURES[name][1 + shared] == pytest.approx(cycles, rel=0.15 if shared else 0.03)


if __name__ == "__main__":
    own = Path(__file__)
    table = "".join(f'    "{name}": {figures(name)},\n' for name in PROGRAMS)
    own.write_text(re.sub(r"(?<=\nFIGURES = {\n)[^}]*", table, own.read_text()))
