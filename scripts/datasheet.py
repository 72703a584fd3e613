"""The generator of the tables in the datasheet, `hw/README.md` and its parts, and of the files of the register map.

Run `python -m amaranth_tpu.scripts.datasheet` after a change to the registers, the instruction set or the configuration.
"""

import argparse
from dataclasses import fields

import numpy as np

from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PRESETS, Config
from amaranth_tpu.hw.spec.cell_stages import STAGES, split_stages
from amaranth_tpu.hw.spec.instruction import INSTRUCTION_WIDTH
from amaranth_tpu.hw.spec.isa import (
    INSTRUCTIONS,
    REGION_WRITABLE,
    Condition,
    Fault,
    Format,
    FunctionCode,
    Half,
    Region,
    RingMode,
    UpdatePart,
    WeightFormat,
)
from amaranth_tpu.hw.spec.registers import REGISTERS
from amaranth_tpu.hw.spec.serial_protocol import ANSWER, IDENTITY, NOT_RECEIVED, REQUEST, Operation, Status
from amaranth_tpu.sim.autodiff.refusals import REFUSALS
from amaranth_tpu.sim.functions.functions import DEFINITIONS
from amaranth_tpu.sim.functions.functions import Function as Activation
from amaranth_tpu.sim.golden.function_tables import errors, is_steady, table_of
from amaranth_tpu.sim.golden.normalization import error as normalization_error
from amaranth_tpu.sim.golden.softmax import errors as softmax_errors
from amaranth_tpu.sim.golden.table_lookup import lookup

from .publish.core_tables import instruction_cycles, memories, ports
from .publish.instruction_header import instruction_header
from .publish.register_files import c_header, svd
from .publish.verification_plan import verification_plan
from .publish.worked_example import worked_example
from .show.documents import DATASHEET, SOFTWARE, write_copies
from .show.markdown import markdown_table, replace_section

__all__ = ["DATASHEET", "PROOFS", "BOARDS_GUIDE", "FILES", "SECTIONS", "main"]

PROOFS = DATASHEET.parent / "proofs.md"
PLAN = DATASHEET.parent / "verification.md"
BOARDS_GUIDE = DATASHEET.parent / "boards" / "README.md"

_FAULT_TEXTS = {
    Fault.NONE: "no fault",
    Fault.ILLEGAL: "an opcode or code that the core or the instruction does not support; an invalid combination of codes; a "
    "reserved bit that is set; `lanes` of 0 or above n",
    Fault.ADDRESS: "an address outside an on-chip memory or a region; an offset that is not a multiple of the bus beat; a `word` "
    "that is not a multiple of n; a STORE to MODEL or INPUT; an instruction outside region MODEL",
    Fault.LENGTH: "a count of 0; a segment above `ring_depth`; a LOAD with `transpose` whose `rows` are not a multiple of n",
    Fault.BUS_READ: "an error response to a read",
    Fault.BUS_WRITE: "an error response to a write",
    Fault.TIMEOUT: "no progress for `timeout` cycles: the bus does not respond, a MATMUL has no tile, or another core of the "
    "ring does not execute its RING",
    Fault.RING: "a RING in a core outside a ring, or while the links need a flush or are flushed; a received vector that differs "
    "from the core's own in segment, mode or round, or in the end of its segment",
}


def _bits(first, width):
    return f"{first}" if width == 1 else f"{first + width - 1}:{first}"


def registers():
    """Returns the register map as Markdown tables."""
    rows = []
    for register in REGISTERS:
        text = register.text
        for name, (first, width, meaning) in (register.fields or {}).items():
            text += f"<br>`{name}` [{_bits(first, width)}]: {meaning}."
        reset = "-" if register.access == "ro" else f"0x{register.reset:X}"
        rows.append([f"0x{register.offset:03X}", f"`{register.name}`", register.access, reset, text])
    return markdown_table(["offset", "name", "access", "reset", "meaning"], rows)


def instructions():
    """Returns all instructions with their encoding, as Markdown."""
    parts = []
    for opcode, record in INSTRUCTIONS.items():
        rows = [
            ["7:0", "`opcode`", f"0x{opcode.value:02X}"],
            *([_bits(field.first, field.width), f"`{field.name}`", field.text] for field in record.fields),
        ]
        rest = f"Bits that are not listed, up to {INSTRUCTION_WIDTH - 1}, are 0."
        parts.append(f"#### {opcode.name}\n\n{record.text}\n\n{markdown_table(['bits', 'field', 'meaning'], rows)}\n\n{rest}")
    return "\n\n".join(parts)


def codes():
    """Returns the tables of the codes of functions, formats, regions and faults, as Markdown."""
    return "\n\n".join(
        [
            _codes_of("function", FunctionCode),
            _codes_of("format", Format),
            _codes_of("half", Half),
            _codes_of("condition", Condition),
            _codes_of("weight_format", WeightFormat),
            _codes_of("part", UpdatePart),
            _codes_of("mode", RingMode),
            markdown_table(
                ["region", "code", "STORE"], [[r.name, r.value, "yes" if REGION_WRITABLE[r] else "no"] for r in Region]
            ),
            markdown_table(["fault", "code", "cause"], [[f.name, f.value, _FAULT_TEXTS[f]] for f in Fault]),
        ]
    )


def _codes_of(name, codes):
    users = {code: [op.name for op, record in INSTRUCTIONS.items() if code in record.codes_of(name)] for code in codes}
    return markdown_table([name, "code", "used by"], [[code.name, code.value, ", ".join(users[code])] for code in codes])


def presets():
    """Returns two Markdown tables: the parameters of a core, and the presets."""
    meanings = markdown_table(
        ["parameter", "meaning and range", "default"],
        [[f"`{entry.name}`", entry.metadata["help"].partition(" Default: ")[0], _default(entry)] for entry in fields(Config)],
    )
    values = markdown_table(
        ["parameter", *PRESETS],
        [[f"`{entry.name}`", *(_value(getattr(config, entry.name)) for config in PRESETS.values())] for entry in fields(Config)],
    )
    return f"{meanings}\n\nThe presets:\n\n{values}"


def _value(value):
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _default(entry):
    return entry.metadata["help"].partition(" Default: ")[2].rstrip(".") if entry.default is None else _value(entry.default)


def latencies():
    """Returns the Markdown table of the latencies of a cell and of the array, by the number of pipeline stages of a cell."""
    rows = []
    for stages in STAGES:
        lead, latency = split_stages(stages)
        rows.append([stages, lead, latency, *(1 + lead + n * latency for n in (4, 8, 16, 32))])
    return markdown_table(["cell stages", "lead", "latency", *(f"row in to sums out, n = {n}" for n in (4, 8, 16, 32))], rows)


def functions():
    """Returns the Markdown table of the functions that are computed by lookup table: the range of the table, and the largest
    errors over all bfloat16 numbers and over random binary32 numbers."""
    every, rng = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16), np.random.default_rng(1)
    operands = [np.where(every & 0x7F800000, every, every & 0x80000000)]
    for low, high in ((2.0**-20, 4), (4, 16), (16, 64), (64, 2.0**127)):
        sizes = np.exp2(rng.uniform(np.log2(low), np.log2(high), 100_000)), rng.uniform(low, min(high, 128), 100_000)
        operands.append(np.concatenate([*sizes, *np.negative(sizes)]).astype(np.float32).view(np.uint32))
    rows = []
    for one in DEFINITIONS.values():
        if one.built_in:
            continue
        function = Activation(one.name, one.example)
        table, largest = table_of(function), []
        for index, sums in enumerate(operands):
            sums = sums if index == 0 else sums[is_steady(function, sums)]
            largest.append(f"{errors(function, sums, lookup(sums, table)).max():.3f}" if len(sums) else "-")
        settings = table.binades, table.first, f"{table.linear_low:02b}", f"{table.linear_high:02b}", table.scale
        rows.append([f"`{function}`", *settings, *largest])
    return markdown_table(
        [
            "function",
            "binades",
            "`first`",
            "`linear_low`",
            "`linear_high`",
            "`scale`",
            "bfloat16 operands",
            "binary32 operands below 4",
            "4 to 16",
            "16 to 64",
            "above 64",
        ],
        rows,
    )


def softmax():
    """Returns the Markdown table of the largest errors of softmax, measured on random rows. The rows are normally distributed
    with several means and deviations."""
    rng = np.random.default_rng(1)
    rows = []
    for width in (2, 10, 100, 1000, 8000):
        values = [
            rng.normal(centre, spread, (200_000 // width, width)).astype(np.float32).view(np.uint32)
            for spread in (0.1, 1, 10, 100)
            for centre in (0, 1000, -1e5)
        ]
        rows.append([width, sum(map(np.size, values)), f"{max(softmax_errors(bits).max() for bits in values):.3f}"])
    return markdown_table(["elements of a row", "results", "largest error"], rows)


def normalization():
    """Returns the Markdown table of the errors of NORMALIZE, measured on random rows."""
    rng, rows = np.random.default_rng(1), []
    for size in (1, 1e-12, 1e12):
        for mean in (0, 8, 100, 1000):
            x = (size * rng.normal(mean, 1, (3000, 64))).astype(np.float32)
            found = [f"{normalization_error(x, centred, 1e-5 * size**2):.2%}" for centred in (True, False)]
            rows.append([f"{size:g}", mean, *found])
    return markdown_table(["deviation", "mean, in deviations", "error, `centred`", "error without the mean"], rows)


_OPERATION_TEXTS = {
    Operation.IDENTIFY: "the words below; the request's count and address are ignored",
    Operation.READ: "`count` words, starting at `address`",
    Operation.WRITE: "no data; the data of the request are written, starting at `address`",
}

_STATUS_TEXTS = {
    Status.OK: "done",
    Status.REFUSED: "unknown operation, a word count of 0, or an address that is not a multiple of 4; no effect",
    Status.BUS_ERROR: "error response to an access; earlier accesses took effect",
    Status.BUS_TIMEOUT: "no response to an access in time; earlier accesses took effect",
    Status.LINE: "a byte without a stop bit, or an invalid first byte",
    Status.LENGTH: "a word count above the maximum of a frame",
    Status.INCOMPLETE: "the request stopped before its end",
    Status.CHECKSUM: "the checksum does not match",
}


def serial():
    """Returns the Markdown table of the codes of the serial protocol."""
    return "\n\n".join(
        [
            markdown_table(["operation", "code", "answer"], [[o.name, o.value, _OPERATION_TEXTS[o]] for o in Operation]),
            markdown_table(
                ["status", "code", "meaning", "received"],
                [[s.name, s.value, _STATUS_TEXTS[s], "no" if s in NOT_RECEIVED else "yes"] for s in Status],
            ),
            markdown_table(["word of IDENTIFY", "meaning"], [[f"`{name}`", text] for name, text in IDENTITY.items()]),
            f"A request starts with 0x{REQUEST:02X}, an answer with 0x{ANSWER:02X}.",
        ]
    )


def boards():
    """Returns the Markdown table of boards."""
    return markdown_table(
        ["board", "part", "preset", "clock, MHz", "memory, KiB", "of", "baud"],
        [
            [
                f"`{b.name}`",
                f"`{b.part}`",
                f"`{b.preset}`",
                b.clock_mhz,
                f"{b.memory_bytes >> 10:,}",
                b.memory_kind,
                f"{b.baud:,}",
            ]
            for b in BOARDS.values()
        ],
    )


def refusals():
    """Returns the networks that training refuses, as a Markdown table."""
    rows = [[operators, text.replace("{}", "...")] for operators, text in REFUSALS.values()]
    return markdown_table(["operators", "message, after the operator and the name of its node"], rows)


#: Generated sections: mark to file and generator.
SECTIONS = {
    **{
        name: (DATASHEET, make)
        for name, make in {
            "presets": presets,
            "ports": ports,
            "registers": registers,
            "example": worked_example,
            "instructions": instructions,
            "codes": codes,
            "functions": functions,
            "softmax": softmax,
            "normalization": normalization,
            "cycles": instruction_cycles,
            "memories": memories,
            "latencies": latencies,
        }.items()
    },
    "plan": (PLAN, verification_plan),
    "boards": (BOARDS_GUIDE, boards),
    "serial": (BOARDS_GUIDE, serial),
    "refusals": (SOFTWARE, refusals),
}


#: Files that are generated completely.
FILES = {
    DATASHEET.parent / "driver" / "tpu_regs.h": c_header,
    DATASHEET.parent / "driver" / "tpu.svd": svd,
    DATASHEET.parent / "driver" / "core" / "core_isa.h": instruction_header,
}


def main():
    """Writes all generated sections and files, and the copies of recipes and tables in guides."""
    argparse.ArgumentParser(prog="python -m amaranth_tpu.scripts.datasheet", description=__doc__).parse_args()
    for name, (path, make) in SECTIONS.items():
        replace_section(path, name, make())
    for path, make in FILES.items():
        path.write_text(make())
    write_copies()


if __name__ == "__main__":
    main()
