"""All instructions: opcodes and records. :mod:`hw.spec.isa` selects the instructions of a core."""

from amaranth.lib import enum

from .codes import Condition, Format, FunctionCode, Half, Region, RingMode, UpdatePart, WeightFormat
from .instruction import Field, Instruction, Span, Transfer, Unit

__all__ = ["Opcode", "Task", "INSTRUCTIONS"]


class Opcode(enum.Enum, shape=8):
    """The opcodes. 0x00 and 0xFF are illegal, so empty memory stops the core."""

    __hash__ = object.__hash__  # the hash of Python's enumerations takes a fortieth of the time to compile a program

    HALT = 0x01
    SYNC = 0x02
    LOAD = 0x10
    LOAD_BIAS = 0x11
    LOAD_WEIGHTS = 0x12
    STORE = 0x13
    STORE_UPDATE = 0x14
    MATMUL = 0x20
    ACTIVATE = 0x30
    POOL = 0x31
    SOFTMAX = 0x32
    MULTIPLY = 0x33
    LOAD_TABLE = 0x34
    SELECT = 0x35
    UPDATE = 0x36
    NORMALIZE = 0x37
    RING = 0x40


class Task(enum.Enum, shape=2):
    """The tasks of the activation unit: results of accumulator rows or of windows, products, entries of the function table."""

    RESULTS = 0
    MULTIPLY = 1
    LOAD_TABLE = 2


def _host(rows, region="Region of `offset`"):
    return (
        Field("region", 8, 2, region, codes=tuple(Region)),
        Field("rows", 16, 16, rows, count=True),
        Field("offset", 32, 32, "Offset of the first byte from the region's base, in bytes; a multiple of the bus beat"),
    )


# Fields that several opcodes share have the same position in all of them.
_FUNCTION = Field("function", 8, 4, "Activation function (Function)", codes=tuple(FunctionCode))
_LANES = Field("lanes", 32, 8, "Lanes with results, 1 to n; higher lanes become +0")
_RESULT = Field("buffer", 48, 16, "First result row in the unified buffer")
_SUM = Field("acc", 64, 16, "First accumulator row")
_LOADED = Field("buffer", 64, 16, "First destination row in the unified buffer")
_STORED = Field("buffer", 64, 16, "First source row in the unified buffer")
_STEP = Field("buffer_step", 192, 16, "Stride of r0 in the unified buffer, in rows; 0: the rows of one result", needs="training")


def _format(*codes):
    meaning = f"Format of a result (Format): {', '.join(code.name for code in codes)}"
    return Field("format", 12, 2, meaning, codes=codes, needs="training", plain=1)


def _rows(meaning, name="rows"):
    return Field(name, 16, 16, meaning, count=True)


# SOFTMAX and NORMALIZE, which work on rows of values.
_VALUES = (
    _format(Format.BFLOAT16, Format.BINARY32),
    _rows("Rows of values"),
    Field("lanes", 32, 8, "Lanes with values in the last tile, 1 to n; higher lanes are ignored and become +0"),
    _RESULT,
    _SUM,
    Field("tiles", 80, 16, "Accumulator rows of one row of values", count=True),
    Field("acc_stride", 96, 16, "Stride of t in the accumulators, in rows"),
    Field("buffer_stride", 112, 16, "Stride of t in the unified buffer, in rows"),
)
_VALUE_SPANS = (
    Span("buffer", "w", "buffer", ("rows",), (("tiles", "buffer_stride"),), tall=True),
    Span("acc", "r", "acc", ("rows",), (("tiles", "acc_stride"),)),
)


INSTRUCTIONS = {
    Opcode.HALT: Instruction(
        unit=Unit.CONTROL, effect="Wait until all earlier instructions have ended, then end the run with DONE and the interrupt."
    ),
    Opcode.SYNC: Instruction(
        unit=Unit.CONTROL,
        effect="Wait until all earlier instructions have ended. Hazards are interlocked, so results never need it.",
    ),
    Opcode.LOAD: Instruction(
        unit=Unit.LOAD,
        effect="Host memory -> unified buffer, `rows` vectors of 2n bytes; with `transpose`, each group of n vectors "
        "is transposed: lane r of vector v moves to lane v of vector r.",
        fields=(
            *_host("Vectors"),
            _LOADED,
            Field("transpose", 10, 1, "1: transpose each group of n vectors; `rows` must be a multiple of n", needs="transpose"),
        ),
        tiled="transpose",
        transfer=Transfer("r", 1),
        spans=(Span("buffer", "w", "buffer", ("rows",)),),
    ),
    Opcode.LOAD_BIAS: Instruction(
        unit=Unit.LOAD,
        effect="Host memory -> bias rows, `rows` rows of n binary32 (4n bytes), or of one half of each binary32 (2n bytes).",
        fields=(
            *_host("Bias rows"),
            Field(
                "half",
                10,
                2,
                "Half of each binary32 that is loaded (Half); the other half keeps its value",
                codes=tuple(Half),
                needs="training",
            ),
            Field("bias", 64, 16, "First destination bias row"),
        ),
        transfer=Transfer("r", 2, half="half"),
        spans=(Span("bias", "w", "bias", ("rows",)),),
    ),
    Opcode.LOAD_WEIGHTS: Instruction(
        unit=Unit.WEIGHTS,
        effect="Host memory -> weight FIFO, `rows` tiles of 2n*n bytes, n vectors a tile; lane r of vector c holds the "
        "weight of row r and column c; with `transpose`, lane c of vector r. See [Weight formats](#weight-formats) for others "
        "than BFLOAT16.",
        fields=(
            *_host("Tiles"),
            Field(
                "transpose",
                10,
                1,
                "1: the vectors of a tile are its rows. 0: its columns. Ignored for other formats than BFLOAT16",
                needs="attention",
            ),
            Field(
                "weight_format", 11, 3, "Format of the weights (WeightFormat)", codes=tuple(WeightFormat), needs="weight_formats"
            ),
        ),
        transfer=Transfer("r", None, coded="weight_format"),
    ),
    Opcode.STORE: Instruction(
        unit=Unit.STORE,
        effect="Unified buffer -> host memory, `rows` vectors of 2n bytes. Only to regions OUTPUT and SCRATCH.",
        fields=(*_host("Vectors", "Region of `offset`: OUTPUT or SCRATCH"), _STORED),
        transfer=Transfer("w", 1),
        spans=(Span("buffer", "r", "buffer", ("rows",)),),
    ),
    Opcode.STORE_UPDATE: Instruction(
        unit=Unit.STORE,
        needs="update_lanes",
        effect="Update memory -> host memory, one part of `rows` rows: vectors of 2n bytes. Only to regions OUTPUT and SCRATCH.",
        fields=(
            *_host("Vectors", "Region of `offset`: OUTPUT or SCRATCH"),
            Field(
                "part",
                10,
                2,
                "Part of each row that is stored (UpdatePart): V', or the upper or the lower half of W'",
                codes=tuple(UpdatePart),
            ),
            Field("update", 64, 16, "First source row in the update memory"),
        ),
        transfer=Transfer("w", 1),
        spans=(Span("update", "r", "update", ("rows",)),),
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
                "1: the sums of each pass start from a bias row, also with t1 > 0. 0: from the sums in the accumulators",
            ),
            Field("keep", 9, 1, "1: all passes use the weights in the array and take no tile. 0: each pass takes the next tile"),
            Field(
                "bias_rows",
                10,
                1,
                "1: row r = r1*rows0 + r0 of pass (t1, t0) starts from bias[bias + t0 + r]. 0: all rows start from "
                "bias[bias + t0]. Ignored without `start`",
                needs="attention",
            ),
            Field("buffer", 16, 16, "First operand row in the unified buffer"),
            Field("rows0", 32, 16, "Vectors in the inner loop of a pass", count=True),
            Field("rows0_stride", 48, 16, "Stride of r0 in the unified buffer, in rows; 0: the same vector again"),
            Field("rows1", 64, 16, "Iterations of the outer loop of a pass", count=True),
            Field("rows1_stride", 80, 16, "Stride of r1 in the unified buffer, in rows; 0: the same vectors again"),
            Field("tiles0", 96, 16, "Passes in the inner loop over passes", count=True),
            Field("tiles0_stride", 112, 16, "Stride of t0 in the unified buffer, in rows; 0: the same operands again"),
            Field("tiles0_acc_stride", 128, 16, "Stride of t0 in the accumulators, in rows; 0: the same sums again"),
            Field("tiles1", 144, 16, "Iterations of the outer loop over passes", count=True),
            Field("tiles1_stride", 160, 16, "Stride of t1 in the unified buffer, in rows; 0: the same operands again"),
            Field("tiles1_acc_stride", 176, 16, "Stride of t1 in the accumulators, in rows; 0: the same sums again"),
            Field("acc", 192, 16, "First accumulator row"),
            Field(
                "bias",
                208,
                16,
                "Bias row of t0 = 0: pass (t1, t0) starts from bias[bias + t0]; with `bias_rows` this is its first bias row. "
                "Ignored and not checked without `start`",
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
        "buffer + 2r, buffer + 2r + 1), r < rows. PLANES does not round: upper halves of binary32 -> buffer[buffer + r], "
        "lower halves -> buffer[buffer + rows + r]; PLANES with TABLE is illegal.",
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
        "buffer[buffer + r1*buffer_stride + r0*buffer_step] (two vectors for BINARY32: this row and the next one). INDEX writes "
        "the 16-bit index w1*window0 + w0 of the first row of the window with the maximum, or 255 if RELU gives +0; INDEX with "
        "TABLE is illegal.",
        fields=(
            _FUNCTION,
            _format(Format.BFLOAT16, Format.BINARY32, Format.INDEX),
            _rows("Windows in the inner loop", "rows0"),
            _LANES,
            _RESULT,
            _SUM,
            Field("rows0_stride", 80, 16, "Stride of r0 in the accumulators, in rows"),
            Field("rows1", 96, 16, "Iterations of the outer loop over windows", count=True),
            Field("rows1_stride", 112, 16, "Stride of r1 in the accumulators, in rows"),
            Field("buffer_stride", 128, 16, "Stride of r1 in the results, in rows"),
            Field("window0", 144, 8, "Accumulator rows in one row of a window", count=True),
            Field("window0_stride", 152, 16, "Stride of w0 in the accumulators, in rows"),
            Field("window1", 168, 8, "Rows of a window", count=True),
            Field("window1_stride", 176, 16, "Stride of w1 in the accumulators, in rows"),
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
        effect="For r < rows: softmax over the values of acc[acc + t*acc_stride + r], t < tiles; the last tile has "
        "`lanes` values and the others n -> buffer[buffer + t*buffer_stride + r] (two vectors for BINARY32: buffer + "
        "t*buffer_stride + 2*r and the next one). Both formats hold values rounded to bfloat16.",
        fields=_VALUES,
        spans=_VALUE_SPANS,
    ),
    Opcode.NORMALIZE: Instruction(
        unit=Unit.ACTIVATE,
        needs="normalize",
        effect="For r < rows, over the values x of a row as in SOFTMAX: (x - mean) * `factor` / sqrt(sum of (x - mean)^2 + "
        "`epsilon`), without the mean unless `centred` -> unified buffer, as in SOFTMAX. LayerNorm of N values has the factor "
        "sqrt(N), and N times its epsilon. With `root`, each result is `factor` / sqrt(sum + `epsilon`).",
        fields=(
            Field("centred", 8, 1, "1: subtract the mean of the row"),
            Field("root", 9, 1, "1: the results are the factors of the differences"),
            *_VALUES,
            Field("factor", 128, 24, "Bits 7 to 30 of a positive normal binary32 number"),
            Field("epsilon", 160, 24, "Bits 7 to 30 of a positive binary32 number; 0 if its exponent field is 0"),
        ),
        spans=_VALUE_SPANS,
    ),
    Opcode.MULTIPLY: Instruction(
        unit=Unit.ACTIVATE,
        task=Task.MULTIPLY,
        needs="table_lanes",
        effect="round(acc[acc + r]) * buffer[operand + r] -> round -> buffer[buffer + r], all bfloat16, for r < rows "
        "in sequence: an operand may be an earlier result.",
        fields=(
            _rows("Vectors"),
            _LANES,
            _RESULT,
            _SUM,
            Field("operand", 80, 16, "First row of the other factors in the unified buffer"),
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
        "buffer[buffer + r], r < rows; and sets the settings of the function: all other fields.",
        fields=(
            Field(
                "linear_low",
                8,
                2,
                "Extrapolation below the function's binades: by `scale` (1) or constant (0), for positive (low bit) and negative "
                "numbers (high bit)",
            ),
            Field("linear_high", 10, 2, "Extrapolation above the function's binades, as `linear_low`"),
            Field("scale", 14, 2, "Power of x by which the function continues: x (0), root (1), 1/x (2) or 1/root (3)"),
            _rows("Vectors, of n words each"),
            Field("first", 32, 8, "Biased exponent of the function's first binade"),
            Field("base", 40, 4, "First binade of the table, of 16 for each sign, that the function uses"),
            Field("spare", 44, 4, "16 minus the number of binades that the function uses"),
            Field("buffer", 48, 16, "First source row in the unified buffer"),
            Field(
                "word",
                64,
                16,
                "First destination word in the function table; a multiple of n. An entry is a value, then its slope",
            ),
        ),
        spans=(Span("buffer", "r", "buffer", ("rows",)), Span("table", "w", "word", ("rows",))),
    ),
    Opcode.SELECT: Instruction(
        unit=Unit.ACTIVATE,
        needs="training",
        effect="For r1 < rows1, for r0 < rows0: round(acc[acc + r1*rows1_stride + r0*rows0_stride]) where `condition` holds for "
        "buffer[operand + r1*operand_stride + r0], +0 in the other lanes -> buffer[buffer + r1*buffer_stride + "
        "r0*buffer_step], in sequence: an operand may be an earlier result. POSITIVE holds for bfloat16 above 0 including "
        "infinity, but not for NaN or for subnormals, which count as 0.",
        fields=(
            Field("condition", 8, 1, "Condition of a lane to keep its sum (Condition)", codes=tuple(Condition)),
            _rows("Iterations of the inner loop", "rows0"),
            Field("number", 32, 8, "Number that EQUAL compares with the low byte of an operand"),
            _RESULT,
            _SUM,
            Field("rows0_stride", 80, 16, "Stride of r0 in the accumulators, in rows"),
            Field("rows1", 96, 16, "Iterations of the outer loop", count=True),
            Field("rows1_stride", 112, 16, "Stride of r1 in the accumulators, in rows"),
            Field("buffer_stride", 128, 16, "Stride of r1 in the results, in rows"),
            Field("operand", 144, 16, "First operand row in the unified buffer"),
            Field("operand_stride", 160, 16, "Stride of r1 in the operands, in rows"),
            _STEP,
        ),
        spans=(
            Span("buffer", "w", "buffer", ("rows0",), (("rows1", "buffer_stride"),), step="buffer_step"),
            Span("buffer", "r", "operand", ("rows0",), (("rows1", "operand_stride"),)),
            Span("acc", "r", "acc", loops=(("rows0", "rows0_stride"), ("rows1", "rows1_stride"))),
        ),
    ),
    Opcode.UPDATE: Instruction(
        unit=Unit.ACTIVATE,
        needs="update_lanes",
        effect="Stochastic gradient descent with momentum, for r < rows, with the products and sums of the cells. G is "
        "acc[acc + r], W is bias[bias + r], V is the upper halves of bias[bias + rows + r]. V' = round(G + momentum * V), in "
        "bfloat16, and W' = W + rate * V', in binary32 -> update[update + r].",
        fields=(
            _rows("Rows of a parameter"),
            Field("update", 48, 16, "First result row in the update memory"),
            _SUM,
            Field("momentum", 80, 16, "Factor of V, bfloat16"),
            Field("rate", 96, 16, "Factor of V', bfloat16; negative for descent"),
            Field("bias", 208, 16, "First bias row of W; the rows of V follow"),
        ),
        spans=(
            Span("update", "w", "update", ("rows",)),
            Span("acc", "r", "acc", ("rows",)),
            Span("bias", "r", "bias", ("rows",), times=2),
        ),
    ),
    Opcode.RING: Instruction(
        unit=Unit.RING,
        needs="ring",
        effect="In a ring of P cores, this core has rank i. Segment s < P of round j < rounds is the `segment` vectors from "
        "buffer + s*stride + j*segment. ALL_REDUCE: the sum of each segment s over all cores, in binary32 as "
        "((g_s + g_s+1) + ...) + g_s-1 with ranks mod P, -> result + s*stride + j*segment. REDUCE_SCATTER: the sum of "
        "segment (i + 1) mod P -> result + j*segment. ALL_GATHER: the vectors of core i from buffer + j*segment, unchanged "
        "-> result + s*stride + j*segment with s = (i + 1) mod P, in all cores. With P = 1 each mode copies. All cores must "
        "execute their RINGs in the same order. A result may overwrite its own operand, row by row; with any other overlap the "
        "operands are undefined.",
        fields=(
            Field("mode", 8, 2, "Collective operation (RingMode)", codes=tuple(RingMode)),
            Field("buffer", 16, 16, "First source row in the unified buffer"),
            Field("result", 32, 16, "First result row in the unified buffer"),
            Field("segment", 48, 16, "Vectors of a segment in a round", count=True, most="ring_depth"),
            Field("stride", 64, 16, "Stride of s in the unified buffer, in rows"),
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
