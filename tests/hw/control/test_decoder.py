# amaranth: UnusedElaboratable=no
"""Tests that the decoder and the machine model report the same faults and the same footprints. The test computes footprints by
executing the loops."""

import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.control.decoder import Decoder
from amaranth_tpu.hw.spec.encoding import decode, encode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Fault, Opcode, Region, exists, records
from amaranth_tpu.hw.spec.operations import instruction_layout
from amaranth_tpu.sim.rtl.ports import pack, simulate
from decoder_words import words
from random_words import at_edge, edges, random_word
from seeds import seed
from suites import all_but, slow

SMALL = dict(n=4, unified_buffer_depth=64, accumulator_depth=32, bias_depth=8)
CONFIGS = [
    Config(**SMALL, **PLAIN),
    Config(n=16, bus_width=64, table_lanes=0, weight_formats=True),
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


# promise: checked-first
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


def test_each_reserved_bit_is_refused():
    config, places = CONFIGS[0], iter(range(8, 256))

    def make(*_):
        return encode(Opcode.SYNC) | 1 << next(places)

    seen = simulate(Decoder(config=config), words, seed=seed(), config=config, count=248, kinds=0, make=make, calm=True)
    assert seen == {"ILLEGAL": 248}


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


# promise: misaligned
def test_a_base_above_the_bus_addresses_is_a_fault():
    decoder = Decoder(config=Config(**SMALL))
    assert simulate(decoder, transfer, seed=seed(), base=1 << 32, size=1 << 12, rows=1) is Fault.ADDRESS


async def fault_in_order(ports, rng, *, overrun, failed):
    """A word that cannot be executed follows a SYNC that the dispatcher does not take for some cycles."""
    await ports.reset()
    for flags in ({"overrun": 0, "failed": 0}, {"overrun": overrun, "failed": failed}):
        ports.set(i__valid=1, i__payload=pack(instruction_layout(), word=encode(Opcode.SYNC), pc=0, **flags))
        await ports.settle()
        await ports.until("i__ready", 20)
        await ports.tick()
    ports.set(i__valid=0)
    for _ in range(10 + rng.randrange(10)):
        await ports.settle()
        assert not ports.get("fault__valid")
        await ports.tick()
    ports.set(o__ready=1)
    await ports.until("fault__valid", 3)


@pytest.mark.parametrize("flags", [dict(overrun=1, failed=0), dict(overrun=0, failed=1)], ids=str)
def test_fault_waits_until_the_preceding_instruction_is_taken(flags):
    simulate(Decoder(config=Config(**SMALL)), fault_in_order, seed=seed(), **flags)
