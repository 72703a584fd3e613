"""Tests that tensors which stay in the unified buffer between overlapped stages give the same bits with fewer loads and
stores."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.compiler import search
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.memory.layout import lay_out
from amaranth_tpu.sim.compiler.tiling.resident import with_residents
from amaranth_tpu.sim.functions.functions import RELU
from depthwise_networks import NETWORKS, network, turn_all
from graphs import check, random_graph
from suites import slow


@pytest.fixture
def residents(monkeypatch):
    """Makes the compiler keep every eligible tensor resident, even where that is slower. Returns a list with the names of each
    program's resident tensors."""
    found = []

    def runs(batched, few, config, trials):
        host, depth = lay_out(batched, config.n), config.accumulator_depth
        made = [
            with_residents(batched, run, config, host.layouts, host.zeros, depth) or run
            for run in search._overlaps(batched, host, config, depth)
        ]
        found.append([name for run in made for name in run.homes])
        return tuple(made)

    monkeypatch.setattr(search, "_best_overlap", runs)
    return found


@pytest.mark.parametrize("n", [4, *slow(8)])
def test_random_graphs(rng, n, residents):
    """With all eligible tensors resident, random graphs match the golden model bit for bit on the instruction-level model."""
    for _ in range(12):
        graph = random_graph(rng, stages=int(rng.integers(2, 6)), size=int(rng.integers(4, 9)), functions=(RELU,))
        check(graph, Config(n=n, accumulator_depth=512), int(rng.integers(1, 5)), rng)
    assert sum(map(bool, residents)) >= 4


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_positions_in_lanes(rng, name, residents, monkeypatch):
    """Resident tensors match the golden model bit for bit in networks whose depthwise convolutions have positions in the
    lanes."""
    n, *sizes = NETWORKS[name]
    graph, batch = network(rng, *sizes), 4
    turn_all(monkeypatch, graph, n, batch)
    check(graph, Config(n=n, transpose=True), batch, rng)


def test_resident_tensors_are_not_stored(rng, residents, monkeypatch):
    """With resident tensors a program stores less than half as many rows and reads fewer beats than without."""
    graph, config = network(rng, 8, 8, 8, [(1, 1), (2, 1)]), Config(n=8)
    staying = check(graph, config, 4, rng)
    assert len(residents[-1]) >= 3
    monkeypatch.undo()
    monkeypatch.setattr(search, "with_residents", lambda *_: None)
    leaving = compile_network(graph, config, 4)

    def moved(program, opcode):
        return sum(op.fields["rows"] for op in program.ops if op.opcode is opcode)

    assert moved(staying, Opcode.STORE) < moved(leaving, Opcode.STORE) / 2 and staying.cost.read_beats < leaving.cost.read_beats
