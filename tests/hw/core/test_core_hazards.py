"""Tests of the whole core on programs whose instructions have many hazards, with small buffers."""

import numpy as np
import pytest

from amaranth_tpu.hw.spec.isa import Format, Opcode, Region
from amaranth_tpu.sim.golden.arithmetic import bfloat16, matmul
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.golden.softmax import softmax
from core_programs import Case, check_hazards
from core_runs import FULL, SMALL, MemoryBuilder, op, run
from suites import slow


# promise: order-of-sums, hazards
@pytest.mark.parametrize("memory", [*slow({"latency": 25}), {"latency": 2, "pause_percent": 50}], ids=str)
@pytest.mark.parametrize("config", [*slow(SMALL), FULL], ids=["small", "full"])
def test_hazards(rng, memory, config):
    check_hazards(rng, config, 5, memory=memory)


def test_softmax_of_a_layer(rng):
    """MATMUL, ACTIVATE and SOFTMAX of a layer wider than the array match the golden model bit for bit, with bfloat16 and
    binary32 results."""
    batch, outputs = 4, 11
    config, tile = FULL, dict(rows=batch, lanes=outputs % FULL.n, tiles=3, acc_stride=batch)
    host, machine = MemoryBuilder(rng), Machine(FULL)
    case = Case(
        rng,
        host,
        machine,
        [
            op(Opcode.LOAD, region=Region.INPUT, rows=batch),
            op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=3, offset=64),
            op(Opcode.LOAD_BIAS, region=Region.INPUT, rows=3, offset=256),
            op(Opcode.MATMUL, start=1, rows0=batch, rows0_stride=1, rows1=1, tiles0=3, tiles0_acc_stride=batch, tiles1=1),
            op(Opcode.SOFTMAX, **tile, buffer=8, buffer_stride=batch),
            op(Opcode.STORE, region=Region.OUTPUT, rows=3 * batch, buffer=8),
            op(Opcode.SOFTMAX, **tile, format=Format.BINARY32, buffer_stride=2 * batch),
            op(Opcode.STORE, region=Region.OUTPUT, rows=6 * batch, offset=256),
            op(Opcode.HALT),
        ],
        share=0,
    )
    base, size = case.run["regions"]["INPUT"]
    values = np.frombuffer(bytes(host.bytes[base : base + size]), bfloat16)
    x, weights = values[:16].reshape(batch, 4), values[32:80].reshape(12, 4).T[:, :outputs]
    sums = matmul(x, weights, values[128:152].view(np.float32)[:outputs])
    expected = np.zeros((batch, 12), np.uint16)
    expected[:, :outputs] = softmax(sums.view(np.uint32))
    result = run(config, host, [case.run], memory={"latency": 9})
    assert result["runs"][0]["fault"] is None
    base, _ = case.run["regions"]["OUTPUT"]
    output = np.frombuffer(bytes(result["memory"][base : base + 640]), np.uint16)
    assert (output[:48].reshape(3, batch, 4).swapaxes(0, 1).reshape(batch, 12) == expected).all()
    wide = output[128:224].view(np.uint32).reshape(3, batch, 4).swapaxes(0, 1).reshape(batch, 12)
    assert (wide == expected.astype(np.uint32) << 16).all() and len(np.unique(expected)) > 10
