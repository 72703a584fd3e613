"""The datasheet says what the hardware's descriptions say."""

import pytest

from hw.registers import ADDRESS_WIDTH, REGISTERS
from scripts.datasheet import DATASHEET, SECTIONS
from scripts.tables import replace_section, section


@pytest.mark.parametrize("name", SECTIONS)
def test_up_to_date(name):
    assert section(DATASHEET, name) == SECTIONS[name]().strip(), "run: python -m scripts.datasheet"


def test_register_map():
    offsets = [register.offset for register in REGISTERS]
    assert len(set(offsets)) == len(offsets) and all(offset % 4 == 0 and offset < 1 << ADDRESS_WIDTH for offset in offsets)
    for register in REGISTERS:
        bits = [bit for first, width, _ in (register.fields or {}).values() for bit in range(first, first + width)]
        assert len(set(bits)) == len(bits) and all(bit < 32 for bit in bits)


def test_sections(tmp_path):
    path = tmp_path / "x.md"
    path.write_text("a\n<!-- begin t -->\nold\n<!-- end t -->\nb\n")
    replace_section(path, "t", "new")
    assert path.read_text() == "a\n<!-- begin t -->\nnew\n<!-- end t -->\nb\n" and section(path, "t") == "new"
    with pytest.raises(ValueError, match="no section 'u'"):
        replace_section(path, "u", "new")
