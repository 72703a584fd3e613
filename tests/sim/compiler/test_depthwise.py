"""Tests that depthwise convolutions mapped with positions in the lanes give the same bits in fewer passes, through transposing
loads."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.registers import REGISTER
from amaranth_tpu.sim.bundle.host_model import host_model
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.passes.depthwise import map_depthwise
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.host.inference import run_samples
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.ir.stage import Tensor
from depthwise_networks import NETWORKS, network, turn_all
from graphs import check, execute, random_values
from stage_graphs import GivenStage, GivenTerm, linked

FEATURES = dict.fromkeys(REGISTER["features"].fields, 0)
FAST = (
    "fewer rows than fit a vector",
    "two lanes",
    "positions that do not fit together",
    "rows after the positions of a sample",
    "one vector",
    "no padding",
    "rows in blocks",
    "a last row that is not full, without padding",
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in NETWORKS])
def test_networks_with_positions_in_lanes(rng, name, monkeypatch):
    """Networks with depthwise convolutions mapped with positions in the lanes match the golden model bit for bit on the
    instruction-level model, using transposing loads."""
    n, *sizes = NETWORKS[name]
    graph, batch = network(rng, *sizes), 3
    turn_all(monkeypatch, graph, n, batch)
    program = check(graph, Config(n=n, transpose=True), batch, rng, samples=batch)
    loads = [op for op in program.ops if op.fields.get("transpose")]
    assert loads and all(op.fields["rows"] % n == 0 for op in loads)
    assert host_model(graph, program).needs.features & REGISTER["features"].pack(**FEATURES | {"transpose": 1})


@pytest.mark.parametrize("number", range(4))
def test_random_depthwise_networks(rng, number, monkeypatch):
    """Random strides, padding and widths, also beyond the lanes, give the golden model's bits if all mappings are used."""
    monkeypatch.setattr("amaranth_tpu.sim.compiler.passes.depthwise.worth", lambda saved: True)
    config = Config(n=int(rng.choice([2, 4, 8])), transpose=True)
    mapped = graph = None
    while mapped is graph:  # until a layer can be mapped
        layers = [(int(rng.integers(1, 3)), int(rng.integers(least, 2))) for least in (-1, 0)]
        size = (int(side) for side in rng.integers(10, 18, 2))
        graph = network(rng, *size, config.n, layers, kernel=int(rng.integers(2, 4)))
        mapped = map_depthwise(graph, config, 2)
    turn_all(monkeypatch, graph, config.n, 2)
    check(graph, config, 2, rng)


def test_windows_that_see_only_padding(rng, monkeypatch):
    """A depthwise kernel whose two rows are above and below an image of one row reads no value, and gives the bias."""
    depthwise = GivenTerm("t0", random_values(rng, (2, 1, 1, 4)), dilation=(2, 1), padding=(1, 0), groups=4)
    first, *others = (
        GivenTerm(source, random_values(rng, (1, 1, inputs, 4))) for source, inputs in (("x", 2), ("t1", 4), ("t2", 4))
    )
    terms = enumerate([first, depthwise, *others])
    stages = [GivenStage(f"t{i}", f"t{i}", (term,), (1, 4), rng.normal(size=4).astype(np.float32)) for i, term in terms]
    graph = linked("g", Tensor("x", 2, 1, 4), stages)
    turn_all(monkeypatch, graph, 4, 3)
    check(graph, Config(n=4, transpose=True), 3, rng, samples=3)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
@pytest.mark.parametrize("groups", [1, 4])
def test_zero_sums_have_no_sign(rng, n, groups):
    """Sums that are -0, exactly or because a subnormal was flushed, are +0 in the program and in the definition, whatever zeros
    a tile multiplies by the values of other groups."""
    weights = rng.choice([1, -1, 0, -0.0], (1, 2, 4 // groups, 4))
    values = rng.choice([-1.5 * 2**-126, 2**-126, -(2**-126), 0, -0.0, 1, -1], (64, 2 * 3 * 4)).astype(bfloat16)
    term = GivenTerm("x", weights.astype(bfloat16), groups=groups)
    graph = linked("g", Tensor("x", 4, 2, 3), [GivenStage("y", "y", (term,), (2, 2), np.full(4, -0.0, np.float32))])
    config = Config(n=n)
    found, expected = execute(compile_network(graph, config, 64), config, values, rng), run_network(graph, values)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32)) and not np.signbit(expected[expected == 0]).any()


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_weights_of_zero_keep_their_products(rng, zero):
    """An infinite value times a layer's weights of zero is NaN in the program, also if all weights of a tile are -0."""
    first = np.array([[1] * 4 + [2] * 4], bfloat16)  # the second tile of the next layer gets the infinities
    graph = dense_chain("g", [("a", first, None, "none"), ("b", np.full((8, 4), zero, bfloat16), None, "none")])
    config, values = Config(n=4), np.array([[3e38], [1]], bfloat16)
    found = execute(compile_network(graph, config, 2), config, values, rng)
    assert np.isnan(found[0]).all() and (found[1] == 0).all()
    assert np.array_equal(found.view(np.uint32), run_network(graph, values).view(np.uint32))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a last row that is not full", "strides", "rows in blocks"])
def test_networks_with_positions_in_lanes_on_the_core(rng, name, monkeypatch):
    """Networks whose depthwise convolutions have positions in the lanes match the golden model bit for bit on the RTL, within
    300 cycles of the prediction."""
    _, *sizes = NETWORKS[name]
    graph, batch = network(rng, *sizes), 2
    turn_all(monkeypatch, graph, 4, batch)
    config = Config(n=4, transpose=True, unified_buffer_depth=256, accumulator_depth=64, table_lanes=0, softmax=False)
    samples = random_values(rng, (batch, graph.input_size))
    result = run_samples(graph, config, samples, batch=batch, memory={"latency": 32}, quick=True)
    assert result.fault is None and result.mismatched_bits == 0 and result.protocol_errors == 0
    predicted = compile_network(graph, config, batch).predicted_cycles
    assert abs(result.cycles - predicted) <= 300


def test_mapping_is_used_only_if_faster(rng):
    """The compiler does not map positions to lanes if that needs more array passes or if the core has no `transpose`."""
    graph = network(rng, 5, 4, 8, [(1, 1)])
    assert map_depthwise(graph, Config(n=4, transpose=True), 8) is not graph
    assert map_depthwise(graph, Config(n=16, transpose=True), 8) is graph
    without = compile_network(graph, Config(n=4), 2)
    assert not any(term.lanes for stage in without.memory.lowered.given.stages for term in stage.terms)
