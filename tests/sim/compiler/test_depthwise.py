"""Tests that depthwise convolutions mapped with positions in the lanes give the same bits in fewer passes, through transposing
loads."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.registers import REGISTER
from amaranth_tpu.sim.bundle.host_model import host_model
from amaranth_tpu.sim.compiler import compile as compiler
from amaranth_tpu.sim.compiler.passes.depthwise import map_depthwise
from amaranth_tpu.sim.host.inference import run_samples
from depthwise_networks import NETWORKS, network, turn_all
from graphs import check, random_values

FEATURES = dict.fromkeys(REGISTER["features"].fields, 0)
FAST = ("one vector", "no padding", "rows in blocks")


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
    predicted = compiler.compile_network(graph, config, batch).predicted_cycles
    assert abs(result.cycles - predicted) <= 300


def test_mapping_is_used_only_if_faster(rng):
    """The compiler does not map positions to lanes if that needs more array passes or if the core has no `transpose`."""
    graph = network(rng, 5, 4, 8, [(1, 1)])
    assert map_depthwise(graph, Config(n=4, transpose=True), 8) is not graph
    assert map_depthwise(graph, Config(n=16, transpose=True), 8) is graph
    without = compiler.compile_network(graph, Config(n=4), 2)
    assert not any(tensor.view for tensor in without.memory.batched.tensors.values())
