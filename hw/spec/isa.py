"""The instruction set: one 256-bit word an instruction, described once for the decoder, the compiler, the
instruction-level model and the datasheet.

Every operation is `(name, bits)` fields from bit 0 up; what is left of the 256 bits is reserved and must be zero.
"""

from amaranth.lib import data, enum

__all__ = ["Opcode", "Function", "Format", "Region", "REGION_WRITABLE", "INSTRUCTION_WIDTH", "TABLE_ENTRIES", "TABLE_WORDS",
           "FIELDS", "layout", "encode", "decode", "Fault", "exists", "FIELD_DOCS", "OPCODE_DOCS"]

INSTRUCTION_WIDTH = 256

#: Entries of the function table: a sign, 16 binades, 7 bits of fraction.
TABLE_ENTRIES = 4096

#: Their 16-bit words: those of all values, then those of all slopes.
TABLE_WORDS = 2 * TABLE_ENTRIES


class Opcode(enum.Enum, shape=8):
    """What an instruction does. 0x00 and 0xFF are illegal, so that empty memory stops the core."""

    HALT = 0x01
    SYNC = 0x02
    LOAD = 0x10
    LOAD_BIAS = 0x11
    LOAD_WEIGHTS = 0x12
    STORE = 0x13
    MATMUL = 0x20
    ACTIVATE = 0x30
    POOL = 0x31
    SOFTMAX = 0x32
    MULTIPLY = 0x33
    LOAD_TABLE = 0x34


class Function(enum.Enum, shape=4):
    """Activation function; TABLE: what LOAD_TABLE put into the function table."""

    NONE = 0
    RELU = 1
    TABLE = 2


class Format(enum.Enum, shape=1):
    """What ACTIVATE writes: one bfloat16 vector a row, or two vectors that hold `n` binary32, low lanes first."""

    BFLOAT16 = 0
    BINARY32 = 1


class Region(enum.Enum, shape=2):
    """Window of host memory, placed by the region registers; offsets count bytes from its base."""

    MODEL = 0
    INPUT = 1
    OUTPUT = 2
    SCRATCH = 3


#: Whether STORE may write to a region.
REGION_WRITABLE = {Region.MODEL: False, Region.INPUT: False, Region.OUTPUT: True, Region.SCRATCH: True}


class Fault(enum.Enum, shape=4):
    """Why a run ended early."""

    NONE = 0
    ILLEGAL = 1
    ADDRESS = 2
    LENGTH = 3
    BUS_READ = 4
    BUS_WRITE = 5
    TIMEOUT = 6


_HOST = [("region", 2), ("_0", 6), ("rows", 16), ("offset", 32)]

FIELDS = {
    Opcode.HALT: [],
    Opcode.SYNC: [],
    Opcode.LOAD: [*_HOST, ("buffer", 16)],
    Opcode.LOAD_BIAS: [*_HOST, ("bias", 16)],
    Opcode.LOAD_WEIGHTS: _HOST,
    Opcode.STORE: [*_HOST, ("buffer", 16)],
    Opcode.MATMUL: [
        ("start", 1), ("keep", 1), ("_0", 6),
        ("buffer", 16),
        ("rows0", 16), ("rows0_stride", 16),
        ("rows1", 16), ("rows1_stride", 16),
        ("tiles0", 16), ("tiles0_stride", 16), ("tiles0_acc_stride", 16),
        ("tiles1", 16), ("tiles1_stride", 16), ("tiles1_acc_stride", 16),
        ("acc", 16), ("bias", 16),
    ],
    Opcode.ACTIVATE: [
        ("function", 4), ("format", 1), ("_0", 3),
        ("rows", 16), ("lanes", 8), ("_1", 8), ("buffer", 16), ("acc", 16),
    ],
    Opcode.POOL: [
        ("function", 4), ("format", 1), ("_0", 3),
        ("rows0", 16), ("lanes", 8), ("_1", 8), ("buffer", 16), ("acc", 16), ("rows0_stride", 16),
        ("rows1", 16), ("rows1_stride", 16), ("buffer_stride", 16),
        ("window0", 8), ("window0_stride", 16), ("window1", 8), ("window1_stride", 16),
    ],
    Opcode.SOFTMAX: [
        ("_0", 4), ("format", 1), ("_1", 3),
        ("rows", 16), ("lanes", 8), ("_2", 8), ("buffer", 16), ("acc", 16),
        ("tiles", 16), ("acc_stride", 16), ("buffer_stride", 16),
    ],
    Opcode.MULTIPLY: [
        ("_0", 8), ("rows", 16), ("lanes", 8), ("_1", 8), ("buffer", 16), ("acc", 16), ("operand", 16),
    ],
    Opcode.LOAD_TABLE: [
        ("linear_low", 2), ("linear_high", 2), ("_0", 4),
        ("rows", 16), ("first", 8), ("_1", 8), ("buffer", 16), ("word", 16),
    ],
}

OPCODE_DOCS = {
    Opcode.HALT: "Wait for everything before it, then end the run with DONE and the interrupt.",
    Opcode.SYNC: "Wait for everything before it. Never needed for a right result.",
    Opcode.LOAD: "Host memory -> unified buffer, `rows` vectors of 2n bytes.",
    Opcode.LOAD_BIAS: "Host memory -> bias rows, `rows` rows of n binary32 (4n bytes).",
    Opcode.LOAD_WEIGHTS: "Host memory -> weight FIFO, `rows` tiles of 2n*n bytes, n vectors a tile; vector c holds the "
                         "weights of column c, lane r those of row r.",
    Opcode.STORE: "Unified buffer -> host memory, `rows` vectors of 2n bytes. Only to regions OUTPUT and SCRATCH.",
    Opcode.MATMUL: "For t1 < tiles1, for t0 < tiles0: one pass. A pass takes the next tile from the weight FIFO, then for "
                   "r1 < rows1, for r0 < rows0 multiplies buffer[buffer + t1*tiles1_stride + t0*tiles0_stride + "
                   "r1*rows1_stride + r0*rows0_stride] and adds into acc[acc + t1*tiles1_acc_stride + "
                   "t0*tiles0_acc_stride + r1*rows0 + r0]. `start` and `keep` hold for every pass.",
    Opcode.ACTIVATE: "acc[acc + r] -> function -> round -> buffer[buffer + r] (two vectors a row for BINARY32: "
                     "buffer + 2r, buffer + 2r + 1), r < rows.",
    Opcode.POOL: "For r1 < rows1, for r0 < rows0: the maximum over w1 < window1, w0 < window0 of acc[acc + r1*rows1_stride + "
                 "r0*rows0_stride + w1*window1_stride + w0*window0_stride] -> function -> round -> "
                 "buffer[buffer + r1*buffer_stride + r0] (two vectors for BINARY32: buffer + r1*buffer_stride + 2*r0, and the "
                 "next). Only in a core with `pooling`.",
    Opcode.SOFTMAX: "For r < rows: softmax over the values of acc[acc + t*acc_stride + r], t < tiles, of which the last has "
                    "`lanes` and the others n -> buffer[buffer + t*buffer_stride + r] (two vectors for BINARY32: buffer + "
                    "t*buffer_stride + 2*r, and the next), in both formats rounded to bfloat16. Only in a core with `softmax`.",
    Opcode.MULTIPLY: "round(acc[acc + r]) * buffer[operand + r] -> round -> buffer[buffer + r], all bfloat16, for r < rows, one "
                     "row after the other. Only in a core with `table_lanes`.",
    Opcode.LOAD_TABLE: "Unified buffer -> function table: rows*n words from `word` on, in the order of the lanes of "
                       "buffer[buffer + r], r < rows; and sets `first`, `linear_low` and `linear_high`. Only in a core with "
                       "`table_lanes`.",
}

def _transfer_docs(rows, region="Region that `offset` counts from.", **place):
    return {"region": region, "rows": f"{rows}; not 0.",
            "offset": "Bytes from the region's base to the first byte; a multiple of the bus beat in bytes.", **place}


def _result_docs(*names, **others):
    common = {
        "function": "What is done to a sum (Function).", "format": "How a result is written (Format).",
        "lanes": "Lanes that keep their value, 1 to n; those above are written as +0.",
        "buffer": "First row of the unified buffer that is written.", "acc": "First accumulator row that is read."}
    return {name: common[name] for name in names} | others


#: Opcode to field to what it means.
FIELD_DOCS = {
    Opcode.HALT: {},
    Opcode.SYNC: {},
    Opcode.LOAD: _transfer_docs("Vectors", buffer="First row of the unified buffer that is written."),
    Opcode.LOAD_BIAS: _transfer_docs("Bias rows", bias="First bias row that is written."),
    Opcode.LOAD_WEIGHTS: _transfer_docs("Tiles"),
    Opcode.STORE: _transfer_docs("Vectors", "Region that `offset` counts from: OUTPUT or SCRATCH.",
                                 buffer="First row of the unified buffer that is read."),
    Opcode.MATMUL: {
        "start": "1: the sums of every pass start from a bias row, those of t1 > 0 too. 0: they go on from what the accumulators hold.",
        "keep": "1: every pass uses the weights that are in the array; no tile is taken. 0: every pass takes the next tile.",
        "buffer": "Row of the unified buffer of the first vector.",
        "rows0": "Vectors in the inner loop of a pass; not 0.",
        "rows0_stride": "Rows of the unified buffer from one r0 to the next; 0: the same vector again.",
        "rows1": "Rounds of the outer loop of a pass; not 0.",
        "rows1_stride": "Rows of the unified buffer from one r1 to the next; 0: the same vectors again.",
        "tiles0": "Passes in the inner loop; not 0.",
        "tiles0_stride": "Rows of the unified buffer from one t0 to the next; 0: the same operands again.",
        "tiles0_acc_stride": "Accumulator rows from one t0 to the next; 0: the same sums again.",
        "tiles1": "Rounds of the outer loop of passes; not 0.",
        "tiles1_stride": "Rows of the unified buffer from one t1 to the next; 0: the same operands again.",
        "tiles1_acc_stride": "Accumulator rows from one t1 to the next; 0: the same sums again.",
        "acc": "First accumulator row.",
        "bias": "Bias row of t0 = 0: pass (t1, t0) starts from bias[bias + t0]. Neither used nor checked unless `start`.",
    },
    Opcode.ACTIVATE: _result_docs("function", "format", "lanes", "buffer", "acc", rows="Accumulator rows; not 0."),
    Opcode.POOL: _result_docs(
        "function", "format", "lanes", "buffer", "acc",
        rows0="Windows of an outer row; not 0.",
        rows0_stride="Accumulator rows from one r0's window to the next one's.",
        rows1="Outer rows of windows; not 0.",
        rows1_stride="Accumulator rows from one r1's windows to the next one's.",
        buffer_stride="Rows of the unified buffer from one r1's results to the next one's.",
        window0="Accumulator rows in a row of a window; not 0.",
        window0_stride="Accumulator rows from one w0 to the next.",
        window1="Rows of a window; not 0.",
        window1_stride="Accumulator rows from one w1 to the next."),
    Opcode.SOFTMAX: _result_docs(
        "format", "buffer", "acc",
        rows="Rows of values; not 0.",
        lanes="Lanes of the last tile that hold values, 1 to n; those above count for nothing and are written as +0.",
        tiles="Accumulator rows that one row of values takes; not 0.",
        acc_stride="Accumulator rows from one tile to the next.",
        buffer_stride="Rows of the unified buffer from one tile's results to the next one's."),
    Opcode.MULTIPLY: _result_docs(
        "lanes", "buffer", "acc", rows="Vectors; not 0.", operand="First row of the unified buffer of the other factors."),
    Opcode.LOAD_TABLE: {
        "linear_low": "Below the table's binades the function goes on in proportion (1), or keeps its value (0): of positive "
                      "numbers (low bit), of negative ones (high bit).",
        "linear_high": "The same, above the table's binades.",
        "rows": "Vectors, of n words each; not 0.",
        "first": "Biased exponent of the table's first binade.",
        "buffer": "First row of the unified buffer that is read.",
        "word": "First word of the function table that is written, whose values come before its slopes; a multiple of n.",
    },
}


def exists(config, code):
    """Whether a core has this Opcode or Function."""
    if code is Opcode.POOL:
        return bool(config.pooling)
    if code is Opcode.SOFTMAX:
        return bool(config.softmax)
    if code in (Opcode.MULTIPLY, Opcode.LOAD_TABLE, Function.TABLE):
        return bool(config.table_lanes)
    return True


def _padded(opcode):
    fields = [("opcode", 8), *FIELDS[opcode]]
    used = sum(width for _, width in fields)
    return [*fields, ("_reserved", INSTRUCTION_WIDTH - used)]


def layout(opcode):
    """Amaranth layout of an instruction word of this opcode. Names that start with `_` are reserved bits."""
    return data.StructLayout(dict(_padded(opcode)))


def encode(opcode, **values):
    """The 256-bit word, as an int, of one instruction. Fields not named are 0.

    Raises
    ------
    ValueError
        For a field that the opcode does not have, or a value that does not fit.
    """
    word, position = 0, 0
    for name, width in _padded(opcode):
        value = opcode.value if name == "opcode" else values.pop(name, 0)
        value = int(value.value if isinstance(value, enum.Enum) else value)
        if not 0 <= value < 1 << width:
            raise ValueError(f"{opcode.name}.{name} = {value} does not fit {width} bits")
        word |= value << position
        position += width
    if values:
        raise ValueError(f"{opcode.name} has no field {', '.join(values)}")
    return word


def decode(word):
    """`(opcode, fields)` of a 256-bit word.

    Raises
    ------
    ValueError
        For an opcode that does not exist, or a reserved bit that is set.
    """
    opcode = Opcode(word & 0xFF)
    values, position = {}, 0
    for name, width in _padded(opcode):
        value = word >> position & (1 << width) - 1
        if name.startswith("_"):
            if value:
                raise ValueError(f"{opcode.name}: reserved bits at {position} are set")
        elif name != "opcode":
            values[name] = value
        position += width
    return opcode, values
