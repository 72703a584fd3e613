"""Tests of batches of dense layers: bits of programs, and offsets of results in host memory."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.ir.stage import Tensor
from graphs import check, execute, random_values
from stage_graphs import GivenStage, GivenTerm, linked
from suites import slow


def _stage(rng, name, source, output, channels=(3, 3), kernel=(1, 1), **options):
    return GivenStage(
        name, output, (GivenTerm(source, random_values(rng, (*kernel, *channels)), **options.pop("term", {})),), **options
    )


def test_unused_tensor_of_one_position(rng):
    """A network with an unused tensor of one position compiles and matches the golden model bit for bit, although nothing writes
    that tensor."""
    stages = (_stage(rng, "c", "x", "y", size=(4, 4)),)
    check(linked("g", Tensor("x", 3, 4, 4), stages, [Tensor("unused", 3)]), Config(n=4), 3, rng)


@pytest.mark.parametrize("batch", [1, 5, *slow(22, 50)])
def test_sums_and_products_of_dense_branches(rng, batch):
    """Branches of dense layers, joined by sums and products, match the golden model bit for bit whether or not their tensors fit
    the unified buffer together."""
    sizes = {"x": 9, "a": 21, "b": 21, "c": 21, "y": 5}

    def term(source, output):
        return GivenTerm(source, random_values(rng, (1, 1, sizes[source], sizes[output]), 0.3))

    graph = linked(
        "g",
        Tensor("x", 9),
        (
            GivenStage("a", "a", (term("x", "a"),), function=RELU),
            GivenStage("b", "b", (term("a", "b"), term("x", "b"))),
            GivenStage("c", "c", (term("b", "c"), term("a", "c")), times="a"),
            GivenStage("y", "y", (term("c", "y"), term("a", "y"))),
        ),
    )
    for depth in (32, 128, 2048):
        check(graph, Config(n=4, unified_buffer_depth=depth, accumulator_depth=64, table_lanes=2), batch, rng)


def test_offsets_of_results(rng):
    """`output_offset` returns the byte offset of each result in host memory, for one position, for several, and in another
    order."""
    chain = dense_chain("g", [("only", random_values(rng, (5, 9)), None, "none")])
    conv = linked(
        "g",
        Tensor("x", 3, 4, 2),
        (GivenStage("c", "y", (GivenTerm("x", random_values(rng, (1, 1, 3, 6))),), (4, 2)),),
        output_order=rng.permutation(48),
    )
    for graph, batch in ((chain, 37), (conv, 3)):
        program = compile_network(graph, Config(n=4, accumulator_depth=16), batch)
        samples = random_values(rng, (batch, graph.input_size))
        images, output = [], program.tensors[graph.output]
        seen = replace(output, unpack=lambda data, images=images, output=output: images.append(data) or output.unpack(data))
        results = execute(replace(program, tensors=program.tensors | {graph.output: seen}), program.config, samples, rng)
        assert np.array_equal(results.view(np.uint32), run_network(graph, samples).view(np.uint32))
        for sample, value in np.ndindex(results.shape):
            place = program.memory.output_offset(sample, value)
            assert np.frombuffer(images[0][place : place + 4], "<f4")[0] == results[sample, value]
