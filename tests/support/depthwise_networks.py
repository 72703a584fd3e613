"""Networks with depthwise convolutions, and a patch of the compiler that maps them with positions in the lanes."""

from dataclasses import replace

import numpy as np

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler import compile_graph as compiler
from amaranth_tpu.sim.compiler.passes.depthwise import map_depthwise
from amaranth_tpu.sim.compiler.passes.pipeline import MAPPING
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.ir.stage import Tensor, span
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked

#: Array size n; then the arguments of :func:`network`.
NETWORKS = {
    "a row in a vector": (4, 5, 4, 8, [(1, 1), (1, 1)]),
    "rows in a vector": (8, 6, 4, 8, [(1, 1), (1, 1)]),
    "a last row that is not full": (8, 7, 3, 8, [(1, 1), (1, 1)]),
    "a last row that is not full, without padding": (8, 7, 4, 8, [(1, 0)]),
    "strides": (8, 8, 8, 8, [(1, 1), (2, 1), (1, 1), (2, 0)]),
    "fewer rows than fit a vector": (8, 2, 2, 8, [(1, 1)]),
    "one vector": (16, 4, 4, 16, [(2, 1), (1, 1)]),
    "no padding": (4, 6, 4, 4, [(1, 0)]),
    "rows in blocks": (4, 5, 8, 8, [(1, 1), (2, 1), (1, 1)]),
    "blocks without padding": (8, 9, 14, 8, [(1, 0), (1, 1)]),
    "two lanes": (2, 7, 8, 4, [(1, 1)], 2),
    "rows after the positions of a sample": (8, 14, 10, 8, [(2, -1), (1, 0)]),
    "positions that do not fit together": (8, 14, 17, 16, [(1, 1)]),
}


def network(rng, height, width, channels, layers, kernel=3):
    """Returns a graph of a convolution, then for each `(stride, padding)` of `layers` a depthwise and a pointwise convolution,
    then a dense layer."""
    tensors, stages = [Tensor("x", 2, height, width)], []

    def add(term, size, function=RELU):
        name = f"t{len(stages)}"
        bias = rng.normal(size=term.weights.shape[3]).astype(np.float32)
        stages.append(GivenStage(name, name, (term,), size, bias, function=function))
        tensors.append(Tensor(name, term.weights.shape[3], *size))

    add(GivenTerm("x", random_values(rng, (1, 1, 2, channels))), (height, width))
    for stride, padding in layers:
        have = tensors[-1]
        size = tuple((h + 2 * padding - span(1, 1, kernel, 1)) // stride + 1 for h in (have.height, have.width))
        weights = random_values(rng, (kernel, kernel, 1, have.channels), 0.5)
        add(GivenTerm(have.name, weights, (stride,) * 2, padding=(padding,) * 2, groups=have.channels), size)
        outputs = have.channels * int(rng.integers(1, 3))
        add(GivenTerm(tensors[-1].name, random_values(rng, (1, 1, have.channels, outputs), 0.3)), size)
    have = tensors[-1]
    add(GivenTerm(have.name, random_values(rng, (have.height, have.width, have.channels, 3), 0.2)), (1, 1))
    return linked("g", tensors[0], stages)


def turn_all(monkeypatch, graph, n, batch):
    """Patches the compiler to map every depthwise convolution that allows it with positions in the lanes, even if that is
    slower."""
    monkeypatch.setattr("amaranth_tpu.sim.compiler.passes.depthwise.worth", lambda saved: True)
    assert map_depthwise(graph, Config(n=n, transpose=True), batch) is not graph
    always = tuple(replace(one, optional=False) for one in MAPPING if one.name != "pack-columns")
    monkeypatch.setattr(compiler, "MAPPING", always)
