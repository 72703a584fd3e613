"""Tests of the instruction-level model, covering its arithmetic against the golden model."""

import functools

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN as FEATURES_OFF
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import TABLE_SETTINGS, TABLE_WORDS, Format, FunctionCode, Opcode, Region
from amaranth_tpu.sim.functions.functions import Function as Activation
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.golden.function_tables import apply, table_of
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
        dict(rows0=3, rows0_stride=1, tiles0=2, tiles0_stride=1, tiles0_acc_stride=1)
        | dict(tiles1=2, tiles1_stride=5, tiles1_acc_stride=2),
        dict(rows0=2, rows0_stride=0, tiles0=2, tiles0_acc_stride=4, tiles1=2, tiles1_acc_stride=1),
    ],
)
def test_matmul_follows_its_loops(rng, loops, start):
    f = (
        MATMUL
        | dict.fromkeys([f"tiles{k}{kind}_stride" for k in range(2) for kind in ("", "_acc")], 0)
        | {"rows1_stride": 0}
        | loops
    )
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
