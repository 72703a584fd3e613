"""Bench of the softmax unit against its golden definition: random operations, rows with all kinds of numbers, and stalls of the
buffer port."""

import cocotb
import numpy as np

from amaranth_tpu.hw.activation.result_units import softmax_unit
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Format
from amaranth_tpu.hw.spec.operations import activate_layout

from ..golden import arithmetic as golden
from ..golden.softmax import softmax
from ..rtl.bench_side import arguments, report
from ..rtl.ports import pack, play
from .activation_operations import idle, tag

SPECIALS = (0x00000000, 0x80000000, 0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF, 0xFF800000, 0x3F800000)


def sums(rng, count):
    """Returns random sums of one row, as bit patterns. The sums may be close together, and at any distance from 0. A few rows
    have infinities or NaN."""
    spread = rng.choice((0, 1e-3, 1, 3, 10, 30, 90, 1e4, 1e37))
    offset = rng.choice((0, 0, 1)) * rng.choice((-1, 1)) * 2.0 ** rng.randrange(-4, rng.choice((13, 26, 126)))
    values = np.array([offset + rng.gauss(0, spread) for _ in range(count)]).astype(np.float32).view(np.uint32)
    if rng.random() < 0.2:  # sums that differ by a few units in the last place
        values += np.array([rng.randrange(4) for _ in values], np.uint32) - (values & np.uint32(3))
    special = rng.choice((0, 0, 0, 0.2, 1))
    for index in range(count):
        if rng.random() < special:
            values[index] = rng.choice(SPECIALS) if rng.random() < 0.7 else rng.getrandbits(32)
    if rng.random() < 0.1:
        values[rng.randrange(count)] = rng.choice((0x7F800000, golden.NAN))
    return [int(bits) for bits in golden.add(values, np.uint32(0x80000000))]


def least_results(rng, count):
    """Returns random sums of one row whose softmax has results near the least normal number.

    The results are within a binade of the least normal number, or round to that number or to half of it.
    """
    largest = rng.choice((1, rng.randrange(1, 1 + count // 2)))
    values = np.zeros(count)
    for index in range(largest, count):
        least = np.log(largest * 2.0 ** -rng.choice((126, 126, 127)))
        values[index] = least + rng.uniform(-1, 1) * rng.choice((0.7, 2.0**-8, 2.0**-8))
    if rng.random() < 0.5:  # the sum is just above a power of two: its reciprocal starts with ones
        values[-1] = -rng.uniform(7, 12)
    rng.shuffle(values)
    return [int(bits) for bits in values.astype(np.float32).view(np.uint32)]


def chosen_rows(rng, count):
    """Draws the sums of one row, as bits: ties, infinities, a NaN, no number at all, or a maximum of 8,192 or more."""
    kind = rng.randrange(10)
    row = np.array([rng.gauss(0, 3) for _ in range(count)], np.float32).view(np.uint32)
    somewhere = rng.choice((0, count - 1, rng.randrange(count)))
    if kind == 0:
        row[:] = rng.choice((0xFF800000, 0, 0x80000000, 0x3F800000, 0x46000000, 0xFF7FFFFF))  # ties
    elif kind == 1:
        row[[index for index in range(count) if rng.random() < 0.7]] = 0xFF800000
    elif kind == 2:
        row[somewhere] = rng.choice((golden.NAN, 0x7F800000))
    elif kind == 3:  # on both sides of a power of two from 4,096 on
        bits = 0x45800000 + (rng.randrange(5) << 23)
        row[:] = [bits + rng.randrange(-6, rng.choice((1, 3))) for _ in row]
    elif kind == 4:
        row[somewhere] = 0x46000000 + rng.getrandbits(29)
    elif kind == 5:  # all far below zero
        row[:] = [0xC6000000 + rng.getrandbits(rng.choice((3, 12, 28))) for _ in row]
    elif kind == 6:
        row[:] = 0xFF800000
        row[somewhere] = rng.choice((0x3F800000, 0xFF7FFFFF, 0))
    elif kind == 7:
        row[[index for index in range(count) if rng.random() < 0.5]] = 0x80000000  # zeros of both signs
        row[somewhere] = 0
    elif kind == 8:  # some of them below the last place of a distance
        row -= np.array([rng.choice((0, rng.randrange(10, 60))) << 23 for _ in row], np.uint32)
    return [int(bits) for bits in golden.add(row, np.uint32(0x80000000))]


def random_operation(rng, config, widest, counts=(1, 1, 2, 3)):
    """Returns a random operation on up to `widest` tiles, which the decoder would accept. Its ranges of rows may overlap."""
    depth, buffer_depth = config.accumulator_depth, config.unified_buffer_depth
    format_ = rng.choice((Format.BFLOAT16, Format.BINARY32))
    rows, tiles = rng.choice(counts), rng.choice((1, 1, rng.randrange(1, widest + 1)))
    vectors = rows * (2 if format_ == Format.BINARY32 else 1)
    tiles = min(tiles, buffer_depth // vectors)
    steps = max(1, tiles - 1)
    rows1_stride = min(rng.choice((0, rows, rng.randrange(depth))), (depth - rows) // steps)
    buffer_stride = rng.randrange(vectors, max(vectors, (buffer_depth - vectors) // steps) + 1)
    return {
        **idle(config),
        "softmax": 1,
        "tag": tag(rng, config),
        "format": format_,
        "rows": rows,
        "rows1": tiles,
        "rows1_stride": rows1_stride,
        "buffer_stride": buffer_stride,
        "lanes": rng.choice((config.n, 1, rng.randrange(1, config.n + 1))),
        "acc": rng.randrange(depth - rows - (tiles - 1) * rows1_stride + 1),
        "row": rng.randrange(buffer_depth - vectors - (tiles - 1) * buffer_stride + 1),
    }


def filled(rng, operation, accumulators, draw):
    """Fills the accumulators with random numbers, one kind of number for each row of the operation. Returns the rows of the
    operation as `(row, lanes)`, in order."""
    n, tiles = len(accumulators[0]), operation["rows1"]
    places = [[operation["acc"] + t * operation["rows1_stride"] + r for t in range(tiles)] for r in range(operation["rows"])]
    for row in places:
        fresh = draw(rng, n * tiles)
        for t, place in enumerate(row):
            accumulators[place] = fresh[t * n :][:n]
    for r, row in enumerate(places):
        count = n * (tiles - 1) + operation["lanes"]
        values = np.array([accumulators[place] for place in row], np.uint32).reshape(1, -1)[:, :count]
        results = np.zeros(n * tiles, np.uint16)
        results[:count] = softmax(values)
        for t, lanes in enumerate(results.reshape(tiles, n).tolist()):
            first = operation["row"] + t * operation["buffer_stride"]
            if operation["format"] == Format.BFLOAT16:
                yield first + r, lanes
            else:
                wide = [half for lane in lanes for half in (0, lane)]
                yield first + 2 * r, wide[:n]
                yield first + 2 * r + 1, wide[n:]


async def operations(ports, rng, *, config, count, widest, grants, draw=sums, counts=(1, 1, 2, 3)):
    """Simulates `count` operations on rows from `draw`. Each operation is offered as early as possible.

    The buffer grants with probability `grants` per cycle. Returns the numbers of cycles, elements and vectors.
    """
    n, layout = config.n, activate_layout(config)
    accumulators = [[0] * n for _ in range(config.accumulator_depth)]
    elements = vectors = 0
    start = ports.cycle
    due, read, held = [], None, False
    for operation in (random_operation(rng, config, widest, counts) for _ in range(count)):
        due = list(filled(rng, operation, accumulators, draw))
        elements += operation["rows"] * (n * (operation["rows1"] - 1) + operation["lanes"])
        vectors += len(due)
        ports.set(port__op__valid=1, port__op__payload=pack(layout, **operation))
        ended = False
        while not ended:
            grant = int(rng.random() < grants)
            ports.set(buffer__grant=grant)
            if read is not None:
                ports.set(sums__data=accumulators[read])
            await ports.settle()
            write, ended = ports.get("buffer__write"), ports.get("port__done")
            if write:
                assert due, f"cycle {ports.cycle}: a vector too many"
                found = ports.get("buffer__row"), ports.lanes("buffer__vector", n)
                assert found == due[0], f"cycle {ports.cycle}: {operation} wrote {found}, not {due[0]}"
            else:
                assert not held, f"cycle {ports.cycle}: a vector went away before it was granted"
            assert ended == (not due) == ports.get("port__op__ready"), f"{ports.cycle}: done is {ended}, {len(due)} vectors due"
            assert not ended or ports.get("port__done_slot") == operation["tag"]["slot"]
            held = write and not grant
            if write and grant:
                due.pop(0)
            if ports.get("sums__read"):
                read = ports.get("sums__row")
            await ports.tick()
    ports.set(port__op__valid=0)
    for _ in range(40):
        await ports.settle()
        assert not ports.get("buffer__write") and not ports.get("port__done")
        await ports.tick()
    return ports.cycle - 40 - start, elements, vectors


async def runs(ports, rng, *, count, widest, **sizes):
    """Tests the unit at full throughput, then with stalls, and with a reset during an operation. Returns the number of
    elements."""
    config = Config(**sizes)
    elements = 0
    for grants in (1, 0.5, 0.1):
        operation = random_operation(rng, config, widest)
        ports.set(port__op__valid=1, port__op__payload=pack(activate_layout(config), **operation), buffer__grant=1)
        for _ in range(rng.randrange(1, 90)):
            await ports.settle()
            await ports.tick()
        ports.set(port__op__valid=0)
        await ports.reset()
        elements += (await operations(ports, rng, config=config, count=count, widest=widest, grants=grants))[1]
    return elements


@cocotb.test()
async def random_operations(dut):
    job = arguments()
    config = Config(**{name: value for name, value in job.items() if name not in ("count", "widest")})
    component = softmax_unit(n=config.n, activate=activate_layout(config), lanes=config.softmax_lanes)
    report({"elements": await play(dut, component, runs, **job)})
