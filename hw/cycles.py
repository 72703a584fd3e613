"""Cycles of instructions, derived from the latencies of the units, for the datasheet and the timing model."""

from amaranth.utils import exact_log2

from .activation.function_table import FunctionTable
from .activation.function_unit import entry_cycles, product_cycles, table_latency
from .activation.row_walker import UNDER_WAY
from .activation.softmax_unit import SoftmaxUnit
from .activation.update_unit import update_cycles, update_times
from .array.transposer import Transposer
from .softmax.lanes_unit import SoftmaxLanesUnit
from .spec.instruction import Unit
from .spec.isa import INSTRUCTIONS, Format, FunctionCode, Opcode, RingMode

__all__ = [
    "PASSES",
    "row_cycles",
    "pass_cycles",
    "in_array",
    "results_register",
    "update_latency",
    "result_cycles",
    "ring_cycles",
    "cycle_texts",
]

#: Passes whose rows can be in the array, of :class:`hw.matmul.row_issuer.RowIssuer`.
PASSES = 8

#: The first operand of SELECT, MULTIPLY and LOAD_TABLE waits for all earlier vectors, and its row takes one step more than other
#: rows.
_OPERAND_START = 4
#: Cycles for which a row of MULTIPLY waits if its operand may be the result of a row under way.
_OPERAND_WAIT = FunctionTable.latency + 5
#: Cycles from the last vector of SOFTMAX to its end, which are not counted for other instructions either.
_SOFTMAX_END = 2
#: At most two rows of SOFTMAX are between the search and the sum. Cycles for which a row is there, beyond its groups and the
#: stages of the tree.
_SEARCH_WAIT = 9


def row_cycles(config, opcode, *, table=False, wide=False, window=1, half=False):
    """Returns the number of cycles for which one more row, vector, window or tile occupies an instruction's unit.

    The bus is assumed to transfer one beat per cycle. MATMUL and SOFTMAX are not supported, as the cycles of their rows differ.

    Parameters
    ----------
    config : Config
    opcode : Opcode
    table, wide : bool
        `table` is True if the function is TABLE, `wide` if the format is BINARY32 or PLANES.
    window : int
        Accumulator rows of a window.
    half : bool
        True if LOAD_BIAS loads only one half of each row.
    """
    if INSTRUCTIONS[opcode].transfer:
        return INSTRUCTIONS[opcode].vectors(config.n, {"half": int(half)}) * config.beats_per_vector
    if opcode is Opcode.SELECT:
        return 2  # its operand and its result, at the vector port
    if opcode is Opcode.MULTIPLY:
        return product_cycles(config.n, config.table_lanes)
    if opcode is Opcode.LOAD_TABLE:
        return entry_cycles(config.n)
    if opcode is Opcode.UPDATE:
        return update_cycles(config.n, config.update_lanes)
    vector = config.n // config.table_lanes if table else 1
    return max(window, vector) + (vector if wide else 0)


def in_array(config):
    """Returns the number of cycles from the issue of a row until its sum in column 0 leaves the array."""
    return 1 + config.array_lead + config.n * config.latency


def pass_cycles(config, rows, keep):
    """Returns the number of cycles from the start of a pass of `rows` rows to the start of the next pass, without stalls. It may
    be a fraction: a mean over several passes. `keep` is True if the pass keeps the array's weights. If it is False, the pass
    takes at least the cycles in which the next tile of weights shifts in."""
    return max(rows, 2 if keep else config.tile_cycles, (rows - 1 + in_array(config)) / PASSES)


def results_register(config):
    """Returns the number of cycles by which results come later than in a core with windows or operands: 1 for a register next to
    the accumulators, else 0."""
    return int(not (config.pooling or config.table_lanes or config.training))


def update_latency(config):
    """Returns the number of cycles from the last group of lanes of UPDATE to the write of its results, beyond those from the last
    row of ACTIVATE."""
    return update_times(config.n, config.update_lanes, config.lead, config.latency).result + 1


def result_cycles(config, opcode, fields):
    """Returns `(cycles, vectors)` of an instruction of the activation unit.

    `cycles` is the time without stalls. `vectors` is the number of vectors, both operands and results, that pass the vector port.

    Parameters
    ----------
    fields : dict
        Fields of the instruction, by name. Missing fields are 0.
    """
    assert INSTRUCTIONS[opcode].unit is Unit.ACTIVATE
    height, table = fields.get("format", Format.BFLOAT16).height, fields.get("function") is FunctionCode.TABLE
    if opcode is Opcode.SELECT:
        cycles = fields["rows0"] * fields["rows1"] * row_cycles(config, opcode)
        return cycles + _OPERAND_START, cycles
    if opcode is Opcode.MULTIPLY:
        cycles = fields["rows"] * row_cycles(config, opcode)
        if 0 < fields.get("buffer", 0) - fields.get("operand", 0) <= UNDER_WAY:
            cycles += (fields["rows"] - 1) * _OPERAND_WAIT
        return cycles + table_latency(config.n, config.table_lanes) + 1 + _OPERAND_START, 2 * fields["rows"]
    if opcode is Opcode.LOAD_TABLE:
        return fields["rows"] * row_cycles(config, opcode) + _OPERAND_START, fields["rows"]
    if opcode is Opcode.UPDATE:
        return fields["rows"] * row_cycles(config, opcode), 0
    if opcode in (Opcode.SOFTMAX, Opcode.NORMALIZE):
        rows, tiles = fields["rows"], fields["tiles"]
        of_rows = _softmax_cycles if opcode is Opcode.SOFTMAX else _normalize_cycles
        return of_rows(config, rows, tiles, fields["lanes"], height), rows * tiles * height
    rows, window = fields.get("rows", 0), 1
    if opcode is Opcode.POOL:
        rows, window = fields["rows0"] * fields["rows1"], fields["window0"] * fields["window1"]
    cycles = rows * row_cycles(config, opcode, table=table, wide=height == 2, window=window)
    return cycles + (table_latency(config.n, config.table_lanes) + 1 if table else 0), rows * height


def _softmax_cycles(config, rows, tiles, last_lanes, height):
    """Returns the cycles of SOFTMAX for maxima below 8,192, and for sums that are as large as possible."""
    lanes, elements = config.softmax_lanes, (tiles - 1) * config.n + last_lanes
    bits = (elements - 1).bit_length()
    if lanes == 1:
        row = 2 * elements + tiles * config.n + SoftmaxUnit.row_latency + bits
        return rows * row + SoftmaxUnit.end_latency - _SOFTMAX_END
    groups, results = -(-elements // lanes), tiles * config.n // lanes * height
    stages = exact_log2(lanes)  # of the trees; also the number of dividers
    one = 2 * groups + results + 2 * stages + bits + SoftmaxLanesUnit.latency - _SOFTMAX_END
    if tiles * config.n > SoftmaxLanesUnit.kept * lanes:
        return one + (rows - 1) * max(3 * groups, results)
    # Two rows at most are between search and sum, and one in each divider.
    passes, later = max(groups, results), rows - 1
    waits = ((1, passes), (2, groups + stages + _SEARCH_WAIT), (stages, 16 + bits + SoftmaxLanesUnit.division))
    return one + max(later // places * cycles + later % places * passes for places, cycles in waits)


def _normalize_cycles(config, rows, tiles, last_lanes, height):
    """Returns the cycles of NORMALIZE."""
    lanes, later = config.softmax_lanes, rows - 1
    groups, results = -(-((tiles - 1) * config.n + last_lanes) // lanes), tiles * config.n // lanes * height
    stages = exact_log2(lanes)
    one = 3 * (groups + stages) + results + SoftmaxLanesUnit.normalize_latency - _SOFTMAX_END
    if tiles * config.n > SoftmaxLanesUnit.kept * lanes:
        return one + later * max(4 * groups, results)
    row = max(groups, results, (groups + stages + _SEARCH_WAIT) / 2)
    return one + round(max(later * row, later // stages * SoftmaxLanesUnit.mean_division + later % stages * row))


def ring_cycles(config, mode, size, segment, rounds, link_latency=0):
    """Returns the cycles of a RING, if all cores start it at the same time and nothing else uses the vector port.

    The cycles before the first vector and after the last vector are excluded.

    Parameters
    ----------
    size : int
        Number of cores in the ring.
    link_latency : int
        Latency of a link between two cores, in cycles.
    """
    hop = max(segment, link_latency + config.latency + 1)
    steps = 2 if mode is RingMode.ALL_REDUCE else 1
    return rounds * (2 * segment + steps * (size - 1) * hop)


def cycle_texts(config):
    """Returns two texts per opcode: the cycles for which an instruction occupies its unit, and the time at which its results are
    available.

    The time of results is counted from the last cycle in which the row occupies the unit. `b` is the number of bus beats of a
    vector. An instruction without an entry here works on results as ACTIVATE does, one row a cycle.
    """
    one_group = ", 1 more if `table_lanes` is n"
    return dict.fromkeys(Opcode, ("1 a row", "4 cycles later")) | {
        Opcode.HALT: ("-", "when all earlier instructions have ended"),
        Opcode.SYNC: ("-", "when all earlier instructions have ended"),
        Opcode.LOAD: (
            "`b` a vector; without `transpose`, it starts when all earlier LOADs with `transpose` have ended",
            f"the memory's latency later; with `transpose` n + {Transposer.latency - 1} more",
        ),
        Opcode.LOAD_BIAS: ("2 `b` a row; `b` with `half`", "the memory's latency later"),
        Opcode.LOAD_WEIGHTS: (
            "n `b` a tile",
            "the memory's latency later; a tile then shifts in within n / `weight_rows` cycles",
        ),
        Opcode.STORE: ("`b` a vector", "with the response to its last burst; 1 cycle more between two bursts"),
        Opcode.MATMUL: (
            (
                "R a pass of R rows, at least n if it takes a tile; with `keep`, at least 2 and (R + 1 + `lead` + n `latency`) / "
                f"{PASSES}, as at most {PASSES} passes are in the array"
            ),
            (
                f"2 + `lead` + n `latency` ({in_array(config)}) cycles after the issue of a row "
                "in column 0; one cycle later in each further column"
            ),
        ),
        Opcode.ACTIVATE: (
            "1 a row, 2 as BINARY32 or PLANES; n / `table_lanes` times that with TABLE",
            f"3 cycles later, 4 without windows and operands; {3 + FunctionTable.latency + 1} with TABLE{one_group}",
        ),
        Opcode.POOL: (
            (
                "1 a row of a window, and 1 more as BINARY32; with TABLE, at least n / `table_lanes` a window, and "
                "n / `table_lanes` more as BINARY32"
            ),
            f"4 cycles later; {4 + FunctionTable.latency} + n / `table_lanes` with TABLE{one_group}",
        ),
        Opcode.SOFTMAX: (
            f"2 N + n t + {SoftmaxUnit.row_latency} for N elements in t tiles, or less on several lanes: see [Softmax](#softmax)",
            f"{SoftmaxUnit.end_latency} cycles later",
        ),
        Opcode.NORMALIZE: ("see [Normalization](#normalization)", f"{SoftmaxUnit.end_latency} cycles later"),
        Opcode.MULTIPLY: (
            (
                "n / `table_lanes` a row, at least 2; n / `table_lanes` + "
                f"{_OPERAND_WAIT} if its operand is 1 to {UNDER_WAY} rows before its result{one_group}"
            ),
            f"{4 + FunctionTable.latency + 1} cycles later{one_group}; 3 more after another instruction of its unit",
        ),
        Opcode.LOAD_TABLE: ("n / 2 a vector, at least 2", f"{_OPERAND_START} cycles later"),
        Opcode.UPDATE: (
            "n / `update_lanes` a row, at least 2",
            "5 + 2 `lead` + 2 `latency` cycles later, or 1 more; a row begins in every n / `update_lanes`-th cycle",
        ),
        Opcode.STORE_UPDATE: ("`b` a vector", "with the response to its last burst; 1 cycle more between two bursts"),
        Opcode.RING: ("see [Ring](#ring)", "with it"),
        Opcode.SELECT: (
            "2 a row; 6 if its operand is the result of the previous row",
            "4 cycles later; 7 after another instruction of its unit, 8 after a SELECT",
        ),
    }
