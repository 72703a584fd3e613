"""Cycles of instructions, from the latencies of the units: for the datasheet and the compiler's timing model."""

from .activation.function_table import FunctionTable
from .activation.function_unit import product_cycles
from .activation.row_walker import UNDER_WAY
from .activation.softmax_unit import SoftmaxUnit
from .array.transposer import Transposer
from .spec.instruction import Unit
from .spec.isa import INSTRUCTIONS, Format, FunctionCode, Opcode, RingMode

__all__ = ["PASSES", "row_cycles", "pass_cycles", "in_array", "result_cycles", "ring_cycles", "cycle_texts"]

#: Passes whose rows can be in the array, of :class:`hw.matmul.row_issuer.RowIssuer`.
PASSES = 8

#: Vectors of LOAD_TABLE wait for the one before: cycles from there to its place in the table.
_ENTRIES_WAIT = 4
#: The first operand of SELECT and MULTIPLY waits for all vectors before it, and its row is a step longer on the way than others.
_OPERAND_START = 4


def row_cycles(config, opcode, *, table=False, wide=False, window=1, half=False):
    """Cycles for which one more row, vector, window or tile keeps an instruction's unit, with a bus that gives a beat a cycle.

    Not of MATMUL and SOFTMAX, whose rows are not alike.

    Parameters
    ----------
    config : Config
    opcode : Opcode
    table, wide : bool
        Whether the function is TABLE, and the format BINARY32 or PLANES.
    window : int
        Accumulator rows of a window.
    half : bool
        Whether LOAD_BIAS brings one half of its rows.
    """
    if INSTRUCTIONS[opcode].transfer:
        return INSTRUCTIONS[opcode].vectors(config.n, {"half": int(half)}) * config.beats_per_vector
    if opcode is Opcode.SELECT:
        return 2  # its operand and its result, at the vector port
    if opcode is Opcode.MULTIPLY:
        return product_cycles(config.n, config.table_lanes)
    if opcode is Opcode.LOAD_TABLE:
        return config.n // 2 + _ENTRIES_WAIT
    vector = config.n // config.table_lanes if table else 1
    return max(window, vector) + (vector if wide else 0)


def in_array(config):
    """Returns the cycles from a row's issue to its sum in column 0."""
    return 1 + config.lead + config.n * config.latency


def pass_cycles(config, rows, keep):
    """Returns the cycles from a pass of `rows` rows to the next one, where both wait for nothing; a fraction is a mean of
    several passes."""
    return max(rows, 2, (rows - 1 + in_array(config)) / PASSES) if keep else max(rows, config.n)


def result_cycles(config, opcode, fields):
    """Returns `(cycles, vectors)` of an instruction of the activation unit: its cycles without stalls, and its vectors at the
    vector port: results and operands.

    Parameters
    ----------
    fields : dict
        Of the instruction, by name; those that are missing are 0.
    """
    assert INSTRUCTIONS[opcode].unit is Unit.ACTIVATE
    height, table = fields.get("format", Format.BFLOAT16).height, fields.get("function") is FunctionCode.TABLE
    if opcode is Opcode.SELECT:
        cycles = fields["rows0"] * fields["rows1"] * row_cycles(config, opcode)
        return cycles + _OPERAND_START, cycles
    if opcode is Opcode.MULTIPLY:
        cycles = fields["rows"] * row_cycles(config, opcode)
        return cycles + FunctionTable.latency + 1 + _OPERAND_START, 2 * fields["rows"]
    if opcode is Opcode.SOFTMAX:
        rows, tiles = fields["rows"], fields["tiles"]
        values = (tiles - 1) * config.n + fields["lanes"]
        return rows * (2 * values + tiles * config.n + SoftmaxUnit.row_latency), rows * tiles * height
    rows, window = fields.get("rows", 0), 1
    if opcode is Opcode.POOL:
        rows, window = fields["rows0"] * fields["rows1"], fields["window0"] * fields["window1"]
    cycles = rows * row_cycles(config, opcode, table=table, wide=height == 2, window=window)
    return cycles + (FunctionTable.latency + 1 if table else 0), rows * height


def ring_cycles(config, mode, size, segment, rounds, link_latency=0):
    """Cycles of a RING in cores that begin it together and have the vector port to themselves, without those until its first
    vector and behind its last one.

    Parameters
    ----------
    size : int
        Cores of the ring.
    link_latency : int
        Cycles that a vector takes from core to core.
    """
    hop = max(segment, link_latency + config.latency + 1)
    steps = 2 if mode is RingMode.ALL_REDUCE else 1
    return rounds * (2 * segment + steps * (size - 1) * hop)


def cycle_texts(config):
    """Returns, by opcode, how long an instruction keeps its unit, and when its results are there: counted from the last cycle in
    which the row keeps the unit. `b` are the bus beats of a vector."""
    return {
        Opcode.HALT: ("-", "until all before it have ended"),
        Opcode.SYNC: ("-", "until all before it have ended"),
        Opcode.LOAD: (
            "`b` a vector; without `transpose`, it begins when those with it before it have ended",
            f"the memory's latency later; with `transpose` n + {Transposer.latency - 1} more",
        ),
        Opcode.LOAD_BIAS: ("2 `b` a row; `b` with `half`", "the memory's latency later"),
        Opcode.LOAD_WEIGHTS: ("n `b` a tile", "the memory's latency later; a tile then shifts in within n cycles"),
        Opcode.STORE: ("`b` a vector", "with the answer to its last burst; a cycle more between two bursts"),
        Opcode.MATMUL: (
            (
                "R a pass of R rows, but n if it takes a tile and R is less; with `keep`, 2 or (R + `lead` + n `latency`) / "
                f"{PASSES} if R is less: {PASSES} passes are in the array"
            ),
            (
                f"1 + `lead` + n `latency` ({in_array(config)}) cycles after a row was "
                "issued, in column 0; a cycle later in each next one"
            ),
        ),
        Opcode.ACTIVATE: (
            "1 a row, 2 as BINARY32 or PLANES; n / `table_lanes` times that with TABLE",
            f"3 cycles later; {3 + FunctionTable.latency + 1} with TABLE",
        ),
        Opcode.POOL: (
            (
                "1 a row of a window, and 1 more as BINARY32; with TABLE, n / `table_lanes` a window at least, and as "
                "many more as BINARY32"
            ),
            f"4 cycles later; {4 + FunctionTable.latency} + n / `table_lanes` with TABLE",
        ),
        Opcode.SOFTMAX: (
            f"2 N + n t + {SoftmaxUnit.row_latency} for N elements in t tiles, and what [Softmax](#softmax) says",
            f"{SoftmaxUnit.end_latency} cycles later",
        ),
        Opcode.MULTIPLY: (
            (
                f"n / `table_lanes` a row, or {product_cycles(1, 1)} if `table_lanes` is n; n / `table_lanes` + "
                f"{FunctionTable.latency + 5} where its operand is the result of one of the {UNDER_WAY} rows before"
            ),
            f"{4 + FunctionTable.latency + 1} cycles later; behind other instructions of its unit 3 more",
        ),
        Opcode.LOAD_TABLE: (f"n / 2 + {_ENTRIES_WAIT} a vector", "with it"),
        Opcode.RING: ("what [Ring](#ring) says", "with it"),
        Opcode.SELECT: (
            "2 a row; 6 where its operand is the result of the row before",
            "4 cycles later; behind other instructions of its unit 7, behind a SELECT 8",
        ),
    }
