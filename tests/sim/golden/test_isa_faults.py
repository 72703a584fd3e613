"""Tests of programs that the instruction-level model must refuse, and of good ones that are close to them."""

import functools

import pytest

from amaranth_tpu.hw.config import PLAIN as FEATURES_OFF
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, TABLE_WORDS, Fault, Format, FunctionCode, Opcode, Region, records
from amaranth_tpu.sim.golden.isa_model import Machine, MachineFault
from core_programs import least_fields
from machine_programs import HALT, fault_in, machine_of, program

CONFIG = Config(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=4, weight_fifo_depth=2)
PLAIN = Config(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=4, weight_fifo_depth=2, **FEATURES_OFF)
N = CONFIG.n
MATMUL = dict(rows0=1, rows1=1, tiles0=1, tiles1=1)
machine, fault_of = functools.partial(machine_of, CONFIG), functools.partial(fault_in, CONFIG)


GOOD = {opcode: least_fields(opcode) for opcode in records(CONFIG) if opcode not in (Opcode.HALT, Opcode.SYNC)}


@pytest.mark.parametrize(
    "word",
    [
        (Opcode.POOL, {}),
        (Opcode.SOFTMAX, {}),
        (Opcode.MULTIPLY, {}),
        (Opcode.LOAD_TABLE, {}),
        (Opcode.ACTIVATE, {"function": FunctionCode.TABLE}),
    ],
    ids=lambda word: word[0].name,
)
def test_a_core_without(word):
    m = Machine(PLAIN, {Region.MODEL: program(PLAIN, (word[0], GOOD[word[0]] | word[1]))})
    with pytest.raises(MachineFault) as caught:
        m.run()
    assert caught.value.cause is Fault.ILLEGAL


@pytest.mark.parametrize("opcode", list(GOOD))
def test_good_instructions_run(opcode):
    assert fault_of((opcode, GOOD[opcode])) == (None, None)


def beyond(opcode, changes):
    """Yields instructions of an opcode with an address fault. `changes` are the changed fields of each, such as
    `buffer=64 start=1,bias=4`."""
    for change in changes.split():
        fields = {name: int(value) for name, value in (field.split("=") for field in change.split(","))}
        yield (opcode, dict(GOOD[opcode], **fields)), Fault.ADDRESS


BAD = [
    *[(word, Fault.ILLEGAL) for word in (0x00, 0xFF, 0x03, 0x11223344556677, 1 << 255 | 0x01)],
    *[((opcode, dict(GOOD[opcode], _reserved=1)), Fault.ILLEGAL) for opcode in GOOD],
    ((Opcode.ACTIVATE, dict(rows=1, lanes=0)), Fault.ILLEGAL),
    ((Opcode.ACTIVATE, dict(rows=1, lanes=N + 1)), Fault.ILLEGAL),
    ((Opcode.ACTIVATE, dict(rows=1, lanes=1, function=9)), Fault.ILLEGAL),
    ((Opcode.ACTIVATE, dict(rows=0, lanes=N + 1)), Fault.ILLEGAL),
    ((Opcode.ACTIVATE, dict(rows=0, lanes=1, acc=32)), Fault.LENGTH),
    ((Opcode.ACTIVATE, dict(rows=1, lanes=1, function=3)), Fault.ILLEGAL),
    ((Opcode.POOL, dict(GOOD[Opcode.POOL], lanes=0)), Fault.ILLEGAL),
    ((Opcode.MULTIPLY, dict(rows=1, lanes=N + 1)), Fault.ILLEGAL),
    ((Opcode.SOFTMAX, dict(GOOD[Opcode.SOFTMAX], lanes=0)), Fault.ILLEGAL),
    *[
        ((opcode, dict(GOOD[opcode], **{name: 0})), Fault.LENGTH)
        for opcode in GOOD
        for name in ("rows", "rows0", "rows1", "tiles", "window0", "window1")
        if name in GOOD[opcode]
    ],
    *[((Opcode.MATMUL, dict(GOOD[Opcode.MATMUL], **{name: 0})), Fault.LENGTH) for name in ("rows0", "rows1", "tiles0", "tiles1")],
    *[((opcode, dict(GOOD[opcode], offset=4)), Fault.ADDRESS) for opcode in GOOD if "offset" in INSTRUCTIONS[opcode].widths],
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
    *beyond(
        Opcode.MATMUL,
        "buffer=64 acc=32 start=1,bias=4 start=1,bias=3,tiles0=2 rows0=2,rows0_stride=64 "
        "rows1=2,rows1_stride=64 tiles0=2,tiles0_stride=64 tiles1=2,tiles1_stride=64 rows0=3,rows1=11 "
        "tiles0=2,tiles0_acc_stride=32 tiles1=2,tiles1_acc_stride=32 rows0=65535,rows0_stride=65535",
    ),
    *beyond(
        Opcode.POOL,
        "buffer=64 acc=32 rows0=65 rows0=33,format=1 rows0=2,rows0_stride=32 rows1=2,rows1_stride=32 "
        "rows1=2,buffer_stride=64 window0=2,window0_stride=32 window1=2,window1_stride=32 "
        "rows1=65535,buffer_stride=65535 buffer=62,rows1=2,buffer_stride=1,format=1",
    ),
    *beyond(
        Opcode.SOFTMAX,
        "buffer=64 acc=32 rows=33 buffer=63,format=1 tiles=2,acc_stride=32 tiles=2,buffer_stride=64 "
        "tiles=65535,acc_stride=65535 tiles=65535,buffer_stride=65535 rows=2,tiles=2,acc_stride=31 "
        "rows=2,tiles=2,buffer_stride=61,format=1",
    ),
    *[
        ((Opcode.MULTIPLY, dict(rows=2, lanes=1, **{name: last})), Fault.ADDRESS)
        for name, last in (("buffer", 63), ("operand", 63), ("acc", 31))
    ],
    *[
        ((Opcode.LOAD_TABLE, dict(rows=2, **fields)), Fault.ADDRESS)
        for fields in (dict(buffer=63), dict(word=TABLE_WORDS - N), dict(word=1), dict(word=TABLE_WORDS))
    ],
]


@pytest.mark.parametrize("word, cause", BAD, ids=range(len(BAD)))
def test_bad_instructions_fault(word, cause):
    if not isinstance(word, int) and "_reserved" in word[1]:
        opcode, fields = word
        word = encode(opcode, **{k: v for k, v in fields.items() if k != "_reserved"}) | 1 << 255
    assert fault_of(word) == (cause, CONFIG.instruction_bytes)


def test_operands_at_the_last_row_are_valid():
    """Instructions whose operands end exactly at a memory's last row do not fault."""
    for word in [
        (Opcode.LOAD, dict(region=Region.SCRATCH, rows=1, offset=4096 - 8, buffer=63)),
        (Opcode.ACTIVATE, dict(rows=1, lanes=N, buffer=62, acc=31, format=Format.BINARY32)),
        (
            Opcode.POOL,
            dict(rows0=32, rows1=2, buffer_stride=32, window0=2, window0_stride=15, window1=2, window1_stride=16, lanes=N),
        ),
        (
            Opcode.POOL,
            dict(rows0=2, rows0_stride=31, rows1=31, buffer_stride=2, window0=1, window1=1, lanes=N, format=Format.BINARY32),
        ),
        (Opcode.SOFTMAX, dict(rows=2, lanes=N, tiles=3, acc_stride=15, buffer_stride=31)),
        (Opcode.SOFTMAX, dict(rows=2, lanes=1, tiles=2, acc_stride=30, buffer_stride=60, format=Format.BINARY32)),
        (Opcode.MULTIPLY, dict(rows=2, lanes=1, buffer=62, operand=62, acc=30)),
        (Opcode.LOAD_TABLE, dict(rows=2, buffer=62, word=TABLE_WORDS - 2 * N)),
        (Opcode.MATMUL, dict(GOOD[Opcode.MATMUL], buffer=63, acc=31, bias=65535)),
        (Opcode.MATMUL, dict(GOOD[Opcode.MATMUL], start=1, bias=2, tiles0=2, tiles0_acc_stride=31)),
    ]:
        assert fault_of(word) == (None, None)


def test_fetch_stops_at_the_end_of_the_model():
    m = Machine(CONFIG, {Region.MODEL: program(CONFIG, (Opcode.SYNC, {}))})
    with pytest.raises(MachineFault) as caught:
        m.run()
    assert (caught.value.cause, caught.value.pc) == (Fault.ADDRESS, CONFIG.instruction_bytes)


def test_random_programs_end_with_halt_or_fault(rng):
    """Random programs end with HALT or a fault, never with a Python error."""
    causes, counts = set(), [field for field in INSTRUCTIONS[Opcode.MATMUL].fields if field.name in ("tiles0", "tiles1")]
    many = sum((1 << field.width) - 32 << field.first for field in counts)
    for _ in range(300):
        opcode = rng.choice(list(GOOD))
        word = encode(opcode, **GOOD[opcode])
        for _ in range(rng.integers(1, 4)):
            word ^= 1 << int(rng.integers(0, 256))
        if word & 0xFF == Opcode.MATMUL.value and word & many:
            continue  # thousands of passes take seconds
        m = machine([word, HALT])
        try:
            m.run()
            causes.add(None)
        except MachineFault as fault:
            causes.add(fault.cause)
    assert {Fault.ILLEGAL, Fault.ADDRESS} <= causes
