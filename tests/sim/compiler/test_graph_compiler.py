"""Tests that programs of random graphs match the golden model bit for bit on the instruction-level model."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.lowering.lowering import Lowered
from amaranth_tpu.sim.functions.functions import RELU, Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from graphs import check, random_graph, random_values
from stage_graphs import GivenStage, GivenTerm, linked
from suites import slow

FULL = {"table_lanes": 2}


@pytest.mark.parametrize("part", [0, *slow(*range(1, 6))])
def test_random_graphs_in_buffers_of_any_size(rng, part):
    """Random graphs match the golden model bit for bit for buffers of all sizes, so that stages are split in every possible
    way."""
    for _ in range(6):
        graph = random_graph(rng)
        config = Config(
            n=int(rng.choice([2, 4, 8])),
            unified_buffer_depth=int(rng.choice([128, 512, 2048])),
            accumulator_depth=int(rng.choice([32, 128])),
            bias_depth=int(rng.choice([2, 8, 64])),
            cell_stages=int(rng.choice([1, 3, 6])),
        )
        batch = int(rng.integers(1, 5))
        try:
            check(graph, config, batch, rng, samples=int(rng.integers(1, batch + 1)))
        except CompileError as error:
            assert "smallest tile" in str(error)


def test_without_pooling_hardware(rng):
    """On a core without pooling hardware, padded tensors are written row by row and random graphs match the golden model bit for
    bit."""
    for _ in range(3):
        check(random_graph(rng, pooling=False), Config(n=4, unified_buffer_depth=1024, **PLAIN), 2, rng)


def _stage_graph(random, width=6, channels=5, **stage):
    one = np.eye(channels, dtype=np.float32).astype(bfloat16).reshape(1, 1, channels, channels)
    return linked(
        "g",
        Tensor("x", 3, 4, width),
        (
            GivenStage(
                "first", "h", (GivenTerm("x", random_values(random, (3, 3, 3, channels), 0.4), padding=(1, 1)),), (4, width)
            ),
            GivenStage("second", "y", (GivenTerm("h", one),), (4, width), **stage),
        ),
    )


@pytest.mark.parametrize("depth", [128, 1024])
def test_functions_by_table(depth, rng):
    graph = _stage_graph(rng, function=Function("tanh"))
    graph.stages[0] = replace(graph.stages[0], function=Function("sigmoid"))
    check(graph, Config(n=4, unified_buffer_depth=depth, **FULL), 3, rng)


def test_product(rng):
    for depth, accumulators in ((64, 16), (1024, 64)):
        check(
            _stage_graph(rng, channels=9, times="h"),
            Config(n=4, unified_buffer_depth=depth, accumulator_depth=accumulators, **FULL),
            2,
            rng,
        )


@pytest.mark.parametrize("window,stride,padding,size", [((9, 12), (1, 1), (0, 0), (1, 1)), ((7, 8), (2, 3), (3, 2), (4, 3))])
def test_windows_larger_than_the_accumulators(window, stride, padding, size, rng):
    one = np.eye(5, dtype=np.float32).astype(bfloat16).reshape(1, 1, 5, 5)
    graph = linked(
        "g",
        Tensor("x", 3, 9, 12),
        (
            GivenStage(
                "first",
                "h",
                (GivenTerm("x", random_values(rng, (3, 3, 3, 5), 0.4), padding=(1, 1)),),
                (9, 12),
                function=RELU,
                bias=rng.normal(size=5).astype(np.float32),
                pool=Pool(window, size, stride, padding=padding),
            ),
            GivenStage("second", "y", (GivenTerm("h", one),), size),
        ),
    )
    check(graph, Config(n=4, accumulator_depth=16), 2, rng)


@pytest.mark.parametrize("n", [2, 4])
def test_stages_write_parts_of_a_tensor_of_one_channel(n, rng):
    """Each position of two samples has its own number: a stage of one position reads a tensor of three."""
    stages = [
        GivenStage(f"y.{x}", "y", (GivenTerm("x", random_values(rng, (1, 1, 1, 1)), padding=(0, -x)),), (1, 1), origin=(0, x))
        for x in range(3)
    ]
    graph = linked("positions", Tensor("x", 1, 1, 3), stages)
    check(graph, Config(n=n), 3, rng)


def test_convolutions_of_the_same_tensor():
    """Two convolutions that read the same tensor match the golden model bit for bit, although their weights are first needed
    alternately."""
    random = np.random.default_rng(13)
    one = np.eye(9, dtype=np.float32).astype(bfloat16).reshape(1, 1, 9, 9)
    stages = [
        GivenStage(
            name,
            name,
            (GivenTerm(source, random_values(random, (3, 3, 4 if source == "x" else 9, 9), 0.3), padding=(1, 1)),),
            (6, 6),
        )
        for name, source in (("a", "x"), ("b", "a"), ("c", "a"))
    ]
    stages.append(GivenStage("y", "y", (GivenTerm("b", one), GivenTerm("c", one)), (6, 6)))
    check(linked("g", Tensor("x", 4, 6, 6), stages), Config(n=4), 4, random)


def test_rows_of_results_that_do_not_follow_each_other(monkeypatch, rng):
    """A layout of `LAYOUTS` in which the vectors of a row of several tiles follow each other needs no other code."""
    plain = Lowered._layout
    monkeypatch.setattr(
        Lowered, "_layout", lambda self, name, wide: "sets" if self._region(name) is Region.SCRATCH else plain(self, name, wide)
    )
    for _ in range(2):
        check(random_graph(rng, pooling=False), Config(n=4, unified_buffer_depth=512, **PLAIN), 2, rng)


@pytest.mark.parametrize("depth, most", [(64, 5), (128, 5), *slow((32, 9))])
def test_images_of_many_channels_do_not_fit_together(depth, most, rng):
    """The images of 6 tiles of channels have 180 rows for one line of sums, and 60 for one line of the kernel. They are loaded
    again for each line of the kernel if these fit, or else for each kernel position. `most` is how often a vector is loaded."""
    sizes = {"x": 3, "a": 24, "y": 5}
    stages = [
        GivenStage(
            to, to, (GivenTerm(source, random_values(rng, (3, 3, sizes[source], sizes[to]), 0.3), padding=(1, 1)),), (6, 8)
        )
        for source, to in (("x", "a"), ("a", "y"))
    ]
    program = check(linked("g", Tensor("x", sizes["x"], 6, 8), stages), Config(n=4, unified_buffer_depth=depth), 2, rng)
    loads = [op.rows for op in program.ops if op.opcode is Opcode.LOAD and op.fields["region"] is Region.SCRATCH]
    assert sum(loads) <= most * sizes["a"] // 4 * 6 * 8 * 2


@pytest.mark.parametrize("width,channels", [(1, 3), (1, 11), (6, 4), (6, 9)])
def test_softmax(width, channels, rng):
    """Softmax over the channels, in one tile or several, of one position or several, matches the golden model bit for bit on the
    core and before another layer."""
    graph = _stage_graph(rng, width=width, channels=channels, softmax=True)
    program = check(graph, Config(n=4, unified_buffer_depth=128, accumulator_depth=32, **FULL), 2, rng)
    assert any(op.opcode is Opcode.SOFTMAX for op in program.ops)
    first, second = graph.stages
    inner = replace(graph, stages=[replace(first, softmax=True), replace(second, softmax=False)])
    check(inner, Config(n=4, unified_buffer_depth=128, accumulator_depth=32, **FULL), 2, rng)


@pytest.mark.parametrize("depth", [32, 128])
def test_products_of_many_tiles(rng, depth):
    """Each column tile of a product has its own operand on the chip, in jobs of one column tile or several."""
    stages = [GivenStage(name, name, (GivenTerm("x", random_values(rng, (1, 1, 5, 22))),), (4, 3)) for name in "ab"]
    stages.append(GivenStage("p", "p", (GivenTerm("a", random_values(rng, (1, 1, 22, 22), 0.3)),), (4, 3), times="b"))
    stages.append(GivenStage("y", "y", (GivenTerm("p", random_values(rng, (4, 3, 22, 5))),)))
    config = Config(n=2, accumulator_depth=depth, unified_buffer_depth=2048)
    check(linked("g", Tensor("x", 5, 4, 3), stages), config, 2, rng)


@pytest.mark.parametrize("depth, size, kernel", [(2, 1, 1), (8, 3, 2), (64, 1, 1), (512, 2, 2)])
def test_softmax_of_more_tiles_than_zeros(rng, depth, size, kernel):
    """All column tiles of a softmax without bias start from zeros, also if few bias rows are zeros."""
    weights = random_values(rng, (kernel, 1, 5, 4 * 17 + 1))
    stages = (
        GivenStage(
            "h", "h", (GivenTerm("x", random_values(rng, (1, 1, 3, 5))),), (size, 1), random_values(rng, 5).astype(np.float32)
        ),
    )
    stages += (GivenStage("y", "y", (GivenTerm("h", weights),), (size - kernel + 1, 1), softmax=True),)
    check(linked("g", Tensor("x", 3, size, 1), stages), Config(n=4, bias_depth=depth), 2, rng)


@pytest.mark.parametrize(
    "graph,config,says",
    [
        ({"pool": Pool((2, 2), (4, 6))}, PLAIN, "stage second: needs a core with pooling"),
        ({"function": Function("tanh")}, {"table_lanes": 0}, "stage second: its function tanh needs a core with table_lanes"),
        ({"softmax": True}, {"softmax": False}, "stage second: needs a core with softmax"),
    ],
)
def test_a_core_that_lacks_something(graph, config, says, rng):
    with pytest.raises(CompileError, match=says):
        compile_network(_stage_graph(rng, **graph), Config(n=4, **config), 1)


def test_what_does_not_fit_names_the_parameter(rng):
    graph = linked(
        "g", Tensor("x", 64, 1, 1), (GivenStage("big", "y", (GivenTerm("x", random_values(rng, (3, 3, 64, 64))),), (1, 1)),)
    )
    with pytest.raises(
        CompileError, match="stage big: unified_buffer_depth = 8: its smallest tile takes .*--unified-buffer-depth"
    ):
        compile_network(graph, Config(n=4, unified_buffer_depth=8), 1)


def test_host_folds_few_channels_into_lanes(rng):
    """With n = 8, a 3 x 3 kernel over one channel takes 2 passes per pixel instead of 9, because the host gathers its window into
    the lanes."""
    graph = linked(
        "g", Tensor("x", 1, 8, 8), (GivenStage("c", "y", (GivenTerm("x", random_values(rng, (3, 3, 1, 8))),), (6, 6)),)
    )
    program = check(graph, Config(n=8), 2, rng)
    assert program.cost.compute_cycles == 2 * 2 * 36


def test_instructions_belong_to_stages(rng):
    program = check(_stage_graph(rng), Config(n=4), 2, rng)
    assert len(program.ops) == program.instructions - 1
    assert {op.stage for op in program.ops if op.opcode is Opcode.MATMUL} == {0, 1}
