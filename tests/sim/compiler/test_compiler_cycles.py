"""Tests that predicted cycles do not grow, for the networks in the tables of results and similar ones. If a change is clearly
below a limit, lower the limit."""

import numpy as np
import onnx
import pytest

from amaranth_tpu.hw.config import Config, from_preset
from amaranth_tpu.scripts.benchmark.encoder_block import encoder_block
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.models.shipped import SHIPPED

pytestmark = pytest.mark.search

_BATCHES = (1, 8, 16, 32, 64, 128, 256)
_WIDTHS = {"784-128-10": (784, 128, 10), "784-10": (784, 10)}

#: Predicted cycles for each batch in `_BATCHES`.
LIMITS = {
    ("784-128-10", 8): (13300, 14067, 26057, 52169, 103053, 205955, 411607),
    ("784-128-10", 16): (6785, 7175, 7679, 13490, 26050, 51884, 103081),
    ("784-10", 8): (1919, 2730, 3870, 7134, 13470, 26093, 51136),
    ("784-10", 16): (1231, 1546, 2034, 2971, 4987, 8417, 15593),
}
#: Predicted cycles with n = 16 and batch 32.
SHIPPED_LIMITS = {"default": 13_490, "a": 296_600, "b": 1_369_000, "c": 155_900, "d": 2_971}

#: Array sizes and batches that compile in about a second.
_QUICK = {(8, 1), (8, 8), (16, 1), (16, 16), (16, 64)}


def _points():
    for (name, n), limits in LIMITS.items():
        for batch, limit in zip(_BATCHES, limits):
            yield pytest.param(
                name, n, batch, limit, id=f"{name}, n {n}, batch {batch}", marks=() if (n, batch) in _QUICK else pytest.mark.slow
            )


@pytest.mark.parametrize("name, n, batch, limit", list(_points()))
def test_dense_layers(rng, name, n, batch, limit):
    widths = _WIDTHS[name]
    layers = [
        (
            f"layer{index}",
            rng.normal(size=sizes).astype(bfloat16),
            rng.normal(size=sizes[1]).astype(np.float32),
            "relu" if index + 2 < len(widths) else "none",
        )
        for index, sizes in enumerate(zip(widths, widths[1:]))
    ]
    assert compile_network(dense_chain(name, layers), Config(n=n), batch).predicted_cycles <= 1.003 * limit


@pytest.mark.parametrize(
    "name, limit", [pytest.param(*entry, marks=() if entry[0] == "d" else pytest.mark.slow) for entry in SHIPPED_LIMITS.items()]
)
def test_shipped_networks(name, limit):
    assert compile_network(load_network(SHIPPED[name]), Config(), 32).predicted_cycles <= limit


def test_heads_of_attention_side_by_side(tmp_path):
    """One head's SOFTMAX takes place while the array works on other heads, and results are read before they leave the chip."""
    onnx.save(encoder_block(64, 64, 4, 256), tmp_path / "block.onnx")
    program = compile_network(load_network(tmp_path / "block.onnx"), from_preset("transformer", n=16), 8)
    assert program.predicted_cycles <= 166_000
