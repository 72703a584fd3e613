"""The instruction-level model: arithmetic against the golden model, and programs that it must refuse."""

import os

import numpy as np
import pytest

from hw.config import Config
from hw.isa import FIELDS, Fault, Format, Function, Opcode, Region, encode
from sim import golden
from sim.golden import bfloat16
from sim.machine import Machine, MachineFault

SEED = int(os.environ.get("TPU_SEED", "1"))
CONFIG = Config(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=4, weight_fifo_depth=2)
N = CONFIG.n
MATMUL = dict(rows0=1, rows1=1, tiles0=1, tiles1=1)


@pytest.fixture
def rng():
    print(f"TPU_SEED={SEED}")
    return np.random.default_rng(SEED)


def program(*words):
    words = [word if isinstance(word, int) else encode(word[0], **word[1]) for word in words]
    return b"".join(word.to_bytes(CONFIG.instruction_bytes, "little") for word in words)


HALT = (Opcode.HALT, {})


def machine(words, model_data=b"", scratch=4096, **regions):
    model = program(*words) + model_data
    return Machine(CONFIG, {Region.MODEL: model, Region.OUTPUT: bytearray(256), Region.SCRATCH: bytearray(scratch),
                            **{Region[name]: data for name, data in regions.items()}})


def random_bfloat16(rng, shape):
    """Bits of numbers of every kind, infinities, NaN and subnormals included."""
    bits = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
    return np.where(rng.random(shape) < 0.9, rng.normal(size=shape).astype(bfloat16).view(np.uint16), bits)


def cell_by_cell(x, tile, acc):
    """One pass, one multiply-accumulate at a time: sums run down the rows k of the tile."""
    acc = acc.copy()
    for row in range(len(x)):
        for column in range(N):
            for k in range(N):
                acc[row, column] = golden.multiply_accumulate(acc[row, column], x[row, k], tile[k, column])
    return acc


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("loops", [
    dict(rows0=3, rows0_stride=2, rows1=2, rows1_stride=9),
    dict(rows0=2, rows0_stride=1, tiles0=3, tiles0_acc_stride=2, tiles1=2, tiles1_stride=2),
    dict(rows0=3, rows0_stride=1, tiles0=2, tiles0_stride=1, tiles0_acc_stride=1, tiles1=2, tiles1_stride=5,
         tiles1_acc_stride=2),
    dict(rows0=2, rows0_stride=0, tiles0=2, tiles0_acc_stride=4, tiles1=2, tiles1_acc_stride=1),
])
def test_matmul_follows_its_loops(rng, loops, start):
    f = {**MATMUL, "rows1_stride": 0, "tiles0_stride": 0, "tiles0_acc_stride": 0, "tiles1_stride": 0,
         "tiles1_acc_stride": 0, **loops}
    tiles = random_bfloat16(rng, (f["tiles0"] * f["tiles1"], N, N))        # [tile, column, row]
    m = machine([(Opcode.LOAD_WEIGHTS, dict(region=Region.SCRATCH, rows=len(tiles))),
                 (Opcode.MATMUL, dict(f, start=start, buffer=7, acc=3, bias=1)), HALT],
                SCRATCH=bytearray(tiles.tobytes()))
    m.buffer[:] = random_bfloat16(rng, m.buffer.shape)
    m.sums[:] = rng.normal(size=m.sums.shape).astype(np.float32).view(np.uint32)
    m.bias[:] = rng.normal(size=m.bias.shape).astype(np.float32).view(np.uint32)
    expected, before = m.sums.copy(), m.sums.copy()
    number = 0
    for t1 in range(f["tiles1"]):
        for t0 in range(f["tiles0"]):
            for r1 in range(f["rows1"]):
                for r0 in range(f["rows0"]):
                    x = m.buffer[7 + t1 * f["tiles1_stride"] + t0 * f["tiles0_stride"] + r1 * f["rows1_stride"]
                                 + r0 * f["rows0_stride"]]
                    place = (3 + t1 * f["tiles1_acc_stride"] + t0 * f["tiles0_acc_stride"] + r1 * f["rows0"] + r0)
                    first = m.bias[1 + t0] if start else expected[place]
                    expected[place] = cell_by_cell(x[None], tiles[number].T, first[None])[0]
            number += 1
    m.run()
    assert (m.sums == expected).all()
    assert (m.sums != before).any()


def test_keep_uses_the_tile_in_the_array(rng):
    tiles = random_bfloat16(rng, (2, N, N))
    m = machine([(Opcode.LOAD_WEIGHTS, dict(region=Region.SCRATCH, rows=2)),
                 (Opcode.MATMUL, dict(MATMUL, start=1, acc=0)),
                 (Opcode.MATMUL, dict(MATMUL, start=1, keep=1, buffer=1, acc=1)),
                 (Opcode.MATMUL, dict(MATMUL, start=1, buffer=1, acc=2)), HALT], SCRATCH=bytearray(tiles.tobytes()))
    m.buffer[:2] = random_bfloat16(rng, (2, N))
    m.run()
    zero = np.zeros((2, N), np.uint32)
    assert (m.sums[:2] == cell_by_cell(m.buffer[:2], tiles[0].T, zero)).all()
    assert (m.sums[2] == cell_by_cell(m.buffer[1:2], tiles[1].T, zero)[0]).all()


@pytest.mark.parametrize("function", Function)
def test_activate_and_store(rng, function):
    m = machine([
        (Opcode.ACTIVATE, dict(function=function, rows=3, lanes=3, buffer=5, acc=2)),
        (Opcode.ACTIVATE, dict(function=function, format=Format.BINARY32, rows=2, lanes=N, buffer=10, acc=2)),
        (Opcode.STORE, dict(region=Region.OUTPUT, rows=3, offset=8, buffer=5)),
        (Opcode.STORE, dict(region=Region.OUTPUT, rows=4, offset=64, buffer=10)), HALT])
    values = rng.normal(size=(3, N)).astype(np.float32)
    m.sums[2:5] = values.view(np.uint32)
    m.run()
    output = m.regions[Region.OUTPUT]
    if function is Function.RELU:
        values = np.maximum(values, np.float32(0))
    rounded = np.frombuffer(output[8:8 + 24], bfloat16).reshape(3, N)
    assert (rounded[:, :3] == values[:, :3].astype(bfloat16)).all()
    assert (rounded[:, 3].view(np.uint16) == 0).all()
    assert (np.frombuffer(output[64:96], np.float32).reshape(2, N) == values[:2]).all()
    assert not any(output[:8]) and not any(output[32:64]) and not any(output[96:])


def test_load_bias_and_load(rng):
    data = rng.integers(0, 256, 64, dtype=np.uint8).tobytes()
    m = machine([(Opcode.LOAD, dict(region=Region.INPUT, rows=2, offset=8, buffer=62)),
                 (Opcode.LOAD_BIAS, dict(region=Region.INPUT, rows=2, offset=16, bias=1)), HALT], INPUT=data)
    m.run()
    assert m.buffer[62:].tobytes() == data[8:24]
    assert m.bias[1:3].tobytes() == data[16:48]


GOOD = {
    Opcode.LOAD: dict(region=Region.SCRATCH, rows=1),
    Opcode.LOAD_BIAS: dict(region=Region.SCRATCH, rows=1),
    Opcode.LOAD_WEIGHTS: dict(region=Region.SCRATCH, rows=1),
    Opcode.STORE: dict(region=Region.SCRATCH, rows=1),
    Opcode.MATMUL: dict(MATMUL, keep=1),
    Opcode.ACTIVATE: dict(rows=1, lanes=1),
}


def fault_of(word, **more):
    """`(cause, pc)` of a run in which this is the second of two instructions."""
    m = machine([(Opcode.SYNC, {}), word, HALT], **more)
    before = [m.buffer.copy(), m.sums.copy(), m.bias.copy(), bytes(m.regions[Region.SCRATCH])]
    try:
        m.run()
    except MachineFault as fault:
        after = [m.buffer, m.sums, m.bias, bytes(m.regions[Region.SCRATCH])]
        assert all(np.array_equal(a, b) for a, b in zip(before, after)), "a refused instruction had an effect"
        return fault.cause, fault.pc
    return None, None


@pytest.mark.parametrize("opcode", list(GOOD))
def test_good_instructions_run(opcode):
    assert fault_of((opcode, GOOD[opcode])) == (None, None)


BAD = [
    *[(word, Fault.ILLEGAL) for word in (0x00, 0xFF, 0x03, 0x11223344556677, 1 << 255 | 0x01)],
    *[((opcode, dict(GOOD[opcode], _reserved=1)), Fault.ILLEGAL) for opcode in GOOD],
    ((Opcode.ACTIVATE, dict(rows=1, lanes=0)), Fault.ILLEGAL),
    ((Opcode.ACTIVATE, dict(rows=1, lanes=N + 1)), Fault.ILLEGAL),
    ((Opcode.ACTIVATE, dict(rows=1, lanes=1, function=9)), Fault.ILLEGAL),
    ((Opcode.ACTIVATE, dict(rows=0, lanes=N + 1)), Fault.ILLEGAL),
    ((Opcode.ACTIVATE, dict(rows=0, lanes=1, acc=32)), Fault.LENGTH),
    *[((opcode, dict(GOOD[opcode], rows=0)), Fault.LENGTH) for opcode in GOOD if opcode is not Opcode.MATMUL],
    *[((Opcode.MATMUL, dict(GOOD[Opcode.MATMUL], **{name: 0})), Fault.LENGTH)
      for name in ("rows0", "rows1", "tiles0", "tiles1")],
    *[((opcode, dict(GOOD[opcode], offset=4)), Fault.ADDRESS) for opcode in GOOD if "offset" in dict(FIELDS[opcode])],
    ((Opcode.LOAD, dict(region=Region.INPUT, rows=1)), Fault.ADDRESS),
    ((Opcode.LOAD, dict(region=Region.SCRATCH, rows=2, offset=4096 - 8)), Fault.ADDRESS),
    ((Opcode.LOAD_BIAS, dict(region=Region.SCRATCH, rows=1, offset=4096 - 8)), Fault.ADDRESS),
    ((Opcode.LOAD_WEIGHTS, dict(region=Region.SCRATCH, rows=1, offset=4096 - 24)), Fault.ADDRESS),
    ((Opcode.STORE, dict(region=Region.MODEL, rows=1)), Fault.ADDRESS),
    ((Opcode.LOAD, dict(region=Region.SCRATCH, rows=2, buffer=63)), Fault.ADDRESS),
    ((Opcode.STORE, dict(region=Region.SCRATCH, rows=2, buffer=63)), Fault.ADDRESS),
    ((Opcode.LOAD_BIAS, dict(region=Region.SCRATCH, rows=2, bias=3)), Fault.ADDRESS),
    ((Opcode.ACTIVATE, dict(rows=2, lanes=1, acc=31)), Fault.ADDRESS),
    ((Opcode.ACTIVATE, dict(rows=2, lanes=1, buffer=63)), Fault.ADDRESS),
    ((Opcode.ACTIVATE, dict(rows=1, lanes=1, buffer=63, format=Format.BINARY32)), Fault.ADDRESS),
    *[((Opcode.MATMUL, dict(GOOD[Opcode.MATMUL], **fields)), Fault.ADDRESS) for fields in (
        dict(buffer=64), dict(acc=32), dict(start=1, bias=4), dict(start=1, bias=3, tiles0=2),
        dict(rows0=2, rows0_stride=64), dict(rows1=2, rows1_stride=64), dict(tiles0=2, tiles0_stride=64),
        dict(tiles1=2, tiles1_stride=64), dict(rows0=3, rows1=11), dict(tiles0=2, tiles0_acc_stride=32),
        dict(tiles1=2, tiles1_acc_stride=32), dict(rows0=65535, rows0_stride=65535))],
    ((Opcode.MATMUL, MATMUL), Fault.TIMEOUT),
]


@pytest.mark.parametrize("word, cause", BAD, ids=range(len(BAD)))
def test_bad_instructions_fault(word, cause):
    if not isinstance(word, int) and "_reserved" in word[1]:
        opcode, fields = word
        word = encode(opcode, **{k: v for k, v in fields.items() if k != "_reserved"}) | 1 << 255
    assert fault_of(word) == (cause, CONFIG.instruction_bytes)


def test_edges_are_inside():
    """One less than what faults above."""
    for word in [(Opcode.LOAD, dict(region=Region.SCRATCH, rows=1, offset=4096 - 8, buffer=63)),
                 (Opcode.ACTIVATE, dict(rows=1, lanes=N, buffer=62, acc=31, format=Format.BINARY32)),
                 (Opcode.MATMUL, dict(GOOD[Opcode.MATMUL], buffer=63, acc=31, bias=65535)),
                 (Opcode.MATMUL, dict(GOOD[Opcode.MATMUL], start=1, bias=2, tiles0=2, tiles0_acc_stride=31))]:
        assert fault_of(word) == (None, None)


def test_fetch_stops_at_the_end_of_the_model():
    m = Machine(CONFIG, {Region.MODEL: program((Opcode.SYNC, {}))})
    with pytest.raises(MachineFault) as caught:
        m.run()
    assert (caught.value.cause, caught.value.pc) == (Fault.ADDRESS, CONFIG.instruction_bytes)


def test_random_words_never_leave_the_model_in_the_dark(rng):
    """Random programs end in HALT or a fault, never in a Python error."""
    causes = set()
    for _ in range(300):
        opcode = rng.choice(list(GOOD))
        word = encode(opcode, **GOOD[opcode])
        for _ in range(rng.integers(1, 4)):
            word ^= 1 << int(rng.integers(0, 256))
        m = machine([word, HALT])
        try:
            m.run()
            causes.add(None)
        except MachineFault as fault:
            causes.add(fault.cause)
    assert {Fault.ILLEGAL, Fault.ADDRESS} <= causes
