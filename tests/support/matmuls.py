"""Random MATMULs, and the passes and rows that the instruction set defines for them, for tests of the matrix multiply unit."""

from amaranth_tpu.hw.spec.operations import matmul_layout
from amaranth_tpu.sim.rtl.ports import pack


def offer(config, operation):
    """Returns the bits of a MATMUL with the given fields, and with the fields that the decoder adds."""
    single = {"single0": operation["tiles0"] == 1, "single1": operation["tiles1"] == 1}
    return pack(matmul_layout(config), **operation, **single)


def random_matmul(rng, config, *, loops=None, **fixed):
    """Returns a random MATMUL whose rows stay inside the memories. `loops` sets the loops over tiles, without strides; `fixed`
    sets other fields. On a core with attention, `bias_rows` is set at random if `start` is set and there are enough bias rows."""
    tiles0, tiles1 = (rng.choice((1, 1, 2, 3, rng.randrange(1, 9))) for _ in range(2))
    rows0, rows1 = rng.randrange(1, 5), rng.randrange(1, 5)
    operation = {
        "tag": {"slot": rng.randrange(config.in_flight)},
        "start": rng.getrandbits(1),
        "keep": rng.getrandbits(1),
        "rows": rows0 * rows1,
        "rows0": rows0,
        "rows1": rows1,
        "rows0_stride": rng.randrange(3),
        "rows1_stride": rng.randrange(5),
        **fixed,
    }
    if loops:
        (tiles0, tiles1), strides = loops, [0] * 4
        operation["start"] = 0
    else:
        room = config.unified_buffer_depth // 2, config.accumulator_depth // 2
        strides = [rng.randrange(room[i % 2] // tiles) for i, tiles in enumerate((tiles0, tiles0, tiles1, tiles1))]
    names = "tiles0_stride", "tiles0_acc_stride", "tiles1_stride", "tiles1_acc_stride"
    operation.update(zip(names, strides), tiles0=tiles0, tiles1=tiles1)
    last = operation["rows0_stride"] * (rows0 - 1) + operation["rows1_stride"] * (rows1 - 1)
    reach = [(tiles0 - 1) * strides[i] + (tiles1 - 1) * strides[i + 2] for i in range(2)]
    if last + reach[0] >= config.unified_buffer_depth or rows0 * rows1 + reach[1] > config.accumulator_depth:
        return random_matmul(rng, config, loops=loops, **fixed)
    operation["buffer"] = rng.randrange(config.unified_buffer_depth - last - reach[0])
    operation["acc"] = rng.randrange(config.accumulator_depth - rows0 * rows1 - reach[1] + 1)
    biases = tiles0
    if config.attention:
        more = rows0 * rows1 - 1
        operation["bias_rows"] = rng.getrandbits(1) if tiles0 + more <= config.bias_depth else 0
        biases += more * operation["bias_rows"]
    operation["bias"] = rng.randrange(config.bias_depth - biases + 1) if operation["start"] else 0
    return operation


def passes(operation):
    """Yields the passes of a MATMUL as the instruction set defines them. A pass that continues earlier sums has no bias."""
    names = ("start", "keep", "bias_rows", "rows", "rows0", "rows0_stride", "rows1_stride")
    copied = {name: operation[name] for name in names if name in operation}
    for t1 in range(operation["tiles1"]):
        for t0 in range(operation["tiles0"]):
            yield {
                **copied,
                "buffer": operation["buffer"] + t1 * operation["tiles1_stride"] + t0 * operation["tiles0_stride"],
                "acc": operation["acc"] + t1 * operation["tiles1_acc_stride"] + t0 * operation["tiles0_acc_stride"],
                **({"bias": operation["bias"] + t0} if operation["start"] else {}),
                "end": operation["acc"]
                + t1 * operation["tiles1_acc_stride"]
                + t0 * operation["tiles0_acc_stride"]
                + operation["rows"],
                "last": int(t1 == operation["tiles1"] - 1 and t0 == operation["tiles0"] - 1),
            }


def rows(pass_):
    for row in range(pass_["rows"]):
        r1, r0 = divmod(row, pass_["rows0"])
        yield pass_["buffer"] + r1 * pass_["rows1_stride"] + r0 * pass_["rows0_stride"], pass_["acc"] + row


def bias_rows(pass_):
    return [pass_["bias"] + row * pass_.get("bias_rows", 0) for row in range(pass_["rows"])]
