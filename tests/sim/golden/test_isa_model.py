"""Tests of the instruction-level model, covering its arithmetic against the golden model."""

import functools

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN as FEATURES_OFF
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import TABLE_SETTINGS, TABLE_WORDS, Format, FunctionCode, Opcode, Region
from amaranth_tpu.sim.benches.activation_model import largest
from amaranth_tpu.sim.functions.functions import Function as Activation
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.function_tables import apply, table_of
from amaranth_tpu.sim.golden.softmax import softmax
from amaranth_tpu.sim.golden.table_lookup import Table
from machine_programs import HALT, cell_by_cell, fault_in, machine_of, random_bfloat16

CONFIG = Config(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=4, weight_fifo_depth=2)
PLAIN = Config(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=4, weight_fifo_depth=2, **FEATURES_OFF)
N = CONFIG.n
MATMUL = dict(rows0=1, rows1=1, tiles0=1, tiles1=1)
machine, fault_of = functools.partial(machine_of, CONFIG), functools.partial(fault_in, CONFIG)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    "loops",
    [
        dict(rows0=3, rows0_stride=2, rows1=2, rows1_stride=9),
        dict(rows0=2, rows0_stride=1, tiles0=3, tiles0_acc_stride=2, tiles1=2, tiles1_stride=2),
        dict(
            rows0=3,
            rows0_stride=1,
            tiles0=2,
            tiles0_stride=1,
            tiles0_acc_stride=1,
            tiles1=2,
            tiles1_stride=5,
            tiles1_acc_stride=2,
        ),
        dict(rows0=2, rows0_stride=0, tiles0=2, tiles0_acc_stride=4, tiles1=2, tiles1_acc_stride=1),
    ],
)
def test_matmul_follows_its_loops(rng, loops, start):
    f = {
        **MATMUL,
        "rows1_stride": 0,
        "tiles0_stride": 0,
        "tiles0_acc_stride": 0,
        "tiles1_stride": 0,
        "tiles1_acc_stride": 0,
        **loops,
    }
    tiles = random_bfloat16(rng, (f["tiles0"] * f["tiles1"], N, N))  # [tile, column, row]
    m = machine(
        [
            (Opcode.LOAD_WEIGHTS, dict(region=Region.SCRATCH, rows=len(tiles))),
            (Opcode.MATMUL, dict(f, start=start, buffer=7, acc=3, bias=1)),
            HALT,
        ],
        SCRATCH=bytearray(tiles.tobytes()),
    )
    m.buffer[:] = random_bfloat16(rng, m.buffer.shape)
    m.sums[:] = rng.normal(size=m.sums.shape).astype(np.float32).view(np.uint32)
    m.bias[:] = rng.normal(size=m.bias.shape).astype(np.float32).view(np.uint32)
    expected, before = m.sums.copy(), m.sums.copy()
    number = 0
    for t1 in range(f["tiles1"]):
        for t0 in range(f["tiles0"]):
            for r1 in range(f["rows1"]):
                for r0 in range(f["rows0"]):
                    x = m.buffer[
                        7 + t1 * f["tiles1_stride"] + t0 * f["tiles0_stride"] + r1 * f["rows1_stride"] + r0 * f["rows0_stride"]
                    ]
                    place = 3 + t1 * f["tiles1_acc_stride"] + t0 * f["tiles0_acc_stride"] + r1 * f["rows0"] + r0
                    first = m.bias[1 + t0] if start else expected[place]
                    expected[place] = cell_by_cell(x[None], tiles[number].T, first[None])[0]
            number += 1
    m.run()
    assert (m.sums == expected).all()
    assert (m.sums != before).any()


def test_keep_uses_the_tile_in_the_array(rng):
    tiles = random_bfloat16(rng, (2, N, N))
    m = machine(
        [
            (Opcode.LOAD_WEIGHTS, dict(region=Region.SCRATCH, rows=2)),
            (Opcode.MATMUL, dict(MATMUL, start=1, acc=0)),
            (Opcode.MATMUL, dict(MATMUL, start=1, keep=1, buffer=1, acc=1)),
            (Opcode.MATMUL, dict(MATMUL, start=1, buffer=1, acc=2)),
            HALT,
        ],
        SCRATCH=bytearray(tiles.tobytes()),
    )
    m.buffer[:2] = random_bfloat16(rng, (2, N))
    m.run()
    zero = np.zeros((2, N), np.uint32)
    assert (m.sums[:2] == cell_by_cell(m.buffer[:2], tiles[0].T, zero)).all()
    assert (m.sums[2] == cell_by_cell(m.buffer[1:2], tiles[1].T, zero)[0]).all()


@pytest.mark.parametrize("function", [FunctionCode.NONE, FunctionCode.RELU])
def test_activate_and_store(rng, function):
    m = machine(
        [
            (Opcode.ACTIVATE, dict(function=function, rows=3, lanes=3, buffer=5, acc=2)),
            (Opcode.ACTIVATE, dict(function=function, format=Format.BINARY32, rows=2, lanes=N, buffer=10, acc=2)),
            (Opcode.STORE, dict(region=Region.OUTPUT, rows=3, offset=8, buffer=5)),
            (Opcode.STORE, dict(region=Region.OUTPUT, rows=4, offset=64, buffer=10)),
            HALT,
        ]
    )
    values = rng.normal(size=(3, N)).astype(np.float32)
    m.sums[2:5] = values.view(np.uint32)
    m.run()
    output = m.regions[Region.OUTPUT]
    if function is FunctionCode.RELU:
        values = np.maximum(values, np.float32(0))
    rounded = np.frombuffer(output[8 : 8 + 24], bfloat16).reshape(3, N)
    assert (rounded[:, :3] == values[:, :3].astype(bfloat16)).all()
    assert (rounded[:, 3].view(np.uint16) == 0).all()
    assert (np.frombuffer(output[64:96], np.float32).reshape(2, N) == values[:2]).all()
    assert not any(output[:8]) and not any(output[32:64]) and not any(output[96:])


@pytest.mark.parametrize("format", [Format.BFLOAT16, Format.BINARY32])
def test_pool_follows_its_loops(rng, format):
    f = dict(rows0=3, rows0_stride=2, rows1=2, rows1_stride=9, window0=2, window0_stride=1, window1=3, window1_stride=4)
    m = machine(
        [(Opcode.POOL, dict(f, function=FunctionCode.RELU, format=format, lanes=3, buffer=5, acc=2, buffer_stride=8)), HALT]
    )
    m.sums[:] = rng.choice(
        np.array([0x80000000, 0, 0x7F800000, 0xFF800000, 0x3F808000, 0xBF808000, 0xC0000000, golden.NAN], np.uint32), m.sums.shape
    )
    before = m.buffer.copy()
    m.run()
    height = 1 if format is Format.BFLOAT16 else 2
    for r1 in range(2):
        for r0 in range(3):
            rows = [2 + r1 * 9 + r0 * 2 + w1 * 4 + w0 for w1 in range(3) for w0 in range(2)]
            values = np.array(
                [golden.relu(largest(column)) if lane < 3 else 0 for lane, column in enumerate(m.sums[rows].T.tolist())],
                np.uint32,
            )
            place = 5 + r1 * 8 + height * r0
            expected = golden.to_bfloat16(values) if height == 1 else values.astype("<u4").view("<u2").reshape(2, N)
            assert (m.buffer[place : place + height] == expected).all()
            before[place : place + height] = expected
    assert (m.buffer == before).all()


@pytest.mark.parametrize("format", [Format.BFLOAT16, Format.BINARY32])
@pytest.mark.parametrize("lanes, tiles", [(3, 1), (N, 2), (1, 3)])
def test_softmax(rng, format, lanes, tiles):
    """SOFTMAX gives the same results as a softmax in numpy within rounding, for rows in one or more tiles, in bfloat16 and
    binary32."""
    m = machine(
        [
            (
                Opcode.SOFTMAX,
                dict(format=format, rows=3, lanes=lanes, buffer=5, acc=2, tiles=tiles, acc_stride=7, buffer_stride=9),
            ),
            HALT,
        ]
    )
    m.sums[:], m.buffer[:] = rng.normal(scale=3, size=m.sums.shape).astype(np.float32).view(np.uint32), 0x1234
    expected, height = m.buffer.copy(), 1 if format is Format.BFLOAT16 else 2
    count = N * (tiles - 1) + lanes
    for row in range(3):
        values = np.concatenate([m.sums[2 + 7 * t + row] for t in range(tiles)])[:count]
        results = softmax(values[None])[0].tolist() + [0] * (N - lanes)
        true = np.exp(values.view(np.float32).astype(float))
        found = np.array(results[:count], np.uint16).view(bfloat16).astype(float)
        assert np.allclose(found, true / true.sum(), rtol=1.2 * 2.0**-8)  # 0.6 units, as in tests/sim/golden/test_softmax.py
        for t in range(tiles):
            tile = np.array(results[t * N :][:N], np.uint32)
            place = 5 + 9 * t + height * row
            expected[place : place + height] = tile if height == 1 else (tile << 16).view(np.uint16).reshape(2, N)
    m.run()
    assert (m.buffer == expected).all()


def test_maximum_by_hand():
    nan, infinite = golden.NAN, 0x7F800000
    for values, expected in (
        ([0, 1 << 31], 0),
        ([1 << 31, 1 << 31], 1 << 31),
        ([0xBF800000, 0xC0000000], 0xBF800000),
        ([infinite, nan, 0], nan),
        ([0xFF800000, 0x80000000], 0x80000000),
        ([0x3F800000, infinite], infinite),
    ):
        m = machine(
            [
                (
                    Opcode.POOL,
                    dict(rows0=1, rows1=1, window0=len(values), window0_stride=1, window1=1, lanes=N, format=Format.BINARY32),
                ),
                HALT,
            ]
        )
        m.sums[: len(values)] = np.array(values, np.uint32)[:, None]
        m.run()
        assert (m.buffer[:2].view("<u4") == expected).all()


@pytest.mark.parametrize("activation", [Activation("tanh"), Activation("leaky_relu", (0.1,)), Activation("elu")], ids=str)
def test_functions_of_the_table(rng, activation):
    table = table_of(activation)
    settings = {name: getattr(table, name) for name in TABLE_SETTINGS}
    program = []
    for word in range(0, TABLE_WORDS, 64 * N):
        program += [
            (Opcode.LOAD, dict(region=Region.SCRATCH, rows=64, offset=2 * word)),
            (Opcode.LOAD_TABLE, dict(settings, rows=64, word=word)),
        ]
    m = machine(
        [
            *program,
            (Opcode.ACTIVATE, dict(function=FunctionCode.TABLE, rows=5, lanes=N - 1, acc=3)),
            (Opcode.ACTIVATE, dict(function=FunctionCode.TABLE, format=Format.BINARY32, rows=5, lanes=N, acc=3, buffer=20)),
            HALT,
        ],
        SCRATCH=bytearray(table.words.tobytes()),
    )
    m.sums[3:8] = rng.normal(size=(5, N), scale=4).astype(np.float32).view(np.uint32)
    m.run()
    expected = apply(activation, m.sums[3:8].view(np.float32))
    assert (m.buffer[:5, : N - 1] == (expected.view(np.uint32) >> 16)[:, : N - 1]).all() and not m.buffer[:5, N - 1].any()
    assert (m.buffer[20:30].reshape(5, 2 * N).view("<u4") == expected.view(np.uint32)).all()


def test_nan_table_entries_give_nan():
    """A NaN table entry gives NaN, like a NaN sum."""
    m = machine([(Opcode.ACTIVATE, dict(function=FunctionCode.TABLE, rows=1, lanes=N)), HALT])
    m.table = Table(127, 0, 0, np.full(TABLE_WORDS, 0xFF81, np.uint16))
    m.sums[0] = [0x3F800000, 0, 0x3F900000, golden.NAN]
    m.run()
    assert m.buffer[0].tolist() == [0x7FC0] * 4


def test_multiply_row_by_row(rng):
    """MULTIPLY computes row after row, so a result may be an operand of the next row."""
    m = machine([(Opcode.MULTIPLY, dict(rows=4, lanes=3, buffer=11, acc=2, operand=10)), HALT])
    m.sums[:] = rng.normal(size=m.sums.shape).astype(np.float32).view(np.uint32)
    m.buffer[:] = random_bfloat16(rng, m.buffer.shape)
    m.buffer[10] = np.array([0x3F80, 0xC000, 0x0001, 0x3F80], np.uint16)
    expected = m.buffer.copy()
    for row in range(4):
        product = golden.multiply(golden.to_bfloat16(m.sums[2 + row]), expected[10 + row])
        expected[11 + row] = np.where(np.arange(N) < 3, golden.to_bfloat16(product), 0)
    m.run()
    assert (m.buffer == expected).all() and (m.buffer[11, :2] != 0).all()


def test_load_bias_and_load(rng):
    data = rng.integers(0, 256, 64, dtype=np.uint8).tobytes()
    m = machine(
        [
            (Opcode.LOAD, dict(region=Region.INPUT, rows=2, offset=8, buffer=62)),
            (Opcode.LOAD_BIAS, dict(region=Region.INPUT, rows=2, offset=16, bias=1)),
            HALT,
        ],
        INPUT=data,
    )
    m.run()
    assert m.buffer[62:].tobytes() == data[8:24]
    assert m.bias[1:3].tobytes() == data[16:48]
