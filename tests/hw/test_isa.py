"""The instruction set: encoding, decoding, and fields at the same place in the opcodes that share them."""

from random import Random

import pytest

from amaranth_tpu.hw.spec.isa import FIELD_DOCS, FIELDS, OPCODE_DOCS, Opcode, decode, encode
from seeds import seed


@pytest.mark.parametrize("opcode", Opcode)
def test_round_trip(opcode):
    random = Random(seed())
    for _ in range(20):
        values = {name: random.getrandbits(width) for name, width in FIELDS[opcode] if not name.startswith("_")}
        word = encode(opcode, **values)
        assert word < 1 << 256
        assert decode(word) == (opcode, values)


def test_known_word():
    """Worked out by hand from the datasheet: opcode, region 2, rows 3 at bit 16, offset 0x40 at 32, buffer 7 at 64."""
    word = encode(Opcode.STORE, region=2, rows=3, offset=0x40, buffer=7)
    assert word == 0x13 | 2 << 8 | 3 << 16 | 0x40 << 32 | 7 << 64


def test_refused():
    with pytest.raises(ValueError, match="LOAD.rows = 65536 does not fit 16 bits"):
        encode(Opcode.LOAD, rows=1 << 16)
    with pytest.raises(ValueError, match="no field lanes"):
        encode(Opcode.LOAD, lanes=1)
    for word in (0, (1 << 256) - 1, Opcode.HALT.value | 1 << 8, Opcode.MATMUL.value | 1 << 255):
        with pytest.raises(ValueError):
            decode(word)


def test_documented():
    """Each field of each opcode."""
    assert set(OPCODE_DOCS) == set(FIELDS) == set(FIELD_DOCS) == set(Opcode)
    for opcode, fields in FIELDS.items():
        assert {name for name, _ in fields if not name.startswith("_")} == set(FIELD_DOCS[opcode]), opcode
