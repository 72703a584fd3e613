"""Tests of the instruction-level model of a core with `training`, covering the instructions and formats of that feature, and
their faults."""

import functools

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Fault, Format, FunctionCode, Half, Opcode, Region, UpdatePart
from amaranth_tpu.sim.golden import arithmetic as golden
from core_programs import least_fields
from machine_programs import HALT, cell_by_cell, fault_in, machine_of, program, random_bfloat16, random_binary32

SIZES = dict(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=16, weight_fifo_depth=4)
CONFIG, PLAIN = Config(**SIZES, training=True), Config(**SIZES, attention=False)
N = CONFIG.n
machine, fault_of = functools.partial(machine_of, CONFIG), functools.partial(fault_in, CONFIG)
MATMUL = dict(rows0=1, rows1=1, tiles0=1, tiles1=1)


def filled(rng, words, **more):
    m = machine(words, **more)
    m.buffer[:] = random_bfloat16(rng, m.buffer.shape)
    m.sums[:], m.bias[:] = random_binary32(rng, m.sums.shape), random_binary32(rng, m.bias.shape)
    return m


@pytest.mark.parametrize("tiles1, acc_stride", [(1, 6), (2, 6), (1, 1)])
def test_a_bias_row_for_each_row(rng, tiles1, acc_stride):
    f = dict(rows0=3, rows0_stride=1, rows1=2, rows1_stride=4, tiles0=3, tiles0_acc_stride=acc_stride, tiles1=tiles1)
    f |= dict(tiles1_stride=7)
    tiles = random_bfloat16(rng, (tiles1, 3, N, N))
    m = filled(
        rng,
        [
            *[
                (Opcode.LOAD_WEIGHTS, dict(region=Region.SCRATCH, rows=3, offset=t * 6 * N * N, transpose=1))
                for t in range(tiles1)
            ],
            (Opcode.MATMUL, dict(f, start=1, bias_rows=1, buffer=5, acc=2, bias=4)),
            HALT,
        ],
        SCRATCH=bytearray(tiles.tobytes()),
    )
    expected = m.sums.copy()
    for t1 in range(tiles1):
        for t0 in range(3):
            for r in range(6):
                x = m.buffer[5 + 7 * t1 + 4 * (r // 3) + r % 3]
                expected[2 + acc_stride * t0 + r] = cell_by_cell(x[None], tiles[t1, t0], m.bias[None, 4 + t0 + r])[0]
    m.run()
    assert (m.sums == expected).all()


LANES = Config(**SIZES, training=True, update_lanes=2)


def test_update_in_numpy(rng):
    """UPDATE is SGD with momentum in numpy's float32 and bfloat16, for numbers that neither overflow nor underflow. V is the
    upper halves of the bias rows after W."""
    rows, acc, bias, place, numbers = 5, 3, 4, 7, golden.bfloat16
    w, g = (rng.standard_normal((rows, N)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((rows, N)).astype(numbers)
    momentum, rate = np.array([0.9, -0.05], numbers)
    fields = dict(rows=rows, acc=acc, bias=bias, update=place, momentum=momentum.view(np.uint16), rate=rate.view(np.uint16))
    stores = [
        (Opcode.STORE_UPDATE, dict(region=Region.SCRATCH, rows=rows, offset=2 * N * rows * index, part=part, update=place))
        for index, part in enumerate(UpdatePart)
    ]
    m = machine_of(LANES, [(Opcode.UPDATE, fields), *stores, HALT], SCRATCH=bytearray(3 * 2 * N * rows))
    m.sums[acc : acc + rows], m.bias[bias : bias + rows] = g.view(np.uint32), w.view(np.uint32)
    m.bias[bias + rows : bias + 2 * rows] = v.view(np.uint16).astype(np.uint32) << np.uint32(16) | np.uint32(0xABCD)
    m.run()
    moved = (g + momentum.astype(np.float32) * v.astype(np.float32)).astype(numbers)
    master = w + rate.astype(np.float32) * moved.astype(np.float32)
    parts = np.frombuffer(bytes(m.regions[Region.SCRATCH]), "<u2").reshape(3, rows, N)
    assert (parts[0] == moved.view(np.uint16)).all()
    assert (parts[1].astype(np.uint32) << np.uint32(16) | parts[2] == master.view(np.uint32)).all()


@pytest.mark.parametrize(
    "opcode, changes, cause",
    [
        (Opcode.UPDATE, {}, None),
        (Opcode.UPDATE, {"rows": 0}, Fault.LENGTH),
        (Opcode.UPDATE, {"rows": 8, "bias": 1}, Fault.ADDRESS),
        (Opcode.UPDATE, {"rows": 8, "acc": 25}, Fault.ADDRESS),
        (Opcode.UPDATE, {"update": 16}, Fault.ADDRESS),
        (Opcode.STORE_UPDATE, {"part": UpdatePart.LOWER}, None),
        (Opcode.STORE_UPDATE, {"part": 0}, Fault.ILLEGAL),
        (Opcode.STORE_UPDATE, {"part": 1, "update": 16}, Fault.ADDRESS),
        (Opcode.STORE_UPDATE, {"part": 1, "region": Region.INPUT}, Fault.ADDRESS),
    ],
)
def test_faults_of_updates(opcode, changes, cause):
    word = opcode, {**least_fields(opcode), **changes}
    assert fault_in(LANES, word)[0] is cause
    assert fault_of(word)[0] is Fault.ILLEGAL


SELECT, POOL = dict(rows0=1, rows1=1), least_fields(Opcode.POOL)
ACTIVATE, LOAD_BIAS = least_fields(Opcode.ACTIVATE), least_fields(Opcode.LOAD_BIAS)
TRAINING_ONLY = [
    (Opcode.SELECT, SELECT),
    (Opcode.LOAD_WEIGHTS, dict(least_fields(Opcode.LOAD_WEIGHTS), transpose=1)),
    (Opcode.LOAD_BIAS, dict(LOAD_BIAS, half=1)),
    (Opcode.LOAD_BIAS, dict(LOAD_BIAS, half=2)),
    (Opcode.MATMUL, dict(least_fields(Opcode.MATMUL), bias_rows=1)),
    (Opcode.ACTIVATE, dict(ACTIVATE, format=Format.PLANES)),
    (Opcode.POOL, dict(POOL, format=Format.INDEX)),
    (Opcode.POOL, dict(POOL, buffer_step=1)),
]


@pytest.mark.parametrize("word", TRAINING_ONLY, ids=lambda word: word[0].name)
def test_only_with_training(word):
    assert fault_of(word) == (None, None)
    assert fault_in(PLAIN, word) == (Fault.ILLEGAL, PLAIN.instruction_bytes)


BAD = [
    *[
        (word, Fault.ILLEGAL)
        for word in (
            (Opcode.LOAD_BIAS, dict(LOAD_BIAS, half=3)),
            (Opcode.ACTIVATE, dict(ACTIVATE, format=Format.INDEX)),
            (Opcode.ACTIVATE, dict(ACTIVATE, format=Format.PLANES, function=FunctionCode.TABLE)),
            (Opcode.POOL, dict(POOL, format=Format.PLANES)),
            (Opcode.POOL, dict(POOL, format=Format.INDEX, function=FunctionCode.TABLE)),
            (Opcode.SOFTMAX, dict(least_fields(Opcode.SOFTMAX), format=Format.PLANES)),
            (Opcode.SOFTMAX, dict(least_fields(Opcode.SOFTMAX), format=Format.INDEX)),
            encode(Opcode.SELECT, **SELECT) | 1 << 9,
            encode(Opcode.SELECT, **SELECT) | 1 << 176,
        )
    ],
    *[((Opcode.SELECT, dict(SELECT, **{name: 0})), Fault.LENGTH) for name in SELECT],
    *[
        (word, Fault.ADDRESS)
        for word in (
            (Opcode.LOAD_BIAS, dict(region=Region.SCRATCH, rows=2, half=1, offset=4096 - 3 * N)),
            (Opcode.MATMUL, dict(MATMUL, keep=1, start=1, bias_rows=1, rows0=3, rows1=5, bias=2)),
            (Opcode.MATMUL, dict(MATMUL, keep=1, start=1, bias_rows=1, rows0=3, tiles0=3, bias=12)),
            (Opcode.ACTIVATE, dict(ACTIVATE, format=Format.PLANES, rows=3, buffer=59)),
            (Opcode.POOL, dict(POOL, rows0=2, buffer_step=64)),
            (Opcode.POOL, dict(POOL, rows0=3, buffer_step=20, buffer=24)),
            (Opcode.POOL, dict(POOL, rows0=3, buffer_step=20, buffer=23, format=Format.BINARY32)),
            (Opcode.POOL, dict(POOL, rows0=3, rows1=2, buffer_step=20, buffer_stride=3, buffer=21)),
            (Opcode.SELECT, dict(SELECT, acc=32)),
            (Opcode.SELECT, dict(SELECT, buffer=64)),
            (Opcode.SELECT, dict(SELECT, operand=64)),
            (Opcode.SELECT, dict(SELECT, rows0=2, rows0_stride=32)),
            (Opcode.SELECT, dict(SELECT, rows1=2, rows1_stride=32)),
            (Opcode.SELECT, dict(SELECT, rows1=2, operand_stride=64)),
            (Opcode.SELECT, dict(SELECT, rows1=2, buffer_stride=64)),
            (Opcode.SELECT, dict(SELECT, rows0=5, operand=60)),
            (Opcode.SELECT, dict(SELECT, rows0=5, buffer=60)),
            (Opcode.SELECT, dict(SELECT, rows0=3, buffer=60, buffer_step=2)),
            (Opcode.SELECT, dict(rows0=65535, rows1=65535, buffer_step=65535, buffer_stride=65535)),
        )
    ],
]


@pytest.mark.parametrize("word, cause", BAD, ids=range(len(BAD)))
def test_bad_instructions_fault(word, cause):
    assert fault_of(word) == (cause, CONFIG.instruction_bytes)


def test_operands_at_the_limit_are_valid():
    """Instructions whose operands end exactly at a limit do not fault, and biases are not checked without `start`."""
    for word in [
        (Opcode.LOAD_BIAS, dict(region=Region.SCRATCH, rows=2, half=1, offset=4096 - 4 * N)),
        (Opcode.MATMUL, dict(MATMUL, keep=1, start=1, bias_rows=1, rows0=3, rows1=5, bias=1)),
        (Opcode.MATMUL, dict(MATMUL, keep=1, start=1, bias_rows=1, rows0=3, tiles0=3, bias=11)),
        (Opcode.MATMUL, dict(MATMUL, keep=1, start=0, bias_rows=1, rows0=3, tiles0=3, bias=65535)),
        (Opcode.MATMUL, dict(MATMUL, keep=1, start=1, rows0=3, rows1=5, bias=15)),
        (Opcode.ACTIVATE, dict(ACTIVATE, format=Format.PLANES, rows=3, buffer=58)),
        (Opcode.POOL, dict(POOL, rows0=3, buffer_step=20, buffer=23)),
        (Opcode.POOL, dict(POOL, rows0=3, buffer_step=20, buffer=22, format=Format.BINARY32)),
        (Opcode.POOL, dict(POOL, rows0=3, rows1=2, buffer_step=20, buffer_stride=3, buffer=20)),
        (Opcode.POOL, dict(POOL, buffer_step=65535)),
        (Opcode.SELECT, dict(SELECT, acc=31, buffer=63, operand=0)),
        (Opcode.SELECT, dict(SELECT, rows0=4, rows1=3, operand=50, operand_stride=5, buffer=0)),
        (Opcode.SELECT, dict(SELECT, rows0=3, buffer=59, buffer_step=2)),
        (Opcode.SELECT, dict(SELECT, buffer_step=65535, rows0_stride=65535, rows1_stride=65535)),
    ]:
        assert fault_of(word) == (None, None), word


def test_loads_of_halves_read_half_the_bytes():
    """LOAD_BIAS of a half reads half as many bytes, so a region that ends there suffices."""
    word = (Opcode.LOAD_BIAS, dict(region=Region.INPUT, rows=2, half=Half.LOWER))
    m = machine([word, HALT], INPUT=bytes(range(4 * N)))
    m.run()
    assert m.bias[:2].tobytes() == b"".join(bytes([i, i + 1, 0, 0]) for i in range(0, 4 * N, 2))
    assert len(program(CONFIG, word)) == CONFIG.instruction_bytes
