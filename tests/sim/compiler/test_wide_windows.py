"""Tests of pooling windows that are larger than the sums, on the instruction-level model."""

import re

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.passes.split_pool import split_windows
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from graphs import check, random_values
from stage_graphs import GivenStage, GivenTerm, linked


def _pooled(random, sums, pool):
    stage = GivenStage("s", "y", (GivenTerm("x", random_values(random, (1, 1, 3, 5))),), sums, pool=pool)
    return linked("g", Tensor("x", 3, *sums), (stage,))


@pytest.mark.parametrize("sums, size", [((1, 1), (1, 9)), ((4, 1), (4, 7)), ((1, 4), (6, 4)), ((1, 1), (5, 5))])
def test_repeated_sums_take_one_instruction_a_tile(rng, sums, size):
    """A window that covers all sums along an axis repeats a sum, with a distance of 0."""
    window = tuple(1 if have == after else after for have, after in zip(sums, size))
    pool = Pool(window, size, padding=tuple(extent - 1 for extent in window))
    program = check(_pooled(rng, sums, pool), Config(n=4, unified_buffer_depth=512), 1, rng)
    assert sum(op.opcode is Opcode.POOL for op in program.ops) == 2


@pytest.mark.parametrize("depth", [64, 256])
def test_more_results_than_sums_fit_the_results_of_a_small_core(rng, depth):
    """A small core has the rows for the results of one position, or refuses them with a remedy that helps."""
    graph = _pooled(rng, (1, 1), Pool((1, 32), (1, 32), padding=(0, 31)))
    try:
        check(graph, Config(n=2, unified_buffer_depth=depth), 1, rng)
    except CompileError as error:
        needed = int(re.search(r"its smallest tile takes (\d+)", str(error))[1])
        check(graph, Config(n=2, unified_buffer_depth=1 << (needed - 1).bit_length()), 1, rng)


def test_results_of_windows_that_overlap(rng):
    """36 results of 36 sums fit a buffer of 128 rows beside the operands."""
    check(_pooled(rng, (6, 6), Pool((3, 3), (6, 6), padding=(1, 1))), Config(n=4, unified_buffer_depth=128), 2, rng)


@pytest.mark.parametrize("depth", [32, 64, 256])
def test_last_windows_are_not_full(rng, depth):
    """Windows that are side by side, and reach beyond the sums, are written sample by sample, from the sums of one job."""
    pool = Pool((2, 3), (2, 3), (2, 3))
    check(_pooled(rng, (4, 7), pool), Config(n=4, unified_buffer_depth=256, accumulator_depth=depth), 3, rng)


def test_clipped_at_both_edges(rng):
    """Results are right for all windows, strides, dilations and paddings of short rows."""
    for width in (1, 2, 3, 5):
        for window in (1, 2, 3, 6):
            for stride in (1, 2, 3):
                for dilation in (1, 2):
                    padding = int(rng.integers(0, window * dilation))
                    count = (width + 2 * padding - (window - 1) * dilation - 1) // stride + 1
                    starts = [index * stride - padding for index in range(count)]
                    if count < 1 or not all(any(0 <= s + k * dilation < width for k in range(window)) for s in starts):
                        continue
                    pool = Pool((1, window), (2, count), (1, stride), (1, dilation), (0, padding))
                    check(_pooled(rng, (2, width), pool), Config(n=4, unified_buffer_depth=512), 1, rng)


def _read(random, sums, pool):
    """Returns a graph in which another stage reads the results of pooling, so that they are bfloat16."""
    stages = (
        GivenStage("s", "s", (GivenTerm("x", random_values(random, (1, 1, 3, 5))),), sums, pool=pool),
        GivenStage("y", "y", (GivenTerm("s", random_values(random, (*pool.size, 5, 2))),)),
    )
    return linked("g", Tensor("x", 3, *sums), stages)


@pytest.mark.parametrize("number", range(3))
def test_windows_that_are_split(rng, number):
    """If the sums of a window do not fit the accumulators, it is split along its axes, each with its own stride, dilation and
    padding."""
    core = Config(n=4, accumulator_depth=16)
    split = graph = None
    while split is graph:
        window, stride, dilation, size = (tuple(rng.integers(*ends, 2).tolist()) for ends in ((4, 6), (1, 4), (1, 3), (1, 4)))
        padding = (1, 2) if rng.random() < 0.5 else (2, 0)
        axes = zip(window, stride, dilation, size, padding)
        sums = tuple((after - 1) * by + (span - 1) * apart + 1 - before for span, by, apart, after, before in axes)
        graph = _read(rng, sums, Pool(window, size, stride, dilation, padding))
        split = split_windows(graph, core, 2)
    check(graph, core, 2, rng)


def test_a_window_of_one_axis_that_does_not_fit(rng):
    """The refusal names the accumulators, with the least depth."""
    graph = _read(rng, (1, 9), Pool((1, 5), (1, 1), dilation=(1, 2)))
    with pytest.raises(CompileError, match="^stage s: accumulator_depth = 8: its smallest tile takes 9; choose a larger [^\n]*$"):
        check(graph, Config(n=4, accumulator_depth=8), 2, rng)
    check(graph, Config(n=4, accumulator_depth=16), 2, rng)
