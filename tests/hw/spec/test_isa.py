"""Tests of the instruction set, covering encoding, decoding, and fields that have the same position in all opcodes that share
them."""

from random import Random

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import decode, encode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode, space_depth
from seeds import seed


@pytest.mark.parametrize("opcode", Opcode)
def test_round_trip(opcode):
    random = Random(seed())
    for _ in range(20):
        values = {name: random.getrandbits(width) for name, width in INSTRUCTIONS[opcode].widths.items()}
        word = encode(opcode, **values)
        assert word < 1 << 256
        assert decode(word) == (opcode, values)


def test_known_word():
    """A STORE encodes to the hand-computed word of the datasheet: opcode, region 2 at bit 8, rows 3 at 16, offset 0x40 at 32,
    buffer 7 at 64."""
    word = encode(Opcode.STORE, region=2, rows=3, offset=0x40, buffer=7)
    assert word == 0x13 | 2 << 8 | 3 << 16 | 0x40 << 32 | 7 << 64


def test_refused():
    with pytest.raises(ValueError, match="LOAD.rows = 65536 does not fit 16 bits"):
        encode(Opcode.LOAD, rows=1 << 16)
    with pytest.raises(ValueError, match="no field lanes"):
        encode(Opcode.LOAD, lanes=1)
    for word in (0, (1 << 256) - 1, Opcode.HALT.value | 1 << 8, Opcode.MATMUL.value | 1 << 255):
        with pytest.raises(ValueError, match="is not a valid Opcode|: reserved bits 0x[0-9a-f]+ are set"):
            decode(word)


@pytest.mark.parametrize("opcode", Opcode)
def test_record_is_consistent(opcode):
    """The fields of each instruction record do not overlap, and its spans name existing fields, so that decoder and model can be
    derived from it."""
    record, taken = INSTRUCTIONS[opcode], 0xFF
    for field in record.fields:
        bits = (1 << field.width) - 1 << field.first
        assert not taken & bits and taken | bits < 1 << 256, f"{opcode.name}.{field.name}"
        taken |= bits
    assert record.reserved == ((1 << 256) - 1) ^ taken
    assert ("region" in record.widths) == (record.transfer is not None)
    assert record.needs is None or hasattr(Config(), record.needs)
    for span in record.spans:
        assert space_depth(Config(), span.space)
        assert {span.base, *span.rows, *sum(span.loops, ())} <= {*record.widths}
        assert {*span.rows, *(count for count, _ in span.loops)} <= {*record.counts}, f"{opcode.name}: a count that may be 0"
        assert len(record.spans_of(span.space)) <= 2


def test_fields_of_one_name_have_one_position():
    """Fields of the same name have the same position in all instructions of a unit, because the unit reads them there."""
    places = {}
    for record in INSTRUCTIONS.values():
        for field in record.fields:
            if field.name not in ("rows1", "rows1_stride", "buffer_stride", "operand"):
                places.setdefault((record.unit, field.name), set()).add((field.first, field.width))
    assert not {name: found for name, found in places.items() if len(found) > 1}
