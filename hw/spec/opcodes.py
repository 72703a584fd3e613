"""Every instruction: its opcode, and its record; :mod:`hw.spec.isa` says what a core has of them."""

from amaranth.lib import enum

from .codes import Condition, Format, FunctionCode, Half, Region, RingMode
from .instruction import Field, Instruction, Span, Transfer, Unit

__all__ = ["Opcode", "Task", "INSTRUCTIONS"]


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
    SELECT = 0x35
    RING = 0x40


class Task(enum.Enum, shape=2):
    """What the activation unit does: results of accumulator rows or of windows of them; products; entries of the table."""

    RESULTS = 0
    MULTIPLY = 1
    LOAD_TABLE = 2


def _host(rows, region="Region that `offset` counts from"):
    return (
        Field("region", 8, 2, region, codes=tuple(Region)),
        Field("rows", 16, 16, rows, count=True),
        Field("offset", 32, 32, "Bytes from the region's base to the first byte; a multiple of the bus beat in bytes"),
    )


# The fields that several opcodes share stand at the same place in all of them.
_FUNCTION = Field("function", 8, 4, "What is done to a sum (Function)", codes=tuple(FunctionCode))
_LANES = Field("lanes", 32, 8, "Lanes that keep their value, 1 to n; those above are written as +0")
_RESULT = Field("buffer", 48, 16, "First row of the unified buffer that is written")
_SUM = Field("acc", 64, 16, "First accumulator row that is read")
_LOADED = Field("buffer", 64, 16, "First row of the unified buffer that is written")
_STORED = Field("buffer", 64, 16, "First row of the unified buffer that is read")
_STEP = Field(
    "buffer_step",
    192,
    16,
    "Rows of the unified buffer from one r0's result to the next one's; 0: as many as a result takes",
    needs="training",
)


def _format(*codes):
    meaning = f"How a result is written (Format): {', '.join(code.name for code in codes)}"
    return Field("format", 12, 2, meaning, codes=codes, needs="training", plain=1)


def _rows(meaning, name="rows"):
    return Field(name, 16, 16, meaning, count=True)


INSTRUCTIONS = {
    Opcode.HALT: Instruction(
        unit=Unit.CONTROL, effect="Wait for everything before it, then end the run with DONE and the interrupt."
    ),
    Opcode.SYNC: Instruction(unit=Unit.CONTROL, effect="Wait for everything before it. Never needed for a right result."),
    Opcode.LOAD: Instruction(
        unit=Unit.LOAD,
        effect="Host memory -> unified buffer, `rows` vectors of 2n bytes; with `transpose` lane r of vector v of every n "
        "vectors goes to lane v of vector r of them.",
        fields=(
            *_host("Vectors"),
            _LOADED,
            Field("transpose", 10, 1, "1: every n vectors are transposed, and `rows` is a multiple of n", needs="transpose"),
        ),
        tiled="transpose",
        transfer=Transfer("r", 1),
        spans=(Span("buffer", "w", "buffer", ("rows",)),),
    ),
    Opcode.LOAD_BIAS: Instruction(
        unit=Unit.LOAD,
        effect="Host memory -> bias rows, `rows` rows of n binary32 (4n bytes), or one half of each of them (2n bytes).",
        fields=(
            *_host("Bias rows"),
            Field(
                "half",
                10,
                2,
                "What is there of each binary32, and written (Half); the other half stays",
                codes=tuple(Half),
                needs="training",
            ),
            Field("bias", 64, 16, "First bias row that is written"),
        ),
        transfer=Transfer("r", 2, half="half"),
        spans=(Span("bias", "w", "bias", ("rows",)),),
    ),
    Opcode.LOAD_WEIGHTS: Instruction(
        unit=Unit.WEIGHTS,
        effect="Host memory -> weight FIFO, `rows` tiles of 2n*n bytes, n vectors a tile; vector c holds the weights of "
        "column c, lane r those of row r; with `transpose` vector r those of row r, lane c those of column c.",
        fields=(
            *_host("Tiles"),
            Field("transpose", 10, 1, "1: the vectors of every tile are its rows. 0: they are its columns", needs="training"),
        ),
        transfer=Transfer("r", None),
    ),
    Opcode.STORE: Instruction(
        unit=Unit.STORE,
        effect="Unified buffer -> host memory, `rows` vectors of 2n bytes. Only to regions OUTPUT and SCRATCH.",
        fields=(*_host("Vectors", "Region that `offset` counts from: OUTPUT or SCRATCH"), _STORED),
        transfer=Transfer("w", 1),
        spans=(Span("buffer", "r", "buffer", ("rows",)),),
    ),
    Opcode.MATMUL: Instruction(
        unit=Unit.MATMUL,
        effect="For t1 < tiles1, for t0 < tiles0: one pass. A pass takes the next tile from the weight FIFO, then for "
        "r1 < rows1, for r0 < rows0 multiplies buffer[buffer + t1*tiles1_stride + t0*tiles0_stride + "
        "r1*rows1_stride + r0*rows0_stride] and adds into acc[acc + t1*tiles1_acc_stride + "
        "t0*tiles0_acc_stride + r1*rows0 + r0]. `start` and `keep` hold for every pass.",
        fields=(
            Field(
                "start",
                8,
                1,
                "1: the sums of every pass start from a bias row, those of t1 > 0 too. 0: they go on from what "
                "the accumulators hold",
            ),
            Field(
                "keep",
                9,
                1,
                "1: every pass uses the weights that are in the array; no tile is taken. 0: every pass takes the next tile",
            ),
            Field(
                "bias_rows",
                10,
                1,
                "1: row r = r1*rows0 + r0 of pass (t1, t0) starts from bias[bias + t0 + r]. 0: every row from bias[bias + t0]. "
                "Without `start` it does not matter",
                needs="training",
            ),
            Field("buffer", 16, 16, "Row of the unified buffer of the first vector"),
            Field("rows0", 32, 16, "Vectors in the inner loop of a pass", count=True),
            Field("rows0_stride", 48, 16, "Rows of the unified buffer from one r0 to the next; 0: the same vector again"),
            Field("rows1", 64, 16, "Rounds of the outer loop of a pass", count=True),
            Field("rows1_stride", 80, 16, "Rows of the unified buffer from one r1 to the next; 0: the same vectors again"),
            Field("tiles0", 96, 16, "Passes in the inner loop", count=True),
            Field("tiles0_stride", 112, 16, "Rows of the unified buffer from one t0 to the next; 0: the same operands again"),
            Field("tiles0_acc_stride", 128, 16, "Accumulator rows from one t0 to the next; 0: the same sums again"),
            Field("tiles1", 144, 16, "Rounds of the outer loop of passes", count=True),
            Field("tiles1_stride", 160, 16, "Rows of the unified buffer from one t1 to the next; 0: the same operands again"),
            Field("tiles1_acc_stride", 176, 16, "Accumulator rows from one t1 to the next; 0: the same sums again"),
            Field("acc", 192, 16, "First accumulator row"),
            Field(
                "bias",
                208,
                16,
                "Bias row of t0 = 0: pass (t1, t0) starts from bias[bias + t0], or with `bias_rows` from there on. Neither used "
                "nor checked unless `start`",
            ),
        ),
        spans=(
            Span(
                "buffer",
                "r",
                "buffer",
                loops=(
                    ("rows0", "rows0_stride"),
                    ("rows1", "rows1_stride"),
                    ("tiles0", "tiles0_stride"),
                    ("tiles1", "tiles1_stride"),
                ),
            ),
            Span("acc", "w", "acc", ("rows0", "rows1"), (("tiles0", "tiles0_acc_stride"), ("tiles1", "tiles1_acc_stride"))),
            Span("bias", "r", "bias", ("tiles0",), slide=("bias_rows", ("rows0", "rows1")), only_if="start"),
        ),
    ),
    Opcode.ACTIVATE: Instruction(
        unit=Unit.ACTIVATE,
        effect="acc[acc + r] -> function -> round -> buffer[buffer + r] (two vectors a row for BINARY32: "
        "buffer + 2r, buffer + 2r + 1), r < rows. As PLANES nothing is rounded: upper halves of binary32 -> buffer[buffer + r], "
        "lower halves -> buffer[buffer + rows + r]; not with TABLE.",
        fields=(
            _FUNCTION,
            _format(Format.BFLOAT16, Format.BINARY32, Format.PLANES),
            _rows("Accumulator rows"),
            _LANES,
            _RESULT,
            _SUM,
        ),
        excluded=((("function", FunctionCode.TABLE), ("format", Format.PLANES)),),
        spans=(Span("buffer", "w", "buffer", ("rows",), tall=True), Span("acc", "r", "acc", ("rows",))),
    ),
    Opcode.POOL: Instruction(
        unit=Unit.ACTIVATE,
        needs="pooling",
        effect="For r1 < rows1, for r0 < rows0: the maximum over w1 < window1, w0 < window0 of acc[acc + r1*rows1_stride + "
        "r0*rows0_stride + w1*window1_stride + w0*window0_stride] -> function -> round -> "
        "buffer[buffer + r1*buffer_stride + r0*buffer_step] (two vectors for BINARY32: there, and in the next). As INDEX, what "
        "is written is the 16-bit number w1*window0 + w0 of the first row of the window that has the maximum, and 255 where RELU "
        "gives +0; not with TABLE.",
        fields=(
            _FUNCTION,
            _format(Format.BFLOAT16, Format.BINARY32, Format.INDEX),
            _rows("Windows of an outer row", "rows0"),
            _LANES,
            _RESULT,
            _SUM,
            Field("rows0_stride", 80, 16, "Accumulator rows from one r0's window to the next one's"),
            Field("rows1", 96, 16, "Outer rows of windows", count=True),
            Field("rows1_stride", 112, 16, "Accumulator rows from one r1's windows to the next one's"),
            Field("buffer_stride", 128, 16, "Rows of the unified buffer from one r1's results to the next one's"),
            Field("window0", 144, 8, "Accumulator rows in a row of a window", count=True),
            Field("window0_stride", 152, 16, "Accumulator rows from one w0 to the next"),
            Field("window1", 168, 8, "Rows of a window", count=True),
            Field("window1_stride", 176, 16, "Accumulator rows from one w1 to the next"),
            _STEP,
        ),
        excluded=((("function", FunctionCode.TABLE), ("format", Format.INDEX)),),
        spans=(
            Span("buffer", "w", "buffer", ("rows0",), (("rows1", "buffer_stride"),), tall=True, step="buffer_step"),
            Span("acc", "r", "acc", loops=tuple((name, f"{name}_stride") for name in ("rows0", "rows1", "window0", "window1"))),
        ),
    ),
    Opcode.SOFTMAX: Instruction(
        unit=Unit.ACTIVATE,
        needs="softmax",
        effect="For r < rows: softmax over the values of acc[acc + t*acc_stride + r], t < tiles, of which the last has "
        "`lanes` and the others n -> buffer[buffer + t*buffer_stride + r] (two vectors for BINARY32: buffer + "
        "t*buffer_stride + 2*r, and the next), in both formats rounded to bfloat16.",
        fields=(
            _format(Format.BFLOAT16, Format.BINARY32),
            _rows("Rows of values"),
            Field(
                "lanes",
                32,
                8,
                "Lanes of the last tile that hold values, 1 to n; those above count for nothing and are written as +0",
            ),
            _RESULT,
            _SUM,
            Field("tiles", 80, 16, "Accumulator rows that one row of values takes", count=True),
            Field("acc_stride", 96, 16, "Accumulator rows from one tile to the next"),
            Field("buffer_stride", 112, 16, "Rows of the unified buffer from one tile's results to the next one's"),
        ),
        spans=(
            Span("buffer", "w", "buffer", ("rows",), (("tiles", "buffer_stride"),), tall=True),
            Span("acc", "r", "acc", ("rows",), (("tiles", "acc_stride"),)),
        ),
    ),
    Opcode.MULTIPLY: Instruction(
        unit=Unit.ACTIVATE,
        task=Task.MULTIPLY,
        needs="table_lanes",
        effect="round(acc[acc + r]) * buffer[operand + r] -> round -> buffer[buffer + r], all bfloat16, for r < rows, one "
        "row after the other.",
        fields=(
            _rows("Vectors"),
            _LANES,
            _RESULT,
            _SUM,
            Field("operand", 80, 16, "First row of the unified buffer of the other factors"),
        ),
        spans=(
            Span("buffer", "w", "buffer", ("rows",)),
            Span("buffer", "r", "operand", ("rows",)),
            Span("acc", "r", "acc", ("rows",)),
        ),
    ),
    Opcode.LOAD_TABLE: Instruction(
        unit=Unit.ACTIVATE,
        task=Task.LOAD_TABLE,
        needs="table_lanes",
        effect="Unified buffer -> function table: rows*n words from `word` on, in the order of the lanes of "
        "buffer[buffer + r], r < rows; and sets `first`, `linear_low` and `linear_high`.",
        fields=(
            Field(
                "linear_low",
                8,
                2,
                "Below the table's binades the function goes on in proportion (1), or keeps its value (0): "
                "of positive numbers (low bit), of negative ones (high bit)",
            ),
            Field("linear_high", 10, 2, "The same, above the table's binades"),
            _rows("Vectors, of n words each"),
            Field("first", 32, 8, "Biased exponent of the table's first binade"),
            Field("buffer", 48, 16, "First row of the unified buffer that is read"),
            Field(
                "word",
                64,
                16,
                "First word of the function table that is written, where each value comes before its slope; a multiple of n",
            ),
        ),
        spans=(Span("buffer", "r", "buffer", ("rows",)), Span("table", "w", "word", ("rows",))),
    ),
    Opcode.SELECT: Instruction(
        unit=Unit.ACTIVATE,
        needs="training",
        effect="For r1 < rows1, for r0 < rows0: round(acc[acc + r1*rows1_stride + r0*rows0_stride]) where `condition` holds for "
        "buffer[operand + r1*operand_stride + r0], +0 in the other lanes -> buffer[buffer + r1*buffer_stride + "
        "r0*buffer_step], one row after the other. POSITIVE holds for bfloat16 above 0, infinity too, but neither for NaN nor "
        "for subnormals, which count as 0.",
        fields=(
            Field("condition", 8, 1, "In which lanes a sum is kept (Condition)", codes=tuple(Condition)),
            _rows("Rounds of the inner loop", "rows0"),
            Field("number", 32, 8, "What the low byte of an operand is compared with by EQUAL"),
            _RESULT,
            _SUM,
            Field("rows0_stride", 80, 16, "Accumulator rows from one r0 to the next"),
            Field("rows1", 96, 16, "Rounds of the outer loop", count=True),
            Field("rows1_stride", 112, 16, "Accumulator rows from one r1 to the next"),
            Field("buffer_stride", 128, 16, "Rows of the unified buffer from one r1's results to the next one's"),
            Field("operand", 144, 16, "First row of the unified buffer of the operands"),
            Field("operand_stride", 160, 16, "Rows of the unified buffer from one r1's operands to the next one's"),
            _STEP,
        ),
        spans=(
            Span("buffer", "w", "buffer", ("rows0",), (("rows1", "buffer_stride"),), step="buffer_step"),
            Span("buffer", "r", "operand", ("rows0",), (("rows1", "operand_stride"),)),
            Span("acc", "r", "acc", loops=(("rows0", "rows0_stride"), ("rows1", "rows1_stride"))),
        ),
    ),
    Opcode.RING: Instruction(
        unit=Unit.RING,
        needs="ring",
        effect="With P cores of the ring, of which this one is number i: segment s < P of round j < rounds are `segment` vectors "
        "from buffer + s*stride + j*segment on. ALL_REDUCE: the sum over all cores of every segment s, as binary32 "
        "((g_s + g_s+1) + ...) + g_s-1 with the cores' numbers mod P, -> result + s*stride + j*segment. REDUCE_SCATTER: that of "
        "segment (i + 1) mod P -> result + j*segment. ALL_GATHER: the vectors of core i from buffer + j*segment on, as they are "
        "-> result + s*stride + j*segment with s = (i + 1) mod P, in every core. With P = 1 all of them copy. All cores "
        "execute their RINGs in the same order. A result may lie where its operand lies, row by row; what is read where they "
        "overlap otherwise is not defined.",
        fields=(
            Field("mode", 8, 2, "What is done with the segments (RingMode)", codes=tuple(RingMode)),
            Field("buffer", 16, 16, "First row of the unified buffer that is read"),
            Field("result", 32, 16, "First row of the unified buffer that is written"),
            Field("segment", 48, 16, "Vectors of a segment in a round", count=True, most="ring_depth"),
            Field("stride", 64, 16, "Rows of the unified buffer from one segment to the next one"),
            Field("rounds", 80, 16, "Rounds", count=True),
        ),
        spans=(
            Span(
                "buffer",
                "r",
                "buffer",
                ("segment",),
                (("rounds", "segment"),),
                around=("stride", (RingMode.ALL_REDUCE, RingMode.REDUCE_SCATTER)),
            ),
            Span(
                "buffer",
                "w",
                "result",
                ("segment",),
                (("rounds", "segment"),),
                around=("stride", (RingMode.ALL_REDUCE, RingMode.ALL_GATHER)),
            ),
        ),
    ),
}
