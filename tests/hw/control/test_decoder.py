# amaranth: UnusedElaboratable=no
"""Tests that the decoder and the machine model report the same faults and the same footprints. The test computes footprints by
executing the loops."""

import bisect

import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.control.decoder import Decoder
from amaranth_tpu.hw.spec.encoding import decode, encode
from amaranth_tpu.hw.spec.isa import (
    INSTRUCTIONS,
    TABLE_WORDS,
    Fault,
    FunctionCode,
    Opcode,
    Region,
    exists,
    records,
    space_depth,
    spaces_of,
)
from amaranth_tpu.hw.spec.operations import instruction_layout
from amaranth_tpu.sim.rtl.ports import pack, simulate
from decoder_words import touched, words
from seeds import seed
from suites import all_but, slow

SMALL = dict(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=8)
CONFIGS = [
    Config(**SMALL, **PLAIN),
    Config(n=16, bus_width=64, table_lanes=0),
    Config(n=128, cell_stages=1, table_lanes=128, pooling=False, softmax=False),
    Config(n=2, unified_buffer_depth=1 << 15, accumulator_depth=1 << 15, table_lanes=1, softmax=False),
    Config(**SMALL, pooling=False, table_lanes=0, attention=False),
    Config(**SMALL),
    Config(**SMALL, training=True, transpose=True),
    Config(n=2, transpose=True, pooling=False),
    Config(n=16, training=True, table_lanes=0, bias_depth=64, ring=True, ring_depth=1 << 15),
    Config(**SMALL, **PLAIN, ring=True, ring_depth=16),
    Config(**SMALL, training=True, update_lanes=2),
]


def random_word(rng, config, sizes, cores):
    """Returns a random 256-bit instruction that is valid in about half of the cases, with addresses near the bounds of `sizes`
    and of the memories."""
    if rng.random() < 0.05:
        return rng.getrandbits(256)
    opcode, values = rng.choice(list(Opcode)), {}
    depths = {
        "buffer": config.unified_buffer_depth,
        "acc": config.accumulator_depth,
        "bias": config.bias_depth,
        "operand": config.unified_buffer_depth,
        "result": config.unified_buffer_depth,
    }
    record = INSTRUCTIONS[opcode] if rng.random() < 0.05 else records(config).get(opcode, INSTRUCTIONS[opcode])
    for name, width in record.widths.items():
        if name in depths:
            depth = depths[name]
            value = rng.choice((0, rng.randrange(depth), max(0, depth - rng.randrange(9)), rng.getrandbits(width)))
        elif name == "offset":
            value = rng.choice((0, rng.choice(sizes), rng.getrandbits(12))) - config.bus_bytes * rng.randrange(4 * config.n)
            value = max(0, value) // config.bus_bytes * config.bus_bytes
            value += rng.randrange(config.bus_bytes) if rng.random() < 0.1 else 0
        elif name == "lanes":
            value = rng.choice((0, 1, config.n, config.n + 1, rng.randrange(1, config.n + 1)))
        elif name == "function":
            value = rng.choice((0, 1, 0, 1, 2, 3))
        elif name == "buffer_step":
            value = rng.choice((0, 1, 2, 3, rng.randrange(20), rng.getrandbits(16)))
        elif name == "word":
            value = rng.choice((0, TABLE_WORDS - rng.randrange(9) * config.n, rng.randrange(2 * TABLE_WORDS)))
        elif name.startswith("window") and width == 8:
            value = rng.choice((1, 1, 2, 3, rng.randrange(6), rng.getrandbits(8)))
        elif width == 16:
            value = rng.choice((1, 1, 2, 3, rng.randrange(20), rng.choice((0, rng.getrandbits(16)))))
        else:
            value = rng.getrandbits(width)
        values[name] = value
    word = encode(opcode, **values)
    return word | (1 << rng.randrange(8, 256) if rng.random() < 0.03 else 0)


@pytest.mark.parametrize(
    "config",
    all_but([CONFIGS[7]], CONFIGS),
    ids=lambda config: (
        f"n{config.n}-{config.pooling:d}-{config.table_lanes}-{config.softmax:d}-{config.training:d}-{config.attention:d}-{config.ring:d}-{config.transpose:d}"
    ),
)
def test_random_words_decode_as_in_the_machine_model(config):
    kinds = sum(exists(config, opcode) for opcode in Opcode) + 4  # RING is an instruction and a fault
    seen = simulate(Decoder(config=config), words, seed=seed(), config=config, count=1600, kinds=kinds, make=random_word)
    assert len(seen) == kinds, f"something never happened: {seen}"


@pytest.mark.parametrize("config", [CONFIGS[6], *slow(CONFIGS[7])], ids=lambda config: f"n{config.n}-{config.ring:d}")
def test_footprint_does_not_depend_on_the_preceding_instruction(config):
    """The decoded footprint does not depend on the preceding instruction, for each pair of opcodes and any distance in cycles."""
    opcodes = [opcode for opcode in records(config) if opcode is not Opcode.HALT]
    in_turn = iter([opcode for first in opcodes for second in opcodes for opcode in (first, second) * 2])

    def make(rng, config, sizes, cores):
        opcode = next(in_turn)
        names = records(config)[opcode].widths
        counts = {name: rng.randrange(1, 4) for name in (*records(config)[opcode].counts, "lanes") if name in names}
        strides = {name: rng.randrange(4) for name in names if name.endswith("stride")}
        return encode(opcode, **counts, **strides, **({"region": Region.OUTPUT} if opcode is Opcode.STORE else {}))

    simulate(Decoder(config=config), words, seed=seed(), config=config, count=4 * len(opcodes) ** 2, kinds=0, make=make)


EDGED = Config(**SMALL | {"bias_depth": 16}, training=True, update_lanes=4, transpose=True, ring=True, ring_depth=16)


def edges(config):
    """Yields `(opcode, space, field, first)` for each field whose value decides whether a span ends at row `first` or one row
    earlier. If `space` is None, `first` is a value of the field itself."""
    for opcode, record in records(config).items():
        yield from ((opcode, None, field.name, getattr(config, field.most) + 1) for field in record.fields if field.most)
        for space in (*spaces_of(config), "table"):
            spans = record.spans_of(space)
            loops = [*(loop for span in spans for loop in span.loops), *(span.slide[1] for span in spans if span.slide)]
            names = {name for span in spans for name in (span.base, span.step, *span.rows, *(span.around or ())[:1])}
            for name in sorted((names | {name for loop in loops for name in loop}) & set(record.widths)):
                beyond = (1 << 16, 1 << 20, 1 << 30) if name in record.counts else (1 << 16,)
                yield from ((opcode, space, name, first) for first in (space_depth(config, space), *beyond))


def at_edge(rng, config, cores, opcode, space, name, first, before):
    """Returns a word with the smallest value of field `name` for which the span ends at row `first` or later. If `before` is 1,
    the value is one step less. The other fields are small and random, except strides for distant ends."""
    record = records(config)[opcode]
    fields = dict.fromkeys(INSTRUCTIONS[opcode].widths, 0)
    fields |= {one: rng.randrange(4) for one in record.widths if one not in ("offset", "transpose", "word")}
    fields |= {one: rng.randrange(1, 4) for one in record.counts}
    for field in record.fields:
        if field.codes:
            fields[field.name] = rng.choice([code for code in field.codes if exists(config, code)])
    usual = {"lanes": config.n, "region": Region.OUTPUT, "function": FunctionCode.NONE, "start": 1}
    fields |= {one: value for one, value in usual.items() if one in record.widths}
    fields |= {one: rng.getrandbits(1) for one in ("keep", "bias_rows") if one in record.widths}

    if first > 1 << 16:
        strides = {stride: 1 << 15 for span in record.spans_of(space) for count, stride in span.loops if count == name}
        fields |= {stride: value for stride, value in strides.items() if stride not in record.counts}

    def last(value):
        return touched(opcode, {**fields, name: value}, config, cores)[space][2] if space else value

    value = bisect.bisect_left(range(1 << record.widths[name]), first, key=last) - before * (config.n if name == "word" else 1)
    if 0 <= value < 1 << record.widths[name]:
        fields[name] = value
    return encode(opcode, **{one: fields[one] for one in record.widths})


@pytest.mark.parametrize(
    "config",
    [EDGED, *slow(CONFIGS[9], Config(n=2, unified_buffer_depth=1 << 15, training=True, ring=True))],
    ids=lambda config: f"n{config.n}-{config.training:d}-{config.ring:d}",
)
def test_spans_are_checked_to_the_row(config):
    """The decoder accepts spans that end in the last row of their memory. The decoder refuses spans that end one row later or
    wrap around at 16 bits."""
    cases = [(*edge, before) for edge in edges(config) for before in (1, 0)]
    todo = iter(cases)

    def make(rng, config, sizes, cores):
        return at_edge(rng, config, cores, *next(todo))

    seen = simulate(Decoder(config=config), words, seed=seed(), config=config, count=len(cases), kinds=0, make=make, calm=True)
    assert seen["ADDRESS"] > len(cases) / 4, seen
    assert sum(seen.values()) - seen["ADDRESS"] > len(cases) / 8, seen


def test_decode_is_the_inverse_of_encode():
    for opcode, record in INSTRUCTIONS.items():
        values = dict.fromkeys(record.widths, 1)
        assert decode(encode(opcode, **values)) == (opcode, values)


async def transfer(ports, rng, *, base, size, rows):
    """Decodes a LOAD of `rows` rows from the beginning of a region. Returns the cause of its fault, or None."""
    low = base & 0xFFFFFFFF
    ports.set(regions__1__base_low=low, regions__1__base_high=base >> 32, regions__1__size=size, o__ready=1)
    await ports.reset()
    await ports.tick()
    word = encode(Opcode.LOAD, rows=rows, region=Region.INPUT)
    ports.set(i__valid=1, i__payload=pack(instruction_layout(), word=word, pc=0, overrun=0, failed=0))
    for _ in range(20):
        await ports.settle()
        if ports.get("fault__valid"):
            return Fault(ports.get("fault__cause"))
        if ports.get("o__valid"):
            return None
        await ports.tick()
    raise AssertionError("no end")


@pytest.mark.parametrize("width", [32, 40])
@pytest.mark.parametrize("beyond", [0, 8])
def test_a_region_beyond_the_bus_addresses_is_a_fault(width, beyond):
    """A LOAD of a region that ends at the last address is decoded. If the region ends later, even a transfer at its start is
    refused."""
    config, size = Config(**SMALL, address_width=width), 1 << 12
    base = (1 << width) - size + beyond
    found = simulate(Decoder(config=config), transfer, seed=seed(), base=base, size=size, rows=1)
    assert found is (Fault.ADDRESS if beyond else None)


def test_a_base_above_the_bus_addresses_is_a_fault():
    decoder = Decoder(config=Config(**SMALL))
    assert simulate(decoder, transfer, seed=seed(), base=1 << 32, size=1 << 12, rows=1) is Fault.ADDRESS
