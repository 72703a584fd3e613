"""The instruction set of a core, for the decoder, the compiler, the instruction-level model and the datasheet.

An instruction is one 256-bit word.
"""

import functools
from dataclasses import replace

from amaranth.lib import data

from .codes import REGION_WRITABLE, Condition, Fault, Format, FunctionCode, Half, Region, RingMode, UpdatePart, WeightFormat
from .instruction import INSTRUCTION_WIDTH
from .opcodes import INSTRUCTIONS, Opcode, Task

__all__ = [
    "Opcode",
    "Task",
    "FunctionCode",
    "Format",
    "Half",
    "Condition",
    "RingMode",
    "UpdatePart",
    "WeightFormat",
    "Region",
    "REGION_WRITABLE",
    "TABLE_ENTRIES",
    "TABLE_WORDS",
    "TABLE_SETTINGS",
    "INSTRUCTIONS",
    "layout",
    "spaces_of",
    "space_depth",
    "Fault",
    "needs_of",
    "exists",
    "records",
]

#: Entries of the function table, addressed by the sign, one of 16 binades, and 7 bits of fraction.
TABLE_ENTRIES = 4096

#: 16-bit words of the function table. Each entry is a value, then a slope.
TABLE_WORDS = 2 * TABLE_ENTRIES

#: Fields of LOAD_TABLE that the function table keeps, with their widths.
TABLE_SETTINGS = {
    name: width for name, width in INSTRUCTIONS[Opcode.LOAD_TABLE].widths.items() if name not in ("rows", "buffer", "word")
}

#: Field of :class:`hw.config.Config` that a code requires. The records of opcodes have their own `needs`.
_NEEDS = {FunctionCode.TABLE: "table_lanes", Format.PLANES: "training", Format.INDEX: "training"}


def spaces_of(config):
    """Returns the names of the memories on the chip that instructions of several units share."""
    return ("buffer", "acc", "bias", *(("update",) if config.update_lanes else ()))


def space_depth(config, space):
    """Returns the number of rows of the memory `space`, a name in a :class:`Span`."""
    return {
        "buffer": config.unified_buffer_depth,
        "acc": config.accumulator_depth,
        "bias": config.bias_depth,
        "table": TABLE_WORDS // config.n,
        "update": config.update_depth,
    }[space]


def needs_of(code):
    """Returns the field of :class:`hw.config.Config` that a code of a field, or an opcode, requires; None if each core has it."""
    return INSTRUCTIONS[code].needs if isinstance(code, Opcode) else _NEEDS.get(code)


def exists(config, code):
    """Returns True if a core has a code of a field, or an opcode."""
    needs = needs_of(code)
    return needs is None or bool(getattr(config, needs))


def _narrowed(config, field):
    """Returns a field with the width and the codes that a core has. The width is 0 if the core lacks the field."""
    width = field.width if field.needs is None or getattr(config, field.needs) else field.plain
    return replace(field, width=width, codes=tuple(code for code in field.codes if exists(config, code)))


def _record_of(config, record):
    fields = [_narrowed(config, field) for field in record.fields]
    excluded = [codes for codes in record.excluded if all(exists(config, code) for _, code in codes)]
    return replace(record, fields=tuple(field for field in fields if field.width), excluded=tuple(excluded))


@functools.cache
def records(config):
    """Returns {Opcode: Instruction} of a core, without the opcodes, fields, bits and codes that the core lacks."""
    return {opcode: _record_of(config, record) for opcode, record in INSTRUCTIONS.items() if exists(config, opcode)}


def layout(record):
    """Returns the Amaranth layout of the word of an instruction."""
    return data.FlexibleLayout(
        INSTRUCTION_WIDTH,
        {"opcode": data.Field(8, 0), **{field.name: data.Field(field.width, field.first) for field in record.fields}},
    )
