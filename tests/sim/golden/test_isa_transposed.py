"""Tests of loads that transpose tiles, on the instruction-level model."""

from dataclasses import replace

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Fault, Opcode, Region
from machine_programs import HALT, fault_in, machine_of, random_bfloat16

CONFIG = Config(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=4, weight_fifo_depth=2, transpose=True)
N = CONFIG.n


def test_transposed_loads(rng):
    """LOAD with `transpose` transposes each group of n vectors, and a LOAD without it does not."""
    tiles = random_bfloat16(rng, (3, N, N))
    load = dict(region=Region.SCRATCH, buffer=5)
    words = [
        (Opcode.LOAD, dict(load, rows=2 * N, transpose=1)),
        (Opcode.LOAD, dict(load, rows=3, buffer=40, offset=4 * N * N)),
        HALT,
    ]
    m = machine_of(CONFIG, words, SCRATCH=bytearray(tiles.tobytes()))
    m.run()
    assert (m.buffer[5 : 5 + N] == tiles[0].T).all() and (m.buffer[5 + N : 5 + 2 * N] == tiles[1].T).all()
    assert (m.buffer[40:43] == tiles[2][:3]).all() and not m.buffer[:5].any() and not m.buffer[5 + 2 * N : 40].any()
    for rows, fault in ((N, None), (N + 1, Fault.LENGTH), (N // 2, Fault.LENGTH)):
        assert fault_in(CONFIG, (Opcode.LOAD, dict(load, rows=rows, transpose=1)))[0] is fault
    assert fault_in(replace(CONFIG, transpose=False), (Opcode.LOAD, dict(load, rows=N, transpose=1)))[0] is Fault.ILLEGAL
