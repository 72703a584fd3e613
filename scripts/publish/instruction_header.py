"""The instruction set as a C header, for the C model of the core in `hw/driver/core`."""

import textwrap

from amaranth_tpu.hw.array.weight_unpacker import WeightUnpacker
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.control.dispatcher import Dispatcher
from amaranth_tpu.hw.matmul.matmul_unit import MatmulUnit
from amaranth_tpu.hw.spec import normalization, softmax
from amaranth_tpu.hw.spec.codes import Condition, Format, FunctionCode, Half, RingMode, WeightFormat
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, REGION_WRITABLE, TABLE_WORDS, Opcode, Region, needs_of
from amaranth_tpu.hw.spec.registers import MOST_CORES, REGISTER
from amaranth_tpu.sim.golden.table_lookup import ALWAYS, BINADES, NEVER

__all__ = ["instruction_header"]

_MADE_BY = "Generated from hw/spec by `python -m amaranth_tpu.scripts.datasheet`. Do not edit."
_FIELDS = sorted({field.name for record in INSTRUCTIONS.values() for field in record.fields})
_SPACES = ("buffer", "acc", "bias", "table", "update")
_CODES = {
    "FUNCTION": FunctionCode,
    "FORMAT": Format,
    "HALF": Half,
    "CONDITION": Condition,
    "MODE": RingMode,
    "WEIGHT": WeightFormat,
}


def _wrapped(text, indent="    "):
    return textwrap.fill(text, 116, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _enum(prefix, names, *end):
    return _wrapped(f"enum {{ {', '.join([*(f'{prefix}_{name.upper()}' for name in names), *end])} }};")


def _field_name(name):
    return f"F_{(name or 'none').upper()}"


def _list(values):
    return f"{{{', '.join(map(str, values))}}}"


def _mask(codes):
    return f"0x{sum(1 << code.value for code in codes):X}"


def _feature(name):
    """Returns the mask of a field of register `features`; 0 without a name."""
    return f"TPU_FEATURES_{name.upper()}_MASK" if name else "0"


def _most(field):
    assert field.most in (None, "ring_depth"), "the C model compares with the depth of the ring only"
    return int(field.most is not None)


def _field(field):
    plain = [code for code in field.codes if needs_of(code) is None]
    more = [code for code in field.codes if needs_of(code) is not None]
    (more_need,) = {needs_of(code) for code in more} or {None}
    parts = [
        _field_name(field.name),
        field.first,
        field.width,
        field.plain,
        _feature(field.needs),
        int(field.count),
        _most(field),
    ]
    return _list([*parts, _mask(plain), _mask(more), _feature(more_need)])


def _span(span):
    parts = {"space": f"SPACE_{span.space.upper()}", "base": _field_name(span.base), "times": span.times}
    if span.use == "w":
        parts["writes"] = 1
    if span.rows:
        parts["rows"] = _list(map(_field_name, span.rows))
    if span.loops:
        parts["loops"] = _list(_list(map(_field_name, loop)) for loop in span.loops)
    if span.tall:
        parts["tall"] = 1
    if span.step:
        parts["step"] = _field_name(span.step)
    if span.slide:
        parts["slide"] = _list(map(_field_name, (span.slide[0], *span.slide[1])))
    if span.only_if:
        parts["only_if"] = _field_name(span.only_if)
    if span.around:
        parts |= {"around": _field_name(span.around[0]), "around_modes": _mask(span.around[1])}
    return _wrapped("{" + ", ".join(f".{name} = {value}" for name, value in parts.items()) + "}", " " * 13).lstrip()


def _excluded(excluded):
    return _list([_list(_field_name(name) for name, _ in excluded), _list(code.value for _, code in excluded)])


def _record(opcode, record):
    lines = [f".opcode = OP_{opcode.name}, .unit = UNIT_{record.unit.name}, .needs = {_feature(record.needs)}"]
    if record.transfer:
        use, vectors = ("READS", "WRITES")[record.transfer.use == "w"], record.transfer.vectors or 0
        lines.append(f".transfer = {use}_HOST, .vectors = {vectors}, .half = {_field_name(record.transfer.half)}")
        if record.transfer.coded:
            lines[-1] += f", .coded = {_field_name(record.transfer.coded)}"
    if record.tiled:
        lines.append(f".tiled = {_field_name(record.tiled)}")
    if record.fields:
        lines += [f".fields = {len(record.fields)}", ".field = {\n            " + _rows(map(_field, record.fields)) + "}"]
    if record.spans:
        lines += [f".spans = {len(record.spans)}", ".span = {\n            " + _rows(map(_span, record.spans)) + "}"]
    if record.excluded:
        lines.append(f".exclusions = {len(record.excluded)}, .excluded = {_list(map(_excluded, record.excluded))}")
    return "    {" + ",\n     ".join(lines) + "},"


def _rows(texts):
    return ",\n            ".join(texts)


def _table(module, name):
    values = list(map(str, getattr(module, name)))
    return f"static const uint32_t {name}[{len(values)}] = {{\n    {_wrapped(', '.join(values))}}};"


def instruction_header():
    """Returns the text of `hw/driver/core/core_isa.h`."""
    needs = {record.needs for record in INSTRUCTIONS.values()} | {
        field.needs for r in INSTRUCTIONS.values() for field in r.fields
    }
    assert needs - {None} <= REGISTER["features"].fields.keys(), "a need without a bit in register features"
    constants = {
        "OPCODES": len(INSTRUCTIONS),
        "TABLE_WORDS": TABLE_WORDS,
        "TABLE_BINADES": BINADES,
        "EXPONENT_NEVER": f"({NEVER})",
        "EXPONENT_ALWAYS": ALWAYS,
        "QUEUE_DEPTH": Dispatcher.queue_depth,
        "READY_PASSES": MatmulUnit.ready_passes,
        "WEIGHT_BUFFER": WeightUnpacker.depth,
        "MOST_IN_FLIGHT": 32,
        "MOST_CORES": MOST_CORES,
        "WRITABLE_REGIONS": _mask(region for region in Region if REGION_WRITABLE[region]),
        **{name: getattr(normalization, name) for name in ("SQUARE_SHIFT", "SEGMENT_BITS")},
        **{
            name: getattr(softmax, name)
            for name in (
                "DISTANCE_BITS",
                "DISTANCE_FRACTION",
                "EXPONENT_FRACTION",
                "LOG2_E",
                "LOG2_E_FRACTION",
                "RESULT_EXPONENT",
            )
        },
    }
    Config(in_flight=constants["MOST_IN_FLIGHT"])
    width = max(map(len, constants))
    codes = [_enum(kind, (f"{code.name} = {code.value}" for code in kinds)) for kind, kinds in _CODES.items()]
    parts = [
        f"/* The instruction set: codes, and the record of each opcode.\n   {_MADE_BY} */\n",
        "#ifndef CORE_ISA_H\n#define CORE_ISA_H\n",
        '#include "core_record.h"\n',
        *(f"#define {name:{width}} {value}" for name, value in constants.items()),
        "",
        _enum("UNIT", [unit.name for unit in sorted(Unit, key=lambda unit: unit.value)], "UNITS"),
        _enum("SPACE", _SPACES, "SPACES"),
        *codes,
        _enum("OP", (f"{opcode.name} = {opcode.value}" for opcode in Opcode)),
        "/* Fields of instructions. F_NONE: no field. */",
        _enum("F", ["none", *_FIELDS], "FIELDS"),
        "",
        "/* Fields: name, first bit, width, width without the feature, feature, count, most, codes, more codes, feature. */",
        "static const core_record RECORDS[OPCODES] = {",
        *(_record(opcode, record) for opcode, record in INSTRUCTIONS.items()),
        "};\n",
        "/* Tables of SOFTMAX and NORMALIZE. */",
        *(_table(softmax, name) for name in ("POWERS", "FINE_POWERS", "FINEST_LOSSES")),
        *(_table(normalization, name) for name in ("ROOTS", "SLOPES")),
        "\n#endif\n",
    ]
    return "\n".join(parts)
