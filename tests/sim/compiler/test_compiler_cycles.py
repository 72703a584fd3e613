"""Tests that predicted cycles do not grow, for the networks in the tables of results and similar ones. The limits come from an
earlier compiler for dense chains and, for the shipped networks, from overlapped stages. If a change is clearly below a limit,
lower the limit."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.models.shipped import SHIPPED

_BATCHES = (1, 8, 16, 32, 64, 128, 256)
_WIDTHS = {"784-128-10": (784, 128, 10), "784-10": (784, 10)}

#: Predicted cycles for each batch in `_BATCHES`.
LIMITS = {
    ("784-128-10", 8): (13177, 13917, 25862, 51462, 102741, 205141, 409941),
    ("784-128-10", 16): (6713, 7079, 7509, 13178, 25978, 51578, 102874),
    ("784-10", 8): (1899, 2754, 3784, 6964, 13170, 25701, 50868),
    ("784-10", 16): (1175, 1553, 1976, 2918, 5249, 8559, 15386),
}
#: Predicted cycles with n = 16 and batch 32.
SHIPPED_LIMITS = {"default": 13_178, "a": 301_200, "b": 1_408_000, "c": 149_700, "d": 2_918}

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
