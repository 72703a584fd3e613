"""Tests of `--memory`: its texts, the simulated memory's bandwidth, and the cycles that the timing model predicts for it."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.host.inference import count_batch
from amaranth_tpu.sim.models.shipped import SHIPPED
from amaranth_tpu.sim.rtl.host_memory import HostMemory, parse_memory
from graphs import SHARED
from suites import slow

SLOW = ["32:4", "20:16:4", "90:2:8", "ddr3-800x16@50", "sdram-133x16@50"]


@pytest.mark.parametrize(
    "text, memory",
    [
        ("7", HostMemory(7)),
        ("32:8", HostMemory(32, 8.0)),
        ("32:1.5:2.5", HostMemory(32, 1.5, 2.5)),
        ("ddr3-800x16", HostMemory(15, 16.0, 2.75)),
        ("wishbone32", HostMemory(20, 4 / 14.5)),
        ("sdram-133x16@66.5", HostMemory(6, 4.0, 36 * 66.5 / 1000)),
    ],
)
def test_text(text, memory):
    assert parse_memory(text) == memory


@pytest.mark.parametrize("text", ["", "0", "32:0", "32:8:", "32:8:1:1", "-1", "ddr3-800x16@", "ddr3-800x16@fast", "ddr9"])
def test_refusal(text):
    with pytest.raises(ValueError, match=r"is not a memory: give LATENCY.* such as 32 or 32:8:2"):
        parse_memory(text)
    with pytest.raises(tpu.ArgumentError, match="is not a memory"):
        tpu.load("d").estimate("tiny", memory=text)


def cycles(name, config, batch, memory):
    """Returns the predicted cycles, the cycles in the RTL, and the beats that the RTL moves."""
    program = compile_network(load_network(SHIPPED[name]), config, batch).with_host(memory)
    samples = np.zeros((batch, 784), bfloat16)  # cycles do not depend on the values
    counters = count_batch(program, samples, quick=True, memory=memory.plusargs(config))
    return program.predicted_cycles, counters["cycles"], counters["read_beats"] + counters["write_beats"]


@pytest.mark.parametrize("text", slow("32:4", *SLOW[1:]))
def test_cycles_of_a_small_network(text):
    """The RTL takes at least the time in which its beats pass at the bandwidth; the prediction is within a tenth."""
    memory = parse_memory(text)
    predicted, found, beats = cycles("d", SHARED, 2, memory)
    assert found >= beats * memory.beat_cycles(SHARED)
    assert 0.9 * found < predicted < 1.1 * found, f"{predicted} expected, {found} in the RTL"


@pytest.mark.slow
@pytest.mark.parametrize("text", SLOW)
def test_cycles_of_a_convolutional_network(text):
    predicted, found, _ = cycles("c", from_preset("default", n=4), 2, parse_memory(text))
    assert found / 1.1 < predicted < 1.2 * found, f"{predicted} expected, {found} in the RTL"


def test_bound_follows_the_bandwidth():
    program = compile_network(load_network(SHIPPED["d"]), SHARED, 2)
    narrow = program.with_host(HostMemory(32, SHARED.bus_bytes / 4))
    assert narrow.bound == 4 * program.bound <= narrow.predicted_cycles
    assert program.with_host(HostMemory()) is program
