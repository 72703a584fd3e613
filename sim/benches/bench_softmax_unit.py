"""Bench of the unit of SOFTMAX and NORMALIZE against their golden definitions: random operations, rows with all kinds of numbers,
and stalls of the buffer port."""

import itertools

import cocotb
import numpy as np

from amaranth_tpu.hw.activation.result_units import softmax_unit
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Format
from amaranth_tpu.hw.spec.normalization import upper_bits
from amaranth_tpu.hw.spec.operations import activate_layout

from ..golden import arithmetic as golden
from ..golden.normalization import normalize
from ..golden.softmax import softmax
from ..rtl.bench_side import arguments, report
from ..rtl.number_classes import CLASSES, numbers
from ..rtl.ports import pack, play
from .activation_operations import idle, tag

#: Kinds of rows, which :func:`row_of` draws.
KINDS = ("close", "equal", "neighbours", "classes", "hidden", "small terms", "least", "tiny", "undefined")


def row_of(rng, kind, count):
    """Returns random sums of one row, as bits.

    close : a spread and an offset of any size. equal : all are one number. neighbours : a few units in the last place apart, with
    a maximum of any size. classes : numbers of all classes without NaN. hidden : many are minus infinity or a zero. small terms :
    exponentials near the last places of the sum, and far below. least : results near the least normal number. tiny : zeros and
    numbers near the least normal number. undefined : a NaN or an infinity.
    """
    draw = np.random.default_rng(rng.getrandbits(64))
    finite = [name for name in CLASSES if name not in ("nan", "infinity", "any")]
    one, place = numbers(draw, (), 0.8, classes=finite), rng.choice((0, count - 1, rng.randrange(count)))
    row = (draw.normal(0, 3, count)).astype(np.float32).view(np.uint32)
    if kind == "close":
        spread, offset = rng.choice((1e-3, 1, 10, 30, 90, 1e4, 1e37)), rng.choice((0, 0, 1)) * rng.choice((-1, 1))
        row = (offset * 2.0 ** rng.randrange(-4, rng.choice((13, 26, 126))) + draw.normal(0, spread, count)).astype(np.float32)
    elif kind == "equal":
        row[:] = one
    elif kind == "neighbours":
        # A maximum of 2^12 or more needs a shift, and one of 2^44 or more a shift by 32 places or more.
        wide = rng.choice((139 + rng.randrange(115), *(171 + rng.randrange(12) for _ in range(4))))
        base = rng.choice((0x3F800000, *[wide << 23] * 4, int(one) & 0x7EFFFFFF)) | rng.getrandbits(1) << 31
        row = np.maximum(base + draw.integers(-6, 3, count), 0).astype(np.uint32)
    elif kind == "classes":
        row = numbers(draw, count, 0.7, classes=finite)
    elif kind == "hidden":
        row[draw.random(count) < 0.7] = rng.choice((0xFF800000, 0x80000000))
        row[place] = rng.choice((0, int(one)))
    elif kind == "small terms":
        binades = rng.choice((8, 16, 31, 32, 33, 34, 63, 64, 96)) + draw.uniform(-2, 2, count)
        row = (-np.log(2) * binades).astype(np.float32).view(np.uint32)
        row[place] = 0
    elif kind == "least":
        return least_results(rng, count)
    elif kind == "tiny":
        row = (row.view(np.float32) * np.float32(2.0 ** -rng.randrange(95, 127))).view(np.uint32)
        row[draw.random(count) < 0.4] = rng.choice((0, 0x80000000))
    elif kind == "undefined":
        row[place] = numbers(draw, (), 1, classes=("nan", "infinity"))
    return golden.add(row.view(np.uint32), np.uint32(0x80000000)).tolist()


def rows_of_all_kinds(rng, kinds=KINDS):
    """Returns a function `(count)` that draws rows of all kinds in turn, in a random order."""
    order = itertools.cycle(rng.sample(kinds, len(kinds)))
    return lambda count: row_of(rng, next(order), count)


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


def normalization(rng, config, tiles):
    """Returns the fields of NORMALIZE, for some operations, with constants that are usual, extreme or random."""
    if rng.random() < 0.2:
        return {}
    factor = rng.choice((upper_bits((tiles * config.n) ** 0.5), 0xFEFFFF, 0x010000, rng.getrandbits(24)))
    epsilon = rng.choice((0, rng.randrange(1 << 16), upper_bits(1e-5), upper_bits(rng.random()), rng.getrandbits(24)))
    kind = {"centred": rng.getrandbits(1), "root": int(rng.random() < 0.3)}
    return {"normalize": 1, **kind, "factor": factor, "epsilon": epsilon}


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
        **(normalization(rng, config, tiles) if config.normalize else {}),
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
        fresh = draw(n * tiles)
        for t, place in enumerate(row):
            accumulators[place] = fresh[t * n :][:n]
    for r, row in enumerate(places):
        count = n * (tiles - 1) + operation["lanes"]
        values = np.array([accumulators[place] for place in row], np.uint32).reshape(1, -1)[:, :count]
        results = np.zeros(n * tiles, np.uint16)
        if operation.get("normalize"):
            results[:count] = normalize(values, **{name: operation[name] for name in ("centred", "root", "factor", "epsilon")})
        else:
            results[:count] = softmax(values)
        for t, lanes in enumerate(results.reshape(tiles, n).tolist()):
            first = operation["row"] + t * operation["buffer_stride"]
            if operation["format"] == Format.BFLOAT16:
                yield first + r, lanes
            else:
                wide = [half for lane in lanes for half in (0, lane)]
                yield first + 2 * r, wide[:n]
                yield first + 2 * r + 1, wide[n:]


async def operations(ports, rng, *, config, count, widest, grants, kinds=KINDS, counts=(1, 1, 2, 3)):
    """Simulates `count` operations on rows of `kinds`. Each operation is offered as early as possible.

    The buffer grants with probability `grants` per cycle. Returns the numbers of cycles, elements and vectors.
    """
    n, layout = config.n, activate_layout(config)
    accumulators = [[0] * n for _ in range(config.accumulator_depth)]
    elements, vectors, draw = 0, 0, rows_of_all_kinds(rng, kinds)
    start = ports.cycle
    due, read, held = [], None, False
    for operation in (random_operation(rng, config, widest, counts) for _ in range(count)):
        due = list(filled(rng, operation, accumulators, draw))
        size = operation["rows"] * (n * (operation["rows1"] - 1) + operation["lanes"])
        elements, vectors = elements + size, vectors + len(due)
        ports.limit = ports.cycle + 500 * operation["rows"] + 100 * size
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
