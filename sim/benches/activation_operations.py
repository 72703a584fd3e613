"""Random operations of the activation unit. The decoder would accept all of them."""

from amaranth_tpu.hw.spec.isa import TABLE_SETTINGS, TABLE_WORDS, Format, FunctionCode, Task, exists
from amaranth_tpu.hw.spec.operations import activate_layout

from ..rtl.ports import pack

__all__ = ["idle", "interrupted", "ones", "random_operation", "rows_read", "table_loads", "tag", "use_loaded_entries"]


def tag(rng, config):
    return {"slot": rng.randrange(config.in_flight)}


def table_loads(rng, config, part):
    """Yields LOAD_TABLE operations that load 1 / `part` of the function table. The remaining entries stay 0 in Amaranth's
    simulator."""
    whole = TABLE_WORDS // config.n
    rows = min(whole // part, config.unified_buffer_depth)
    for word in rng.sample(range(0, whole, rows), whole // rows // part):
        yield {
            **idle(config),
            "tag": tag(rng, config),
            "task": Task.LOAD_TABLE,
            "rows": rows,
            "operand": 0,
            "word": word,
            **table_settings(rng),
            **({"single": ones(rows)} if config.pooling else {}),
        }


def use_loaded_entries(rng, model):
    """Replaces half of the model's sums by numbers whose entries in the function table are loaded, with normal values."""
    table, numbers = model.table, []
    for place, (value, slope) in enumerate(zip(table.words[::2], table.words[1::2])):
        binade = (place >> 7) - table.base & 15
        if slope and 0x1000 < value & 0x7FFF < 0x7000 and binade < table.binades and 0 < table.first + binade < 255:
            numbers.append(place >> 11 << 31 | table.first + binade << 23 | (place & 0x7F) << 16)
    for row in model.sums if numbers else ():
        for lane in range(model.n):
            if rng.random() < 0.5:
                row[lane] = rng.choice(numbers) | rng.getrandbits(16)


def table_settings(rng):
    """Returns random settings of a function table. Its binades usually contain most of the random numbers."""
    return {
        "first": rng.choice((0, 240, rng.randrange(112, 131), rng.randrange(241))),
        "linear_low": rng.getrandbits(2),
        "linear_high": rng.getrandbits(2),
        "scale": rng.getrandbits(2),
        **rng.choice(({"base": 0, "spare": 0}, {"base": rng.getrandbits(4), "spare": rng.getrandbits(4)})),
    }


def ones(*counts):
    return {name: int(count == 1) for name, count in zip(("left0", "left1", "across", "down"), (*counts, 1, 1, 1, 1))}


def idle(config):
    """Returns all fields of an operation. Their values are those that the decoder gives to fields that an operation does not
    use."""
    fields = {"function": FunctionCode.NONE, "format": Format.BFLOAT16, "rows": 1, "lanes": config.n, "row": 0, "acc": 0}
    if config.pooling or config.softmax:
        fields |= {"rows1": 1, "rows1_stride": 0, "buffer_stride": 0}
    if config.softmax:
        fields |= {"softmax": 0}
    if config.normalize:
        fields |= {"normalize": 0, "centred": 0, "root": 0, "factor": 0, "epsilon": 0}
    if config.pooling:
        fields |= {"rows0_stride": 1, "window0": 1, "window0_stride": 0, "window1": 1, "window1_stride": 0, "single": ones()}
    if config.table_lanes:
        fields |= {"task": Task.RESULTS, "operand": 0, "word": 0, **dict.fromkeys(TABLE_SETTINGS, 0)}
    if config.training:
        fields |= {"select": 0, "twice": 0, "equal": 0, "number": 0, "operand": 0, "operand_stride": 0, "buffer_step": 1}
    return fields


def payload(config, op):
    """Returns an operation as bits, in the layout of the activation unit's port."""
    has_operand = op.get("select") or op.get("task", Task.RESULTS) is not Task.RESULTS
    found = {"twice": int(has_operand or op["format"].height == 2)} if config.training else {}
    return pack(activate_layout(config), **op | found)


def random_operation(rng, config):
    """Returns a random operation that the decoder would accept. All its rows are inside the memories."""
    op = {**idle(config), "tag": tag(rng, config), "lanes": rng.choice((config.n, rng.randrange(1, config.n + 1)))}
    kind = rng.random()
    if config.training and rng.random() < 0.3:
        return op | {"lanes": config.n} | _select(rng, config, op)
    if config.table_lanes and kind < 0.3:
        return op | _task(rng, config, load=kind < 0.1)

    windows = config.pooling and kind < 0.7
    formats = [Format.BFLOAT16, Format.BINARY32, *([Format.INDEX if windows else Format.PLANES] if config.training else [])]
    op["format"] = rng.choice(formats)
    op["function"] = rng.choice([function for function in FunctionCode if exists(config, function)])
    if op["function"] == FunctionCode.TABLE and op["format"] not in (Format.BFLOAT16, Format.BINARY32):
        op["function"] = rng.choice((FunctionCode.NONE, FunctionCode.RELU))
    if config.training:
        op["buffer_step"] = 2 if op["format"] == Format.BINARY32 else 1
    if windows:
        return op | _windows(rng, config, op)
    if config.softmax and op["format"] != Format.PLANES and rng.random() < 0.3:
        return op | _softmax(rng, config, op)
    rows = rng.choice((1, 1, 2, rng.randrange(1, config.accumulator_depth + 1)))
    op |= {"rows": rows, "row": rng.randrange(config.unified_buffer_depth - rows * op["format"].height + 1)}
    op["acc"] = rng.randrange(config.accumulator_depth - rows + 1)
    return op | ({"single": ones(rows)} if config.pooling else {})


def _task(rng, config, *, load):
    depth, rows = config.unified_buffer_depth, rng.choice((1, 2, rng.randrange(1, 6)))
    if load:
        op = {"task": Task.LOAD_TABLE, "word": rng.randrange(TABLE_WORDS // config.n - rows + 1), **table_settings(rng)}
    else:
        rows = rng.choice((rows, rng.randrange(1, min(25, config.accumulator_depth))))
        acc = rng.randrange(config.accumulator_depth - rows + 1)
        op = {"task": Task.MULTIPLY, "acc": acc, "row": rng.randrange(depth - rows + 1)}
    op |= {"rows": rows, "operand": rng.randrange(depth - rows + 1)}
    if not load and rng.random() < 0.6:  # at or near the rows of the operand, so that a row may depend on an earlier row
        op["operand"] = max(0, min(depth - rows, op["row"] - rng.choice((0, rng.randrange(-3, 12)))))
    return op | ({"single": ones(rows)} if config.pooling else {})


def _loops(rng, config, op, windows):
    """Draws random loops for POOL and SELECT. Returns their fields, and the last rows that the loops reach, relative to the first
    row."""
    op |= {"rows": rng.choice((1, rng.randrange(1, 6))), "rows1": rng.choice((1, rng.randrange(1, 5)))}
    op |= {count: rng.choice((1, 2, rng.randrange(1, 5))) if windows else 1 for count in ("window0", "window1")}
    strides = ("rows0_stride", "rows1_stride", "window0_stride", "window1_stride", "buffer_stride")
    op |= {name: rng.randrange(6) for name in strides}
    if config.training and rng.random() < 0.5:
        op["buffer_step"] = rng.randrange(1, 6)
    op["single"] = ones(op["rows"], op["rows1"], op["window0"], op["window1"])
    last_acc = (op["rows"] - 1) * op["rows0_stride"] + sum(
        (op[count] - 1) * op[f"{count}_stride"] for count in ("rows1", "window0", "window1")
    )
    height = op["format"].height
    last_row = (op["rows1"] - 1) * op["buffer_stride"] + (op["rows"] - 1) * op.get("buffer_step", height) + height - 1
    return op, last_acc, last_row


def _windows(rng, config, op):
    depth, sums = config.unified_buffer_depth, config.accumulator_depth
    while True:
        op, last_acc, last_row = _loops(rng, config, dict(op), True)
        if last_acc < sums and last_row < depth:
            return op | {"acc": rng.randrange(sums - last_acc), "row": rng.randrange(depth - last_row)}


def _select(rng, config, op):
    depth, sums = config.unified_buffer_depth, config.accumulator_depth
    while True:
        op, last_acc, last_row = _loops(rng, config, dict(op), False)
        op["operand_stride"] = rng.randrange(6)
        last_operand = (op["rows1"] - 1) * op["operand_stride"] + op["rows"] - 1
        if last_acc < sums and max(last_row, last_operand) < depth:
            break
    op |= {"select": 1, "equal": rng.getrandbits(1), "number": rng.choice((0, 1, 2, 255, rng.getrandbits(8)))}
    op |= {"acc": rng.randrange(sums - last_acc), "row": rng.randrange(depth - last_row)}
    op["operand"] = rng.randrange(depth - last_operand)
    if rng.random() < 0.4:  # at or near the rows of the operands
        op["operand"] = max(0, min(depth - last_operand - 1, op["row"] - rng.randrange(-1, 4)))
    return op


def _softmax(rng, config, op):
    rows, tiles, stride = rng.choice((1, 2)), rng.choice((1, 2, 3)), rng.randrange(4)
    height = rows * op["format"].height + rng.randrange(3)
    return {
        "softmax": 1,
        "function": FunctionCode.NONE,
        "rows": rows,
        "rows1": tiles,
        "rows1_stride": stride,
        "buffer_stride": height,
        "acc": rng.randrange(config.accumulator_depth - rows - (tiles - 1) * stride + 1),
        "row": rng.randrange(config.unified_buffer_depth - tiles * height),
    }


def rows_read(op):
    """Returns the number of accumulator rows that an operation reads. The unit reads one row per cycle."""
    steps = 2 if op.get("select") else op["format"].height
    return op["rows"] * op.get("rows1", 1) * (op.get("window0", 1) * op.get("window1", 1) + steps - 1)


def interrupted(rng, config):
    """Returns a random operation to be interrupted by a reset. It is not LOAD_TABLE, since a reset does not restore the table."""
    while (op := random_operation(rng, config)).get("task") == Task.LOAD_TABLE:
        pass
    return op
