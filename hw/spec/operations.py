"""Layouts of decoded and checked operations, which the controller issues to the units. There is one layout for each unit."""

from functools import cache

from amaranth.lib import data
from amaranth.utils import bits_for, exact_log2

from .instruction import INSTRUCTION_WIDTH, Unit
from .isa import TABLE_SETTINGS, TABLE_WORDS, Format, FunctionCode, Half, RingMode, Task, WeightFormat
from .registers import MOST_CORES

__all__ = [
    "transfer_layout",
    "matmul_layout",
    "pass_layout",
    "activate_layout",
    "ring_layout",
    "link_user_layout",
    "tag_layout",
    "instruction_layout",
]


@cache
def tag_layout(config):
    """Returns the layout of a tag, which identifies an operation: its slot among the instructions in flight."""
    return data.StructLayout({"slot": bits_for(config.in_flight - 1)})


@cache
def instruction_layout():
    """Returns the layout of a fetched instruction.

    `overrun` is 1 if the instruction is outside region MODEL, `failed` if the bus could not read it. In both cases `word` is
    undefined.
    """
    return data.StructLayout({"word": INSTRUCTION_WIDTH, "pc": 32, "overrun": 1, "failed": 1})


@cache
def transfer_layout(config, unit=None):
    """Returns the layout of LOAD, LOAD_BIAS, LOAD_WEIGHTS and STORE. With `unit`, one of LOAD, WEIGHTS and STORE, it has only
    the fields and bits that the operations of this :class:`.Unit` use.

    The operation transfers `vectors` vectors from or to host `address`. `row` is the first row on the chip. With `bias`, `row` is
    twice the bias row: a row takes two vectors, or one vector with `half`. Only a core with training has `half`. `transpose`
    applies to LOAD_WEIGHTS in a core with attention, and to LOAD in a core with transpose. `weight_format` applies to
    LOAD_WEIGHTS in a core with weight formats. `part` is the :class:`.UpdatePart` of STORE_UPDATE, and 0 for STORE. Only a core
    with update lanes has `part`.
    """
    rows = config.unified_buffer_depth if unit is Unit.STORE else max(config.unified_buffer_depth, 2 * config.bias_depth)
    if config.update_lanes:
        rows = max(rows, config.update_depth)
    transposes = {Unit.LOAD: config.transpose, Unit.WEIGHTS: config.attention, Unit.STORE: False}
    fields = {
        "tag": tag_layout(config),
        "address": config.address_width,
        "vectors": bits_for(rows) if unit in (Unit.LOAD, Unit.STORE) else 16 + exact_log2(config.n),
        **({"row": bits_for(rows - 1)} if unit is not Unit.WEIGHTS else {}),
        **({"bias": 1} if unit in (None, Unit.LOAD) else {}),
        **({"half": Half} if unit in (None, Unit.LOAD) and config.training else {}),
        **({"part": 2} if unit in (None, Unit.STORE) and config.update_lanes else {}),
        **({"transpose": 1} if transposes.get(unit, any(transposes.values())) else {}),
        **({"weight_format": WeightFormat} if unit in (None, Unit.WEIGHTS) and config.weight_formats else {}),
    }
    return data.StructLayout(fields)


@cache
def matmul_layout(config):
    """Returns the layout of MATMUL. A pass has `rows` rows, `rows0 * rows1`. `single0` and `single1` are 1 if `tiles0` and
    `tiles1` are 1. Only a core with attention has `bias_rows`."""
    row, acc = bits_for(config.unified_buffer_depth - 1), bits_for(config.accumulator_depth - 1)

    return data.StructLayout(
        {
            "tag": tag_layout(config),
            "start": 1,
            "keep": 1,
            **({"bias_rows": 1} if config.attention else {}),
            "buffer": row,
            "acc": acc,
            "bias": bits_for(config.bias_depth - 1),
            "rows": acc + 1,
            "rows0": acc + 1,
            "rows0_stride": row,
            "rows1": acc + 1,
            "rows1_stride": row,
            "tiles0": 16,
            "tiles0_stride": row,
            "tiles0_acc_stride": acc,
            "tiles1": 16,
            "tiles1_stride": row,
            "tiles1_acc_stride": acc,
            "single0": 1,
            "single1": 1,
        }
    )


@cache
def pass_layout(config):
    """Returns the layout of one pass of a MATMUL: the rows that are multiplied by one tile of weights.

    `end` is the accumulator row after the last row of the pass. `slot` is the slot of the operation.
    """
    matmul = matmul_layout(config)
    names = ("start", "keep", "buffer", "acc", "bias", "rows", "rows0", "rows0_stride", "rows1_stride")
    return data.StructLayout(
        {
            **{name: matmul[name].shape for name in (*names, *(("bias_rows",) if config.attention else ()))},
            "end": matmul["rows"].shape,
            "last": 1,
            "slot": matmul["tag"].shape["slot"].shape,
        }
    )


@cache
def activate_layout(config):
    """Returns the layout of ACTIVATE, POOL, SELECT, UPDATE, SOFTMAX, NORMALIZE, MULTIPLY and LOAD_TABLE.

    A field exists only if the core has a feature that needs it. The `rows0` of POOL and SELECT is `rows`. The `tiles` and
    `acc_stride` of SOFTMAX and NORMALIZE are `rows1` and `rows1_stride`; both have `softmax`.

    `single` marks the counts `rows`, `rows1`, `window0` and `window1` that are 1. `operand` is the first row of the unified
    buffer that MULTIPLY, LOAD_TABLE and SELECT read; `word` counts vectors. `buffer_step` is never 0. For instructions without
    such a field, it is the number of vectors of a result; for PLANES, whose two vectors are `rows` apart, it is 1. SELECT has the
    function NONE, the format BFLOAT16, n lanes and windows of one row. `twice` means that the last row of a window is read
    twice: for an operand, and for results of two vectors.
    """
    row, acc = bits_for(config.unified_buffer_depth - 1), bits_for(config.accumulator_depth - 1)
    outer = {"rows1": 16, "rows1_stride": acc, "buffer_stride": row}
    pool = {
        "rows0_stride": acc,
        "window0": 8,
        "window0_stride": acc,
        "window1": 8,
        "window1_stride": acc,
        "single": data.StructLayout({"left0": 1, "left1": 1, "across": 1, "down": 1}),
    }
    table = {"task": Task, "operand": row, "word": exact_log2(TABLE_WORDS // config.n), **TABLE_SETTINGS}
    update = {
        "update": 1,
        "update_row": bits_for(config.update_depth - 1),
        "bias": bits_for(config.bias_depth - 1),
        "momentum": 16,
        "rate": 16,
    }
    select = {"select": 1, "twice": 1, "equal": 1, "number": 8, "operand": row, "operand_stride": row, "buffer_step": row}
    return data.StructLayout(
        {
            "tag": tag_layout(config),
            "function": FunctionCode,
            "format": Format if config.training else 1,
            "rows": max(acc, row) + 1 if config.pooling or config.table_lanes else acc + 1,
            "lanes": bits_for(config.n),
            "row": row,
            "acc": acc,
            **(outer if config.pooling or config.softmax else {}),
            **({"softmax": 1} if config.softmax else {}),
            **({"normalize": 1, "centred": 1, "root": 1, "factor": 24, "epsilon": 24} if config.normalize else {}),
            **(pool if config.pooling else {}),
            **(table if config.table_lanes else {}),
            **(select if config.training else {}),
            **(update if config.update_lanes else {}),
        }
    )


@cache
def ring_layout(config):
    """Returns the layout of the operation of RING."""
    row = bits_for(config.unified_buffer_depth - 1)
    return data.StructLayout(
        {
            "tag": tag_layout(config),
            "mode": RingMode,
            "buffer": row,
            "result": row,
            "segment": bits_for(config.ring_depth),
            "stride": row,
            "rounds": 16,
        }
    )


@cache
def link_user_layout():
    """Returns the layout of `tuser` on the links between cores: the segment, the mode of the RING, and the number of the round in
    the run.

    `round` starts at 0. Each round increments it modulo 8, and each RING increments it once more. A round of one RING therefore
    never matches a round of the next RING.
    """
    return data.StructLayout({"segment": range(MOST_CORES), "mode": RingMode, "round": 3})
