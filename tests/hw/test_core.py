"""The whole core: networks, of every size and with every memory, and what a reset reaches."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.verilog import export
from amaranth_tpu.sim.rtl.runner import Simulators
from core_networks import network_runs
from core_programs import check_hazards
from core_runs import FEW_SIZES, FULL, MEMORY, PAUSED, SIZES, SLOW, SMALL, SMALLEST, TINY, Host, run
from seeds import seed


def check_networks(rng, config, count, *, simulator="icarus", memory=None, most=40, size=MEMORY):
    host = Host(rng, size)
    runs, check = network_runs(rng, config, host, count, most)
    check(run(config, host, runs, simulator=simulator, memory=memory))


@pytest.mark.parametrize(
    "simulator, memory",
    [
        ("icarus", PAUSED),
        *(pytest.param("icarus", memory, marks=pytest.mark.slow) for memory in ({"latency": 1}, {"latency": 32}, SLOW)),
        *(("verilator", memory) for memory in ({"latency": 1}, SLOW, PAUSED)),
        pytest.param("verilator", {"latency": 32}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_networks(rng, simulator, memory):
    check_networks(rng, SMALL, 3 if simulator == "icarus" else 12, simulator=simulator, memory=memory)


@pytest.mark.parametrize(
    "sizes",
    [SMALLEST, FEW_SIZES[0], FEW_SIZES[3], *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in SIZES[1:])],
    ids=str,
)
def test_sizes(rng, sizes):
    check_networks(rng, Config(**{**TINY, **sizes}), 3, memory={"latency": 9, "pause_percent": 15}, most=24)


@pytest.mark.slow
@pytest.mark.parametrize("simulator", Simulators)
@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_the_size_of_the_array_does_not_show(n, simulator):
    """The same networks, the same samples and the same bits, whatever n, latency and pauses."""
    if n == 32 and simulator == "icarus":
        pytest.skip("too slow")
    for memory in ({"latency": 1}, {"latency": 32}, SLOW, PAUSED):
        check_networks(
            np.random.default_rng(seed()),
            Config(n=n, **PLAIN),
            3 if simulator == "icarus" else 12,
            simulator=simulator,
            memory=memory,
            most=100,
            size=1 << 22,
        )


def without_initial_values(monkeypatch, config):
    """Verilog in which nothing has a value before the reset."""
    script = export._SCRIPT.replace("\nproc -norom\n", "\nproc -norom\nsetattr -unset init w:*\n")
    assert script != export._SCRIPT
    with monkeypatch.context() as context:
        context.setattr(export, "_SCRIPT", script)
        text = export.to_verilog(config)
    assert "initial begin" not in text
    return text


def test_reset_is_complete(rng, monkeypatch):
    """Nothing relies on initial values, of which an ASIC has none."""
    config = Config(**{**TINY, **SIZES[1]})
    host = Host(rng)
    runs, check = network_runs(rng, config, host, 2, most=16)
    check(run(config, host, runs, memory={"latency": 3}, verilog=without_initial_values(monkeypatch, config)))


def test_reset_of_everything_optional_is_complete(rng, monkeypatch):
    check_hazards(rng, FULL, 4, memory={"latency": 1}, verilog=without_initial_values(monkeypatch, FULL))
