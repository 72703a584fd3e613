"""The instruction set as a core has it, for the decoder, the compiler, the instruction-level model and the datasheet: one
256-bit word an instruction."""

import functools
from dataclasses import replace

from amaranth.lib import data

from .codes import REGION_WRITABLE, Condition, Fault, Format, FunctionCode, Half, Region, RingMode
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
    "Region",
    "REGION_WRITABLE",
    "TABLE_ENTRIES",
    "TABLE_WORDS",
    "INSTRUCTIONS",
    "layout",
    "space_depth",
    "Fault",
    "exists",
    "records",
]

#: Entries of the function table: a sign, 16 binades, 7 bits of fraction.
TABLE_ENTRIES = 4096

#: Their 16-bit words: of each entry the value, then the slope.
TABLE_WORDS = 2 * TABLE_ENTRIES

#: What a code needs, a field of :class:`hw.config.Config`; of opcodes their records say it.
_NEEDS = {FunctionCode.TABLE: "table_lanes", Format.PLANES: "training", Format.INDEX: "training"}


def space_depth(config, space):
    """Rows of the memory that a :class:`Span` names."""
    return {
        "buffer": config.unified_buffer_depth,
        "acc": config.accumulator_depth,
        "bias": config.bias_depth,
        "table": TABLE_WORDS // config.n,
    }[space]


def exists(config, code):
    """Whether a core has this code of a field, or Opcode."""
    needs = INSTRUCTIONS[code].needs if isinstance(code, Opcode) else _NEEDS.get(code)
    return needs is None or bool(getattr(config, needs))


def _narrowed(config, field):
    """The field as a core has it; of width 0 if it does not."""
    width = field.width if field.needs is None or getattr(config, field.needs) else field.plain
    return replace(field, width=width, codes=tuple(code for code in field.codes if exists(config, code)))


def _record_of(config, record):
    fields = [_narrowed(config, field) for field in record.fields]
    excluded = [codes for codes in record.excluded if all(exists(config, code) for _, code in codes)]
    return replace(record, fields=tuple(field for field in fields if field.width), excluded=tuple(excluded))


@functools.cache
def records(config):
    """Opcode to its :class:`Instruction` as a core has it: without the opcodes, fields, bits and codes that it lacks."""
    return {opcode: _record_of(config, record) for opcode, record in INSTRUCTIONS.items() if exists(config, opcode)}


def layout(record):
    """Amaranth layout of the word of an instruction."""
    return data.FlexibleLayout(
        INSTRUCTION_WIDTH,
        {"opcode": data.Field(8, 0), **{field.name: data.Field(field.width, field.first) for field in record.fields}},
    )
