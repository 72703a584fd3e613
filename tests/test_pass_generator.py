# amaranth: UnusedElaboratable=no
"""The pass generator: the passes of random operations by the two loops of the instruction set, one a cycle."""

import pytest
from seeds import seed

from hw.config import Config
from hw.operations import matmul_layout, pass_layout
from hw.pass_generator import PassGenerator
from sim.ports import pack, simulate, unpack

CONFIG = Config(n=4, unified_buffer_depth=256, accumulator_depth=64, bias_depth=16)


def random_operation(rng):
    """A MATMUL whose passes stay inside the memories; the loops are short, but for a few."""
    tiles0, tiles1 = (rng.choice((1, 1, 2, 3, rng.randrange(1, 9))) for _ in range(2))
    rows0, rows1 = rng.randrange(1, 5), rng.randrange(1, 5)
    operation = {"tag": {"slot": rng.randrange(CONFIG.window), "pc": rng.getrandbits(32)},
                 "start": rng.getrandbits(1), "keep": rng.getrandbits(1), "rows": rows0 * rows1, "rows0": rows0, "rows1": rows1,
                 "rows0_stride": rng.randrange(3), "rows1_stride": rng.randrange(5)}
    if rng.random() < 0.05:
        tiles0, tiles1 = rng.choice(((300, 1), (2, 300)))
        strides = [0] * 4
        operation["start"] = 0
    else:
        room = CONFIG.unified_buffer_depth // 2, CONFIG.accumulator_depth // 2
        strides = [rng.randrange(room[i % 2] // tiles) for i, tiles in enumerate((tiles0, tiles0, tiles1, tiles1))]
    names = "tiles0_stride", "tiles0_acc_stride", "tiles1_stride", "tiles1_acc_stride"
    operation.update(zip(names, strides), tiles0=tiles0, tiles1=tiles1)
    last = operation["rows0_stride"] * (rows0 - 1) + operation["rows1_stride"] * (rows1 - 1)
    reach = [(tiles0 - 1) * strides[i] + (tiles1 - 1) * strides[i + 2] for i in range(2)]
    if last + reach[0] >= CONFIG.unified_buffer_depth or rows0 * rows1 + reach[1] > CONFIG.accumulator_depth:
        return random_operation(rng)
    operation["buffer"] = rng.randrange(CONFIG.unified_buffer_depth - last - reach[0])
    operation["acc"] = rng.randrange(CONFIG.accumulator_depth - rows0 * rows1 - reach[1] + 1)
    operation["bias"] = rng.randrange(CONFIG.bias_depth - tiles0 + 1) if operation["start"] else 0
    return operation


def passes(operation):
    """By the loops of the instruction set. The bias of a pass that does not start from it is left out."""
    copied = {name: operation[name] for name in ("start", "keep", "rows", "rows0", "rows0_stride", "rows1_stride")}
    for t1 in range(operation["tiles1"]):
        for t0 in range(operation["tiles0"]):
            yield {**copied,
                   "buffer": operation["buffer"] + t1 * operation["tiles1_stride"] + t0 * operation["tiles0_stride"],
                   "acc": operation["acc"] + t1 * operation["tiles1_acc_stride"] + t0 * operation["tiles0_acc_stride"],
                   **({"bias": operation["bias"] + t0} if operation["start"] else {}),
                   "last": int(t1 == operation["tiles1"] - 1 and t0 == operation["tiles0"] - 1)}


async def traffic(ports, rng, *, offers, takes, count):
    """Operations come with probability `offers`, passes are taken with probability `takes`; returns cycles, passes."""
    layout = pass_layout(CONFIG)
    pending, offered, due = [random_operation(rng) for _ in range(count)], None, []
    held, taken, first = None, 0, None
    while pending or offered or due:
        if offered is None and pending and rng.random() < offers:
            offered = pending.pop(0)
            ports.set(i__payload=pack(matmul_layout(CONFIG), **offered))
        ports.set(i__valid=offered is not None, o__ready=rng.random() < takes)
        ready = ports.get("o__ready")
        await ports.settle()
        valid, payload = ports.get("o__valid"), ports.get("o__payload")
        assert held is None or valid and payload == held, f"cycle {ports.cycle}: a pass changed while it waited"
        held = payload if valid and not ready else None
        if valid and ready:
            found, expected = unpack(layout, payload), due.pop(0)
            assert {name: found[name] for name in expected} == expected, f"cycle {ports.cycle}"
            taken += 1
            first = ports.cycle if first is None else first
            last = ports.cycle
        if offered and ports.get("i__ready"):
            due += passes(offered)
            offered = None
        await ports.tick()
        assert ports.cycle < 200_000, "stuck"
    ports.set(i__valid=0)
    await ports.settle()
    assert not ports.get("o__valid")
    return last - first + 1, taken


@pytest.mark.parametrize("offers, takes", [(0.5, 0.5), (0.1, 1), (1, 0.1)])
def test_random(offers, takes):
    simulate(PassGenerator(matmul=matmul_layout(CONFIG), pass_=pass_layout(CONFIG)), traffic, seed=seed(),
             offers=offers, takes=takes, count=80)


def test_one_pass_a_cycle():
    """Also from one operation to the next."""
    cycles, taken = simulate(PassGenerator(matmul=matmul_layout(CONFIG), pass_=pass_layout(CONFIG)), traffic, seed=seed(),
                             offers=1, takes=1, count=80)
    assert cycles == taken
