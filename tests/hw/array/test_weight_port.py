# amaranth: UnusedElaboratable=no
"""Tests of the write port of the weight FIFO: tiles arrive in order, and transposed if their LOAD_WEIGHTS asks for it."""

import numpy as np
import pytest

from amaranth_tpu.hw.array.weight_port import WeightPort
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.operations import transfer_layout
from amaranth_tpu.sim.rtl.number_classes import numbers
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def tiles(ports, rng, *, n, transposes, pauses, weight_rows):
    sent, expected, found = [], [], []
    for _ in range(12):
        tile, transpose = numbers(rng, (n, n), 0.3, 16), int(transposes and rng.random() < 0.5)
        sent += [(vector.tolist(), transpose) for vector in tile]
        expected += (tile.T if transpose else tile).tolist()
    while len(found) < len(expected):
        now = bool(sent) and rng.random() >= pauses
        vector, transpose = sent.pop(0) if now else ([rng.getrandbits(16) for _ in range(n)], rng.getrandbits(1))
        ports.set(load__write=now, load__vector=vector, **({"load__transpose": transpose} if transposes else {}))
        await ports.settle()
        if write := ports.get("vectors__write"):
            half = len(found) % weight_rows
            assert write == 1 << half
            found.append(ports.lanes("vectors__vector", n * weight_rows)[half * n :][:n])
        await ports.tick()
        assert ports.cycle < 1000
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("transposes", [False, True])
@pytest.mark.parametrize("n, pauses, weight_rows", [(2, 0.5, 1), (4, 0, 1), (4, 0.3, 2)])
def test_tiles(n, pauses, weight_rows, transposes):
    layout = transfer_layout(Config(n=n, attention=transposes), Unit.WEIGHTS)
    port = WeightPort(n=n, transfer=layout, transposes=transposes, weight_rows=weight_rows)
    simulate(port, tiles, seed=seed(), n=n, transposes=transposes, pauses=pauses, weight_rows=weight_rows)
