"""Tests of RING in the timing model, covering the documented cycles on idle cores, and the priority at the vector port."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.control.decoder import decode_cycles
from amaranth_tpu.hw.spec.isa import Opcode, RingMode
from amaranth_tpu.sim.compiler.codegen.emitter import Emitter
from amaranth_tpu.sim.compiler.timing.model import simulate
from amaranth_tpu.sim.compiler.timing.vector_port import VectorPort

CONFIG = Config(n=8, training=True, ring=True)


def cycles(mode, segment, rounds, cores, count=1):
    emitter = Emitter(CONFIG, {})
    emitter.cores = cores
    fields = {"mode": mode, "segment": segment, "stride": segment * rounds, "rounds": rounds, "buffer": 0, "result": 2048}
    for _ in range(count):
        emitter.emit(Opcode.RING, fields)
    return simulate(emitter.ops, CONFIG, cores=cores).cycles


@pytest.mark.parametrize("cores", [2, 3, 8])
@pytest.mark.parametrize("segment, rounds", [(1, 1), (4, 3), (32, 1), (64, 2)])
def test_cycles_of_all_reduce(cores, segment, rounds):
    """The predicted cycles of an all-reduce equal the documented formula within 1, for zero link latency, whether latency or
    bandwidth limits it. The shortest takes as long as the next RING's decoding."""
    hop = 1 + CONFIG.latency + 1
    formula = rounds * 2 * (segment + (cores - 1) * max(hop, segment))
    found = cycles(RingMode.ALL_REDUCE, segment, rounds, cores, 2) - cycles(RingMode.ALL_REDUCE, segment, rounds, cores)
    assert abs(found - max(formula, decode_cycles(CONFIG)[Opcode.RING])) <= 1


@pytest.mark.parametrize("mode", [RingMode.REDUCE_SCATTER, RingMode.ALL_GATHER])
def test_cycles_of_reduce_scatter_and_all_gather(mode):
    """Reduce-scatter and all-gather on 8 cores take 9 x 32 cycles for segments of 32, since 8 segments are read and 1 written, or
    the reverse."""
    assert cycles(mode, 32, 1, 8, 2) - cycles(mode, 32, 1, 8) == pytest.approx(9 * 32, abs=1)


def test_priority_at_the_vector_port():
    """At the unified buffer's vector port, results have priority over the ring, and the ring over stores."""
    port = VectorPort(1)
    port.begin_results(100, 100)
    port.begin_ring(50, 50)
    port.begin_store(10)
    now = 0
    while (wake := port.advance(now)) is not None:
        now = wake
    assert (port.result_end, port.ring_end, port.store_end) == (100, 150, 160)
    port.begin_ring(50, 25)  # every other cycle
    port.begin_store(25)
    while (wake := port.advance(now)) is not None:
        now = wake
    assert port.ring_end - 160 == 50 and abs(port.store_end - 210) <= 1
