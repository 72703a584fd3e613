"""Tests of the instruction-level model of a core with `training`, covering the instructions and formats of that feature, and
their faults."""

import functools

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Condition, Fault, Format, FunctionCode, Half, Opcode, Region, UpdatePart
from amaranth_tpu.sim.golden import arithmetic as golden
from core_programs import least_fields
from machine_programs import HALT, cell_by_cell, fault_in, machine_of, program, random_bfloat16, random_binary32

SIZES = dict(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=16, weight_fifo_depth=4)
CONFIG, PLAIN = Config(**SIZES, training=True), Config(**SIZES, attention=False)
N = CONFIG.n
machine, fault_of = functools.partial(machine_of, CONFIG), functools.partial(fault_in, CONFIG)
MATMUL = dict(rows0=1, rows1=1, tiles0=1, tiles1=1)
#: Bits of sums that reveal wrong order, rounding or halves: both zeros, infinities, NaN, and numbers between two bfloat16.
SUMS = np.array(
    [0x80000000, 0, 0x7F800000, 0xFF800000, 0x3F808000, 0x3F80FFFF, 0xBF808001, 0xC0000000, golden.NAN, 0x00800001], np.uint32
)


def filled(rng, words, **more):
    m = machine(words, **more)
    m.buffer[:] = random_bfloat16(rng, m.buffer.shape)
    m.sums[:], m.bias[:] = random_binary32(rng, m.sums.shape), random_binary32(rng, m.bias.shape)
    return m


def test_transposed_tiles(rng):
    """LOAD_WEIGHTS with `transpose` reads the same bytes as rows of a tile instead of columns."""
    tiles = random_bfloat16(rng, (2, N, N))
    m = filled(
        rng,
        [
            (Opcode.LOAD_WEIGHTS, dict(region=Region.SCRATCH, rows=2)),
            (Opcode.LOAD_WEIGHTS, dict(region=Region.SCRATCH, rows=2, transpose=1)),
            (Opcode.MATMUL, dict(MATMUL, rows0=2, rows0_stride=1, tiles0=4, tiles0_acc_stride=2, start=1)),
            HALT,
        ],
        SCRATCH=bytearray(tiles.tobytes()),
    )
    bias = m.bias.copy()
    m.run()
    for place, tile in enumerate([tiles[0].T, tiles[1].T, tiles[0], tiles[1]]):
        expected = cell_by_cell(m.buffer[:2], tile, np.stack([bias[place]] * 2))
        assert (m.sums[2 * place : 2 * place + 2] == expected).all()


@pytest.mark.parametrize("half", Half)
def test_halves_of_biases(rng, half):
    data = rng.integers(0, 1 << 16, (3, 2, N), dtype=np.uint16)
    m = filled(rng, [(Opcode.LOAD_BIAS, dict(region=Region.INPUT, rows=3, bias=2, half=half)), HALT], INPUT=data.tobytes())
    expected = m.bias.copy()
    lanes = expected.view("<u2").reshape(len(expected), N, 2)  # of each binary32 first the lower half, then the upper half
    if half is Half.WHOLE:
        lanes[2:5] = data.reshape(3, N, 2)
    else:
        lanes[2:5, :, int(half is Half.UPPER)] = data.reshape(6, N)[:3]
    m.run()
    assert (m.bias == expected).all()


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


@pytest.mark.parametrize("function", [FunctionCode.NONE, FunctionCode.RELU])
def test_planes(rng, function):
    m = filled(rng, [(Opcode.ACTIVATE, dict(function=function, format=Format.PLANES, rows=3, lanes=3, buffer=7, acc=2)), HALT])
    m.sums[:] = rng.choice(SUMS, m.sums.shape)
    expected = m.buffer.copy()
    for row in range(3):
        for lane in range(N):
            value = 0 if lane == 3 else int(m.sums[2 + row, lane])
            value = int(golden.relu(value)) if function is FunctionCode.RELU else value
            expected[7 + row, lane], expected[10 + row, lane] = value >> 16, value & 0xFFFF
    m.run()
    assert (m.buffer == expected).all()


def test_planes_keep_every_bit_of_biases(rng):
    """Binary32 sums that are stored as PLANES and loaded as halves of biases keep every bit."""
    m = filled(
        rng,
        [
            (Opcode.ACTIVATE, dict(format=Format.PLANES, rows=4, lanes=N, acc=3, buffer=9)),
            (Opcode.STORE, dict(region=Region.SCRATCH, rows=8, buffer=9)),
            (Opcode.LOAD_BIAS, dict(region=Region.SCRATCH, rows=4, half=Half.UPPER, bias=1)),
            (Opcode.LOAD_BIAS, dict(region=Region.SCRATCH, rows=4, half=Half.LOWER, bias=1, offset=4 * 2 * N)),
            HALT,
        ],
    )
    m.run()
    assert (m.bias[1:5] == m.sums[3:7]).all()


def number_of_first_largest(column):
    order = [bits ^ 0xFFFFFFFF if bits >> 31 else bits | 1 << 31 for bits in column]
    return order.index(max(order))


@pytest.mark.parametrize("function", [FunctionCode.NONE, FunctionCode.RELU])
@pytest.mark.parametrize("strides", [(1, 5), (5, 1), (0, 2)])
def test_index_of_the_first_maximum(rng, function, strides):
    """INDEX numbers the rows of a window by w1, then w0, for any strides, and the first of equal rows wins."""
    across, down = strides
    f = dict(rows0=3, rows0_stride=2, rows1=2, rows1_stride=9, window0=2, window0_stride=across, window1=3, window1_stride=down)
    f |= dict(function=function, format=Format.INDEX, lanes=3, buffer=5, acc=2, buffer_stride=8)
    m = filled(rng, [(Opcode.POOL, f), HALT])
    m.sums[:] = rng.choice(SUMS, m.sums.shape)
    m.sums[:, 1] = rng.choice(SUMS[[0, 1, 3, 7]], len(m.sums))  # values that RELU sets to 0
    expected = m.buffer.copy()
    for r1 in range(2):
        for r0 in range(3):
            window = m.sums[[2 + 9 * r1 + 2 * r0 + down * w1 + across * w0 for w1 in range(3) for w0 in range(2)]]
            for lane in range(N):
                number = number_of_first_largest(window[:, lane].tolist())
                dead = function is FunctionCode.RELU and golden.relu(int(window[number, lane])) == 0
                expected[5 + 8 * r1 + r0, lane] = 0 if lane == 3 else 255 if dead else number
    m.run()
    assert (m.buffer == expected).all() and (function is FunctionCode.NONE or (m.buffer[5:8, 1] == 255).all())


@pytest.mark.parametrize("format", [Format.BFLOAT16, Format.BINARY32, Format.INDEX])
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_buffer_step_of_pool(rng, format, step):
    """POOL with `buffer_step` gives the results of one POOL per window, in order."""
    f = dict(rows1=1, window0=2, window0_stride=1, window1=2, window1_stride=8, format=format, lanes=N)
    whole = (Opcode.POOL, dict(f, rows0=4, rows0_stride=2, buffer=3, buffer_step=step))
    stride = step or format.height
    apart = [(Opcode.POOL, dict(f, rows0=1, acc=2 * r0, buffer=3 + stride * r0)) for r0 in range(4)]
    found = filled(rng, [whole, HALT])
    expected = machine([*apart, HALT])
    expected.buffer[:], expected.sums[:] = found.buffer, found.sums
    before = found.buffer.copy()
    found.run()
    expected.run()
    assert (found.buffer == expected.buffer).all() and (found.buffer != before).any()


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("condition", Condition)
def test_select(rng, condition, step):
    f = dict(rows0=3, rows0_stride=2, rows1=2, rows1_stride=7, operand_stride=5, buffer_stride=11, buffer_step=step)
    f |= dict(condition=condition, number=3 if condition is Condition.EQUAL else 0x80)
    m = filled(rng, [(Opcode.SELECT, dict(f, acc=4, operand=2, buffer=30)), HALT])
    m.sums[:] = rng.choice(SUMS, m.sums.shape)
    above = [0x3F80, 0x0080, 0x7F80, 0x4103]
    kinds = [*above, 0, 0x8000, 0x0001, 0x007F, 0x8003, 0xBF80, 0xFF80, 0x7F81, 0x7FC0, 0x7FFF, 0xFFC0, 3, 2, 0x0303]
    m.buffer[:30] = rng.choice(np.array([*kinds, 3, 0x103], np.uint16), (30, N))
    expected = m.buffer.copy()
    for r1 in range(2):
        for r0 in range(3):
            for lane in range(N):
                operand = int(m.buffer[2 + 5 * r1 + r0, lane])
                positive = operand in (*above, 0x0103, 0x0303)
                kept = positive if condition is Condition.POSITIVE else operand % 256 == 3
                value = int(golden.to_bfloat16(m.sums[4 + 7 * r1 + 2 * r0, lane]))
                expected[30 + 11 * r1 + (step or 1) * r0, lane] = value if kept else 0
    m.run()
    assert (m.buffer == expected).all()


@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 2])
def test_select_row_by_row(rng, shift):
    """SELECT computes row after row, so a result may overwrite its own operand or a later row's."""
    m = filled(rng, [(Opcode.SELECT, dict(rows0=5, rows0_stride=1, rows1=1, acc=2, operand=9, buffer=9 + shift)), HALT])
    m.buffer[9:14] = rng.normal(size=(5, N)).astype(golden.bfloat16).view(np.uint16)
    expected, sums = m.buffer.copy(), golden.to_bfloat16(m.sums)
    for row in range(5):
        operands = expected[9 + row].view(golden.bfloat16)
        with np.errstate(invalid="ignore"):  # a result that is read again may be NaN
            expected[9 + shift + row] = np.where(operands > 0, sums[2 + row], 0)
    m.run()
    assert (m.buffer == expected).all()


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
