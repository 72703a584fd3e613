"""Random operations of the activation unit, such as the decoder would let through."""

from amaranth_tpu.hw.spec.isa import TABLE_WORDS, Format, Function, Task, exists

__all__ = ["idle", "interrupted", "ones", "random_operation", "rows_read", "table_loads", "tag"]


def tag(rng, config):
    return {"slot": rng.randrange(config.in_flight), "pc": rng.getrandbits(32)}


def table_loads(rng, config, part):
    """Operations that fill the table, or one of them in `part`, drawn: what is not filled is 0 in Amaranth's simulator."""
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


def table_settings(rng):
    """Binades that most numbers lie in or near."""
    return {
        "first": rng.choice((0, 240, rng.randrange(112, 131), rng.randrange(241))),
        "linear_low": rng.getrandbits(2),
        "linear_high": rng.getrandbits(2),
    }


def ones(*counts):
    return {name: int(count == 1) for name, count in zip(("left0", "left1", "across", "down"), (*counts, 1, 1, 1, 1))}


def idle(config):
    """Every field, as the decoder leaves it in operations that have none of it."""
    fields = {"function": Function.NONE, "format": Format.BFLOAT16, "rows": 1, "lanes": config.n, "row": 0, "acc": 0}
    if config.pooling or config.softmax:
        fields |= {"rows1": 1, "rows1_stride": 0, "buffer_stride": 0}
    if config.softmax:
        fields |= {"softmax": 0}
    if config.pooling:
        fields |= {"rows0_stride": 1, "window0": 1, "window0_stride": 0, "window1": 1, "window1_stride": 0, "single": ones()}
    if config.table_lanes:
        fields |= {"task": Task.RESULTS, "operand": 0, "word": 0, "first": 0, "linear_low": 0, "linear_high": 0}
    return fields


def random_operation(rng, config):
    """One that the decoder would let through: no row outside the memories."""
    op = {**idle(config), "tag": tag(rng, config), "lanes": rng.choice((config.n, rng.randrange(1, config.n + 1)))}
    kind = rng.random()
    depth, sums = config.unified_buffer_depth, config.accumulator_depth
    if config.table_lanes and kind < 0.3:
        rows = rng.choice((1, 2, rng.randrange(1, 6)))
        if kind < 0.1:
            op |= {"task": Task.LOAD_TABLE, "word": rng.randrange(TABLE_WORDS // config.n - rows + 1), **table_settings(rng)}
        else:
            op |= {"task": Task.MULTIPLY, "acc": rng.randrange(sums - rows + 1), "row": rng.randrange(depth - rows + 1)}
        op |= {"rows": rows, "operand": rng.randrange(depth - rows + 1)}
        if rng.random() < 0.3:  # a row depends on the one before
            op["operand"] = max(0, min(depth - rows, op["row"] - rng.randrange(3)))
        return op | ({"single": ones(rows)} if config.pooling else {})

    format_ = op["format"] = rng.choice((Format.BFLOAT16, Format.BINARY32))
    op["function"] = rng.choice([function for function in Function if exists(config, function)])
    wide = 1 if format_ == Format.BFLOAT16 else 2
    if config.pooling and kind < 0.7:
        while True:
            op |= {
                "rows": rng.choice((1, rng.randrange(1, 6))),
                "rows1": rng.choice((1, rng.randrange(1, 5))),
                "window0": rng.choice((1, 2, rng.randrange(1, 5))),
                "window1": rng.choice((1, 2, rng.randrange(1, 5))),
            }
            op |= {
                name: rng.randrange(6)
                for name in ("rows0_stride", "rows1_stride", "window0_stride", "window1_stride", "buffer_stride")
            }
            last_acc = (op["rows"] - 1) * op["rows0_stride"] + sum(
                (op[count] - 1) * op[f"{count}_stride"] for count in ("rows1", "window0", "window1")
            )
            last_row = (op["rows1"] - 1) * op["buffer_stride"] + op["rows"] * wide - 1
            if last_acc < sums and last_row < depth:
                op |= {"acc": rng.randrange(sums - last_acc), "row": rng.randrange(depth - last_row)}
                return op | {"single": ones(op["rows"], op["rows1"], op["window0"], op["window1"])}
    if config.softmax and rng.random() < 0.3:
        rows, tiles, stride = rng.choice((1, 2)), rng.choice((1, 2, 3)), rng.randrange(4)
        height = rows * wide + rng.randrange(3)
        return op | {
            "softmax": 1,
            "function": Function.NONE,
            "rows": rows,
            "rows1": tiles,
            "rows1_stride": stride,
            "buffer_stride": height,
            "acc": rng.randrange(sums - rows - (tiles - 1) * stride + 1),
            "row": rng.randrange(depth - tiles * height),
        }
    rows = op["rows"] = rng.choice((1, 1, 2, rng.randrange(1, sums + 1)))
    op |= {"row": rng.randrange(depth - rows * wide + 1), "acc": rng.randrange(sums - rows + 1)}
    return op | ({"single": ones(rows)} if config.pooling else {})


def rows_read(op):
    """Rows of the accumulators, one a cycle."""
    wide = 1 if op["format"] == Format.BFLOAT16 else 2
    return op["rows"] * op.get("rows1", 1) * (op.get("window0", 1) * op.get("window1", 1) + wide - 1)


def interrupted(rng, config):
    """Any operation but one that changes the table, which a reset does not bring back."""
    while (op := random_operation(rng, config)).get("task") == Task.LOAD_TABLE:
        pass
    return op
