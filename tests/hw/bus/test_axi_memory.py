"""Tests of the host memory model against the AXI master of cocotbext-axi, in Icarus Verilog and Verilator."""

from pathlib import Path

import pytest

from amaranth_tpu.sim.rtl import runner
from amaranth_tpu.sim.rtl.memory_images import write_image
from seeds import seed as drawn
from suites import slow

BYTES = 1 << 14
CONTENTS = bytes((7 * i + i // 256) % 256 for i in range(BYTES))


def memory(simulator, width):
    return runner.Simulation(
        simulator=simulator,
        top="axi_memory",
        sources=(Path(runner.__file__).with_name("axi_memory.sv"),),
        parameters={"DATA_WIDTH": width, "BYTES": BYTES},
        quick=True,
        public=("aclk", "aresetn", "s_axi_*", "bd_*", "errors", "cycle"),
    )


def run(tmp_path, testcase, *, simulator, width=64, arguments=None, seed=None, **plusargs):
    write_image(tmp_path / "memory.hex", CONTENTS, width // 8)
    return memory(simulator, width).run(
        "amaranth_tpu.sim.benches.bench_axi_memory",
        testcase=testcase,
        timeout=120,
        seed=drawn() if seed is None else seed,
        arguments={"bytes": BYTES, **(arguments or {})},
        plusargs={"memory": tmp_path / "memory.hex", **plusargs},
    )


def both(cases, fast):
    """Returns pytest parameters for each case in each simulator. All are slow but the (simulator, *case) tuples in `fast`."""
    return [
        pytest.param(simulator, *case, marks=[] if (simulator, *case) in fast else pytest.mark.slow)
        for simulator in runner.Simulators
        for case in cases
    ]


@pytest.mark.parametrize(
    "simulator, latency, percent", both([(1, 0), (32, 0), (200, 0), (1, 30), (32, 60)], fast=[("icarus", 32, 60)])
)
def test_traffic(tmp_path, simulator, latency, percent):
    run(
        tmp_path,
        "traffic",
        simulator=simulator,
        latency=latency,
        pause_percent=percent,
        pause_seed=latency,
        arguments={"contents": CONTENTS.hex(), "count": 15, "pauses": percent > 0},
    )


@pytest.mark.parametrize("width", [32, 256])
def test_widths(tmp_path, width):
    run(
        tmp_path,
        "traffic",
        simulator="icarus",
        width=width,
        latency=5,
        arguments={"contents": CONTENTS.hex(), "count": 10, "pauses": False},
    )


@pytest.mark.parametrize("simulator, latency", both([(1,), (2,), (32,), (200,)], fast=[("icarus", 32)]))
def test_timing(tmp_path, simulator, latency):
    run(tmp_path, "timing", simulator=simulator, latency=latency, arguments={"latency": latency})


@pytest.mark.parametrize("simulator", ["icarus", *slow("verilator")])
def test_faults(tmp_path, simulator):
    run(tmp_path, "faults", simulator=simulator, error_address="800", arguments={"error_address": 0x800})


@pytest.mark.parametrize("simulator", ["icarus", *slow("verilator")])
def test_hang(tmp_path, simulator):
    run(tmp_path, "hang", simulator=simulator, hang_after=2, hang_cycles=500, arguments={"hang_cycles": 500})


@pytest.mark.parametrize("simulator", ["icarus", *slow("verilator")])
def test_rules(tmp_path, simulator):
    assert run(tmp_path, "rules", simulator=simulator)["errors"] == {"icarus": 6, "verilator": 5}[simulator]


def test_a_failure_is_reported(tmp_path):
    """A bench with wrong memory contents fails, and the error names the test and the seed."""
    with pytest.raises(runner.SimulationError, match=r"seed 42: traffic: "):
        run(
            tmp_path,
            "traffic",
            simulator="icarus",
            seed=42,
            arguments={"contents": bytes(BYTES).hex(), "count": 5, "pauses": False},
        )
