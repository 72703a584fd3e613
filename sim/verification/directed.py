"""Directed jobs, which reach points that random programs rarely reach: long loops and transfers, full queues, wide fields."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import TABLE_WORDS, Format, FunctionCode, Opcode, Region, RingMode, records

from .events import expected_events
from .programs import LOOP_BITS, op, whole_table

__all__ = ["Directed", "directed_jobs"]

#: Iterations of the longest loops. Higher bits of their counters are waived.
_LOOP = (1 << LOOP_BITS) - 1
#: Beats in each direction of the longest job.
_BEATS = (1 << 16) + 4096
_PAIRS = 40
#: bfloat16 1 and -1.
_PLUS, _MINUS = 0x3F80, 0xBF80
#: Instructions of one unit that follow each other: more than are in flight.
_BLOCKED = 9
#: Tiles of the largest LOAD_WEIGHTS.
_TILES = (1 << 16) - 1
#: Entries of a function table with the most negative slope, and the number where it changes the value most.
_STEEP = {"INPUT": np.array([0x3F80, 0x8800] * 2, "<u2").tobytes(), "SCRATCH": np.array([0x3FFFFFFF] * 2, "<u4").tobytes()}
_ZERO, _ONES, _ALTERNATING = (np.array(pair, "<f4").tobytes() for pair in ((0, 0), (1, 1), (1, -1)))
#: Biases of each size and infinities, and near 2 or -2, in rows of four.
_SIZES = [2.0**power for power in range(-125, 128, 17)]
_SPREAD = [sign * 1.75 * size for index, size in enumerate(_SIZES) for sign in (1, -1, 1, np.inf if index % 5 == 4 else 0.5)]
_SIGNS = [(1, -1, 1, 1), (1, -1, 1, 1), (1, 1, 1, 1)]
_NEAR_TWO = [sign * (2 - part / 8) for part, signs in zip(np.random.default_rng(3).random(3), _SIGNS) for sign in signs]
#: Biases of UPDATE: near 1, then the largest binary32 and bfloat16. Its momenta are 1 and the largest bfloat16.
_NEAR_ONE = [*(1 + 2.0**-bits for bits in range(8, 24)), *[2.0**128 - 2**104] * 4, *[2.0**128 - 2**120] * 4]
_NEAR_ONE += [1] * 16 + [2.0**128 - 2**120] * 8


@dataclass(frozen=True)
class Directed:
    """A job with a given part.

    `kind` : as in :data:`.jobs.KINDS`. `body` : function from a :class:`.Hazards` to instructions, which replace the random ones;
    None keeps them. `silent` : region without responses. `data` : bytes that a region repeats, by its name; other regions are
    random. `wide` : opcode of the refused word, whose fields have their largest values. `latency` : cycles of the memory.
    `sizes` : least bytes of regions, by name. `spoil` : region that is unusable, and whether it is outside the bus or misaligned.
    """

    kind: str
    body: Callable | None = None
    silent: str | None = None
    data: dict = field(default_factory=dict)
    wide: Opcode | None = None
    latency: int = 1
    sizes: dict = field(default_factory=dict)
    spoil: tuple = ()

    def contents(self, name, size):
        """Returns the bytes of a region, or None if they are random."""
        data = self.data.get(name)
        return (data * -(-size // len(data)))[:size] if data else None


def _results(h, *without):
    """Yields (opcode, record) of the activation unit's instructions."""
    for opcode, record in h.records.items():
        if record.unit is Unit.ACTIVATE and opcode not in (Opcode.LOAD_TABLE, *without):
            yield opcode, record


def _flat(record, **counts):
    """Returns fields of an instruction with one iteration of each loop but `counts`, over the same rows."""
    strides = {stride: 0 for span in record.spans for _, stride in span.loops} | {
        span.step: 0 for span in record.spans if span.step in record.widths
    }
    return strides | dict.fromkeys(record.counts, 1) | counts


def _longest(h, opcode, record, count):
    """Returns the instruction with the most iterations of a loop that fit, and the same one with one iteration."""
    most = min(_LOOP, (1 << record.widths[count]) - 1)
    while (fields := h.draw(opcode, **_flat(record, **{count: most}))) is None:
        most >>= 1
    return [op(opcode, **fields), op(opcode, **fields | {count: 1})]


def long_loops(h):
    """Each loop of the activation unit at its longest, except SOFTMAX and NORMALIZE, whose time depends on the numbers."""
    loops = [(opcode, record, count) for opcode, record in _results(h) if "tiles" not in record.counts for count in record.counts]
    some = [h.draw(opcode, rows=48, tiles=1) for opcode, record in _results(h) if "tiles" in record.counts]
    return [*(one for loop in loops for one in _longest(h, *loop)), *(op(Opcode.SOFTMAX, **one) for one in some[:1] if one)]


def long_rows(h):
    """SOFTMAX of many rows and of a long row of zeros, whose terms are all 1. NORMALIZE of a row whose squares are all 1."""
    program = [op(Opcode.SOFTMAX, rows=h.config.accumulator_depth, tiles=1, lanes=h.config.n)]
    row = dict(rows=1, tiles=_LOOP, lanes=h.config.n, acc_stride=0, buffer_stride=0, acc=0)
    softmax = h.draw(Opcode.SOFTMAX, **row)
    program += [op(Opcode.SOFTMAX, **softmax), op(Opcode.SOFTMAX, **softmax | {"tiles": 1})]
    if Opcode.NORMALIZE in h.records:
        program += [
            op(Opcode.LOAD_BIAS, region=Region.SCRATCH, rows=1),
            op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1),
            op(Opcode.MATMUL, start=1, rows0=1, rows1=1, tiles0=1, tiles1=1),
            op(Opcode.NORMALIZE, **h.draw(Opcode.NORMALIZE, **row)),
        ]
    return program


def _sums(rows):
    """Returns instructions that set sums to biases from SCRATCH. Region INPUT is 0."""
    row = dict(rows0=rows, rows1=1, tiles0=1, tiles1=1)
    return [
        op(Opcode.LOAD, region=Region.INPUT, rows=1),
        op(Opcode.LOAD_BIAS, region=Region.SCRATCH, rows=rows),
        op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1),
        op(Opcode.MATMUL, start=1, bias_rows=1, **row),
    ]


def _softmax_lanes(h, rows, tiles, **given):
    """Returns instructions of the softmax lanes: SOFTMAX, and the kinds of NORMALIZE, with results that take two vectors."""
    fields = dict(rows=rows, tiles=tiles, lanes=h.config.n - 1, acc=0, acc_stride=0, buffer_stride=0) | given
    kinds = [{"centred": kind & 1, "root": kind >> 1} for kind in range(4)] if Opcode.NORMALIZE in h.records else []
    factors = [dict(factor=exponent << 16, epsilon=110 << 16) for exponent in (127, 1, 254, 90)]
    chosen = [(Opcode.SOFTMAX, {}), *((Opcode.NORMALIZE, kind | factor) for kind, factor in zip(kinds, factors))]
    return [op(opcode, format=Format.BINARY32, **fields, **kind) for opcode, kind in chosen]


def spread_rows(h):
    """Rows of numbers of each size."""
    rows = len(_SPREAD) // 4
    return [*_sums(rows), *_softmax_lanes(h, rows, 1), *_softmax_lanes(h, rows, 1, lanes=1), *_overwritten(h, rows)]


def full_lanes(h):
    """Many rows whose results take twice as long as their sums, and rows that fill the queues of the softmax lanes."""
    half = h.config.unified_buffer_depth // 2
    beside = op(Opcode.LOAD, region=Region.INPUT, rows=half, buffer=half)  # loads have priority over results
    return [*_sums(16), beside, *_softmax_lanes(h, 16, 16), *_softmax_lanes(h, 3, 256), *_overwritten(h, 16)]


def large_squares(h):
    """Long rows whose squares are large."""
    row = dict(lanes=h.config.n, rows=1, acc_stride=0, buffer_stride=0, factor=127 << 16)
    sizes = enumerate((_LOOP, _LOOP, _LOOP, 1))
    return [*_sums(4), *(op(Opcode.NORMALIZE, acc=acc, tiles=tiles, centred=acc & 1, **row) for acc, tiles in sizes)]


def _overwritten(h, rows):
    h.program = []
    h.store_and_load(0, 2 * rows)
    return h.program


def near_updates(h):
    """UPDATEs whose sums cancel in 8 to 23 bits, or overflow."""
    factors = [(_MINUS, _MINUS), (0, _MINUS), (_PLUS, _PLUS), (0, _PLUS)]
    return [*_sums(12), *(op(Opcode.UPDATE, rows=6, momentum=momentum, rate=rate) for momentum, rate in factors)]


def tables(h):
    """Reloads of the first and the last words of the function table, before and after instructions that use it."""
    program = list(whole_table(h.config, False, h.sizes))
    rows, last = TABLE_WORDS // h.config.n, h.config.unified_buffer_depth
    for number in range(24):
        place = ({"word": 0, "buffer": 0}, {"word": (rows - 1) * h.config.n, "buffer": last - 1})[number % 2]
        program.append(op(Opcode.ACTIVATE, **h.draw(Opcode.ACTIVATE, function=FunctionCode.TABLE)))
        program += [op(Opcode.LOAD_TABLE, **h.draw(Opcode.LOAD_TABLE, rows=1) | place)] * (1 + number % 2)
    return program


def steep_table(h):
    """A value of the function table whose slope turns its sign."""
    return [
        *whole_table(h.config, False, h.sizes),
        op(Opcode.LOAD, region=Region.OUTPUT, rows=1),
        op(Opcode.LOAD_BIAS, region=Region.SCRATCH, rows=1),
        op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1),
        op(Opcode.MATMUL, start=1, rows0=1, rows1=1, tiles0=1, tiles1=1),
        op(Opcode.ACTIVATE, function=FunctionCode.TABLE, rows=1, lanes=h.config.n, buffer=1),
    ]


def long_transfers(h):
    """Loads of one half of the buffer beside stores of the other half."""
    half = h.config.unified_buffer_depth // 2
    pair = [op(Opcode.LOAD, region=Region.INPUT, rows=half), op(Opcode.STORE, region=Region.OUTPUT, rows=half, buffer=half)]
    return pair * min(_PAIRS, -(-_BEATS // (half * h.config.beats_per_vector)))


def wide_results(h):
    """Results in binary32. Their halves must not be used as numbers, so they are stored and overwritten."""
    h.program = []
    for opcode, record in _results(h):
        buffers = [span for span in record.spans_of("buffer") if span.use == "w"]
        if "format" not in record.widths or not buffers:
            continue
        for _ in range(3):
            small = {name: 1 + h.below(3) for name in record.counts} | {"format": Format.BINARY32}
            strides = {name: h.below(5) for name in record.widths if name.endswith(("_stride", "_step"))}
            if fields := h.draw(opcode, **strides | small):
                h.program.append(op(opcode, **fields))
                h.store_and_load(fields["buffer"], buffers[0].length(fields))
    return h.program


def queues(h):
    """Many passes of one row. Then results of one unit that wait together for a long MATMUL, and begin together."""
    half = h.config.accumulator_depth // 2
    passes = dict(start=1, keep=1, rows0=1, rows1=1, tiles0=1, tiles1=half, tiles1_stride=1, tiles1_acc_stride=1)
    program = [op(Opcode.MATMUL, **passes, acc=acc) for acc in (0, 1, half)]
    for opcode, record in _results(h):
        for _ in range(2):
            fields = [h.draw(opcode, **_flat(record, acc=0)) for _ in range(_BLOCKED)]
            program.append(op(Opcode.MATMUL, start=1, keep=1, rows0=half, rows0_stride=1, rows1=1, tiles0=1, tiles1=1))
            program += [op(opcode, **one) for one in fields if one]
    return program


def indices(h):
    """Indices of the largest windows, with the maximum near their ends. The sums are 0, except one."""
    window = (1 << h.records[Opcode.POOL].widths["window0"]) - 1
    row = min(window, h.config.accumulator_depth // 2)
    program = [
        op(Opcode.LOAD_BIAS, region=Region.SCRATCH, rows=1),
        op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1),
        op(Opcode.MATMUL, start=1, acc=row, rows0=1, rows1=1, tiles0=1, tiles1=1),
    ]
    for place in (row - 1, 3):
        sizes = dict(rows0=1, rows1=1, lanes=h.config.n, window0=window, window1=place + 1, window1_stride=1)
        program.append(op(Opcode.POOL, format=Format.INDEX, acc=row - place, **sizes))
    return [*program, op(Opcode.LOAD, region=Region.INPUT, rows=1)]


def _loads(h, opcode, *rows):
    return [op(opcode, region=Region.INPUT, rows=count) for count in rows]


def long_queues(h):
    """Loads and weights of three lengths in turn, so that each place of a queue of eight takes each length."""
    depth, tiles = min(4096, h.config.unified_buffer_depth), h.config.weight_fifo_depth
    program = _loads(h, Opcode.LOAD, *[depth, depth - 1, 1] * 8)
    if h.config.training:
        program += [op(Opcode.LOAD_BIAS, region=Region.INPUT, rows=1, half=half) for half in (1, 2, 0) * 8]
    for count in [tiles - 4, tiles, 1] * 8:
        stride = int(count <= h.config.accumulator_depth)
        fields = dict(start=1, rows0=1, rows1=1, tiles0=1, tiles1=count, tiles1_acc_stride=stride)
        program += [*_loads(h, Opcode.LOAD_WEIGHTS, count), op(Opcode.MATMUL, **fields)]
    return program


def blocked_loads(h):
    depth = h.config.unified_buffer_depth
    return _loads(h, Opcode.LOAD, 1, depth - 1, *[min(depth, 512)] * _BLOCKED)  # ends in time with a deep buffer


def blocked_reads(h):
    """Loads and weights that fill the read manager."""
    depth, tiles = h.config.unified_buffer_depth, h.config.weight_fifo_depth
    first = [*_loads(h, Opcode.LOAD, depth), *_loads(h, Opcode.LOAD_WEIGHTS, tiles, tiles)]
    return [*first, *_loads(h, Opcode.LOAD, *[1] * (4 * _BLOCKED))]  # instructions are fetched meanwhile


def many_reads(h):
    """Transfers that cross the boundaries of bursts at one of their offsets: 32 bursts are then in flight."""
    rows, half = {Opcode.LOAD: [2, 2, 2, 18, 18, 18], Opcode.LOAD_WEIGHTS: [h.config.weight_fifo_depth // 2] * 2}, []
    for beat in range(16):
        place = dict(region=Region.INPUT, offset=beat * h.config.bus_bytes)
        half += [op(opcode, rows=count, **place) for opcode, counts in rows.items() for count in counts]
        half.append(op(Opcode.MATMUL, start=1, rows0=1, rows1=1, tiles0=1, tiles1=2 * rows[Opcode.LOAD_WEIGHTS][0]))
    return half


def short_loads(h):
    return _loads(h, Opcode.LOAD, *[1] * _BLOCKED)


def blocked_weights(before):
    """Returns a function for the most tiles in place `before` of a queue of eight. They need longer than the timeout."""

    def body(h):
        return _loads(h, Opcode.LOAD_WEIGHTS, *[1] * before, _TILES, *[1] * _BLOCKED)

    return body


def short_weights(h):
    """Single tiles, more than fit."""
    return _loads(h, Opcode.LOAD_WEIGHTS, *[1] * (h.config.weight_fifo_depth + _BLOCKED))


def blocked_stores(h):
    return [op(Opcode.STORE, region=Region.OUTPUT, rows=h.config.unified_buffer_depth)] * _BLOCKED


def blocked_matmuls(h):
    """MATMULs without weights, before instructions of another unit that wait for them."""
    return [op(Opcode.MATMUL, start=1, rows0=8, rows0_stride=1, rows1=1, tiles0=1, tiles1=1)] * _BLOCKED


def blocked_rings(h):
    """RINGs that wait for a MATMUL without weights, by way of an ACTIVATE."""
    ring = op(Opcode.RING, mode=RingMode.ALL_REDUCE, buffer=0, result=0, segment=1, stride=1, rounds=1)
    return [*blocked_matmuls(h)[:1], op(Opcode.ACTIVATE, rows=1, lanes=1), *[ring] * _BLOCKED]


def short_rings(h):
    """RINGs of some rounds with short segments, beside results that have priority at the buffer."""
    rows, ring = h.config.accumulator_depth, dict(buffer=0, result=0, segment=4, stride=16, rounds=4)
    results = op(Opcode.ACTIVATE, rows=rows, lanes=1, buffer=h.config.unified_buffer_depth - rows)
    return [results, *[op(Opcode.RING, mode=RingMode.ALL_REDUCE, **ring)] * _BLOCKED]


def long_rings(h):
    """RINGs with the most vectors of the buffer: many rounds, long segments, wide strides."""
    program, depth = [], h.config.unified_buffer_depth
    most = depth // h.cores
    # A vector takes a whole way around the ring if segments are short.
    for segment, rounds in ((h.config.ring_depth, most // h.config.ring_depth), (1, most if h.cores == 1 else 32)):
        for mode in RingMode:
            own = segment * rounds if mode is RingMode.ALL_REDUCE else segment * (rounds // 2)
            around = h.cores * own
            written = own if mode is RingMode.REDUCE_SCATTER else around
            if own == 0 or (mode is not RingMode.ALL_REDUCE and own + around > depth):
                continue
            result = 0 if mode is RingMode.ALL_REDUCE else depth - written
            fields = dict(segment=segment, stride=own, rounds=own // segment, buffer=0, result=result)
            program.append(op(Opcode.RING, mode=mode, **fields))
            if h.cores > 1 and mode is not RingMode.ALL_GATHER:
                h.program = []
                h.store_and_load(result, written)
                program += h.program
    return program


def directed_jobs(config, cores=1):
    """Returns the directed jobs for a core, or for a ring of several cores."""
    if cores > 1:
        others = [Directed("other rings", short_rings), Directed("bad ring"), Directed("other rings")]
        return [Directed("clean", long_rings), *others]
    spread, near_two, near = (np.array(values, "<f4").tobytes() for values in (_SPREAD, _NEAR_TWO, _NEAR_ONE))
    tiles = {"data": {"INPUT": _ZERO}, "sizes": {"INPUT": 2 * config.n**2 * _TILES}}
    jobs = [
        Directed("clean", long_loops),
        Directed("clean", long_transfers),
        Directed("dead bus", blocked_loads, silent="INPUT"),
        Directed("dead bus", blocked_reads, silent="INPUT"),
        Directed("dead bus", short_loads, silent="INPUT"),
        Directed("dead bus", blocked_weights(0), silent="INPUT", **tiles),
        *(Directed("dead bus", blocked_weights(before), **tiles) for before in range(8)),
        Directed("dead bus", short_weights, silent="INPUT"),
        Directed("dead bus", short_weights),
        Directed("dead bus", blocked_stores, silent="OUTPUT"),
        Directed("dead bus", blocked_matmuls),
        Directed("restart", blocked_loads, latency=400),
        Directed("restart", blocked_loads, silent="INPUT"),
        Directed("clean", wide_results),
        Directed("clean", queues),
        Directed("clean", long_queues),
        Directed("clean", many_reads, latency=400),
        *(Directed("refused", wide=opcode) for opcode in records(config) if opcode is not Opcode.HALT),
        *(Directed("bad region", spoil=(region.name, outside)) for region in Region for outside in (True, False)),
        *(Directed(kind) for kind in ("reset", "abort", "restart", "bad region") for _ in range(3)),
        # One for each event that names an instruction; the session is steered to another one each time.
        *(Directed("refused") for event in expected_events(config) if event[1] == "after"),
        *(Directed("bus error") for event in expected_events(config) if event[1] == "of"),
        *(Directed("bus error") for _ in range(8)),
    ]
    if config.table_lanes:
        jobs += [Directed("clean", tables), Directed("clean", steep_table, data=_STEEP | {"OUTPUT": _ZERO})]
    if config.softmax_lanes > 1:
        jobs += [Directed("clean", body, data={"INPUT": _ZERO, "SCRATCH": spread}) for body in (spread_rows, full_lanes)]
    if config.normalize:
        jobs.append(Directed("clean", large_squares, data={"INPUT": _ZERO, "SCRATCH": near_two}))
    if config.update_lanes:
        jobs.append(Directed("clean", near_updates, data={"INPUT": _ZERO, "SCRATCH": near}))
    if config.softmax:
        jobs.append(Directed("clean", long_rows, data={"INPUT": _ZERO, "SCRATCH": _ALTERNATING}))
    if config.training:
        jobs.append(Directed("clean", indices, data={"INPUT": _ZERO, "SCRATCH": _ONES}))
    if config.ring:
        jobs += [Directed("dead bus", blocked_rings), Directed("clean", long_rings), Directed("bad ring")]
    return jobs
