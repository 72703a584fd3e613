"""Bench of the activation unit: random ACTIVATE operations, accumulators with every kind of number, a port that makes
it wait; bits from the golden model."""

import cocotb

from hw.activation_unit import ActivationUnit
from hw.config import Config
from hw.isa import Format, Function
from hw.operations import activate_layout
from sim import golden
from sim.ports import binary32_bits, pack, play
from sim.runner import arguments, report

TIES = (0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000, 0x3F808001, 0x3F807FFF, 0x7F7F8000, 0x7F7F7FFF, 0xFF7FFFFF,
        0x007FFFFF, 0x00800000, 0x807FFFFF, 0x00808000, 0x80000000, 0x7F800000, 0xFF800000, golden.NAN)


def canonical(bits):
    """A sum as cells make it: without subnormals, and with only one NaN."""
    return int(golden.add(bits, 0x80000000))


def number(rng):
    return canonical(rng.choice((rng.choice(TIES), binary32_bits(rng, 0.3), rng.getrandbits(32))))


def vectors(operation, accumulators, n):
    """`(row, lanes)` of what an operation writes, in order; lanes are 16 bits."""
    for index in range(operation["rows"]):
        values = [value if c < operation["lanes"] else 0 for c, value in enumerate(accumulators[operation["acc"] + index])]
        if operation["function"] == Function.RELU:
            values = [int(golden.relu(value)) for value in values]
        if operation["format"] == Format.BFLOAT16:
            yield operation["row"] + index, [int(golden.to_bfloat16(value)) for value in values]
        else:
            halves = [value >> 16 * half & 0xFFFF for value in values for half in (0, 1)]
            yield operation["row"] + 2 * index, halves[:n]
            yield operation["row"] + 2 * index + 1, halves[n:]


def random_operation(rng, config):
    """One that the decoder would let through: no row outside the memories."""
    format_ = rng.choice(list(Format))
    rows = rng.choice((1, 1, 2, rng.randrange(1, config.accumulator_depth + 1)))
    return {"tag": {"slot": rng.randrange(config.window), "pc": rng.getrandbits(32)},
            "function": rng.choice(list(Function)), "format": format_, "rows": rows,
            "lanes": rng.choice((config.n, rng.randrange(1, config.n + 1))),
            "row": rng.randrange(config.unified_buffer_depth - rows * (1 if format_ == Format.BFLOAT16 else 2) + 1),
            "acc": rng.randrange(config.accumulator_depth - rows + 1)}


async def operations(ports, rng, *, config, count, grants, pace):
    """`count` operations. The buffer takes a vector with probability `grants`, operations come with probability `pace`.

    Returns `(cycles from the first operation to the last vector, vectors)`.
    """
    n, layout = config.n, activate_layout(config)
    accumulators = [[number(rng) for _ in range(n)] for _ in range(config.accumulator_depth)]
    pending = [random_operation(rng, config) for _ in range(count)]
    due = []            # (row, lanes, slot if it is the operation's last)
    offered = read = start = None
    held, written = False, 0
    ended = None        # the slot whose last vector was written a cycle ago
    while pending or offered or due:
        if offered is None and pending and rng.random() < pace:
            offered = pending.pop(0)
            vector_list = list(vectors(offered, accumulators, n))
            due += [(row, lanes, offered["tag"]["slot"] if index == len(vector_list) - 1 else None)
                    for index, (row, lanes) in enumerate(vector_list)]
            ports.set(i__payload=pack(layout, **offered))
            if start is None:
                start = ports.cycle
        grant = int(rng.random() < grants)
        ports.set(i__valid=offered is not None, grant=grant)
        if read is not None:
            ports.set(sums=accumulators[read])
        await ports.settle()

        write, done = ports.get("write"), ports.get("done")
        assert done == (ended is not None), f"cycle {ports.cycle}: done is {done}"
        if done:
            assert ports.get("done_slot") == ended, f"cycle {ports.cycle}: slot {ports.get('done_slot')}, not {ended}"
        ended = None
        if write:
            assert due, f"cycle {ports.cycle}: a vector too many"
            row, lanes, slot = due[0]
            found = ports.get("row"), ports.lanes("vector", n)
            assert found == (row, lanes), f"cycle {ports.cycle}: wrote {found}, not {(row, lanes)}"
            if not written and not held:
                assert ports.cycle == start + 3, f"first vector after {ports.cycle - start} cycles"
        else:
            assert not held, f"cycle {ports.cycle}: a vector went away before it was granted"
        held = write and not grant
        if write and grant:
            ended = slot
            due.pop(0)
            written += 1
            last = ports.cycle
        if ports.get("acc_read"):
            read = ports.get("acc_row")
            assert read < len(accumulators)
        if offered is not None and ports.get("i__ready"):
            offered = None
        await ports.tick()
        if offered is None:
            ports.set(i__payload=0)
        assert start is None or ports.cycle - start < 10_000, "stuck"
    ports.set(i__valid=0, grant=1)
    for cycle in range(4):
        await ports.settle()
        assert not ports.get("write") and ports.get("done") == (cycle == 0 and ended is not None)
        await ports.tick()
    return last - start, written


async def runs(ports, rng, *, count, **sizes):
    """At full speed, one vector a cycle from the second on; then with waits on either side, and a reset in between."""
    config = Config(**sizes)
    cycles, written = await operations(ports, rng, config=config, count=count, grants=1, pace=1)
    assert cycles == written + 2, f"{written} vectors took {cycles} cycles"
    total = written
    for grants, pace in ((0.5, 1), (0.2, 0.3), (1, 0.2)):
        ports.set(i__valid=1, i__payload=pack(activate_layout(config), **random_operation(rng, config)), grant=rng.getrandbits(1))
        for _ in range(rng.randrange(1, 5)):
            await ports.settle()
            await ports.tick()
        ports.set(i__valid=0)
        await ports.reset()
        total += (await operations(ports, rng, config=config, count=count, grants=grants, pace=pace))[1]
    return total


@cocotb.test()
async def random_operations(dut):
    job = arguments()
    config = Config(**{name: value for name, value in job.items() if name != "count"})
    component = ActivationUnit(n=config.n, activate=activate_layout(config))
    report({"vectors": await play(dut, component, runs, **job)})
