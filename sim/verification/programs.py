"""Random valid programs with many hazards, generated from the instructions' records."""

import functools

import numpy as np

from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import (
    TABLE_WORDS,
    Condition,
    Format,
    FunctionCode,
    Opcode,
    Region,
    RingMode,
    UpdatePart,
    exists,
    records,
    space_depth,
)

__all__ = ["LOOP_BITS", "SIZES", "Hazards", "initialisation", "revelation"]

#: Bytes of regions INPUT, OUTPUT and SCRATCH.
SIZES = {"INPUT": 1024, "OUTPUT": 2048, "SCRATCH": 512}
#: Loops of more than one iteration take fewer than 2^LOOP_BITS.
LOOP_BITS = 13


def op(opcode, **fields):
    return opcode, fields


def initialisation(config, sizes=SIZES):
    """Returns instructions that write every row of the buffer, the accumulators, the biases and the update memory, which are
    undefined after power-up."""
    n, depth = config.n, config.unified_buffer_depth
    rows = min(depth, sizes["INPUT"] // (2 * n))
    assert config.accumulator_depth <= rows == depth
    half = config.bias_depth // 2
    updates = [op(Opcode.UPDATE, rows=half, update=first) for first in (0, half)] if config.update_lanes else []
    return [
        op(Opcode.LOAD, region=Region.INPUT, rows=rows),
        op(Opcode.LOAD_BIAS, region=Region.INPUT, rows=config.bias_depth),
        op(Opcode.LOAD_WEIGHTS, region=Region.INPUT, rows=1),
        op(Opcode.MATMUL, start=1, rows0=config.accumulator_depth, rows0_stride=1, rows1=1, tiles0=1, tiles1=1),
        *updates,
    ]


def whole_table(config, known, sizes=SIZES):
    """Yields instructions that fill the function table, which is undefined after power-up but kept between runs. If the table's
    contents are `known`, fills only its last rows, which sets its first entry."""
    n = config.n
    rows = min(config.unified_buffer_depth, sizes["INPUT"] // (2 * n), TABLE_WORDS // n)
    for word in range(TABLE_WORDS - rows * n if known else 0, TABLE_WORDS, rows * n):
        offset = word // (rows * n) % (sizes["INPUT"] // (2 * n * rows)) * 2 * n * rows
        yield op(Opcode.LOAD, region=Region.INPUT, rows=rows, offset=offset)
        yield op(Opcode.LOAD_TABLE, rows=rows, word=word, first=120, linear_low=1, linear_high=2)


def revelation(config, sizes=SIZES):
    """Returns instructions that store every row of the buffer, the accumulators, the update memory and (through a product) the
    biases in OUTPUT."""
    n, depth, sums = config.n, config.unified_buffer_depth, config.accumulator_depth
    whole, updates = dict(format=Format.BINARY32, lanes=n), config.update_depth if config.update_lanes else 0
    first = depth + 2 * sums + 2 * config.bias_depth
    assert 2 * sums <= depth and 2 * n * (first + len(UpdatePart) * updates) <= sizes["OUTPUT"]
    places = [(part, 2 * n * (first + index * updates)) for index, part in enumerate(UpdatePart if updates else ())]
    return [
        *(op(Opcode.STORE_UPDATE, region=Region.OUTPUT, offset=place, rows=updates, part=part) for part, place in places),
        op(Opcode.STORE, region=Region.OUTPUT, rows=depth),
        op(Opcode.ACTIVATE, rows=sums, **whole),
        op(Opcode.STORE, region=Region.OUTPUT, offset=2 * n * depth, rows=2 * sums),
        op(Opcode.LOAD, region=Region.INPUT, rows=1),
        op(Opcode.MATMUL, start=1, keep=1, rows0=1, rows1=1, tiles0=config.bias_depth, tiles0_acc_stride=1, tiles1=1),
        op(Opcode.ACTIVATE, rows=config.bias_depth, **whole),
        op(Opcode.STORE, region=Region.OUTPUT, offset=2 * n * (depth + 2 * sums), rows=2 * config.bias_depth),
        op(Opcode.HALT),
    ]


#: Fields that select an operation rather than an address or a size.
_KINDS = ("format", "function", "condition")

#: Weights with which instructions of the activation unit are drawn; 3 for the others.
_RESULT_WEIGHTS = {Opcode.ACTIVATE: 6, Opcode.POOL: 4, Opcode.LOAD_TABLE: 1}


class Hazards:
    """A generator of random valid programs with many dependencies: every instruction may access the rows of every other."""

    def __init__(self, rng, config, known_table=False, sizes=SIZES):
        self.rng, self.config, self.tiles, self.program, self.known_table = rng, config, 0, [], known_table
        self.cores, self.sizes = 1, sizes  # cores of the ring; bytes of the regions
        self.long = 0.0  # probability of a long loop, of a long transfer, and of many instructions of one kind
        self.longest = False  # a loop of any length may follow
        # {opcode: bits of long loops, and of the longest ones} where these take too long. In a row with a maximum of 2^127, an
        # element of SOFTMAX takes 230 cycles on one lane, and 57 on two.
        softmax = (5, 7) if config.softmax_lanes == 1 else (7, 10)
        self.long_bits = {Opcode.SOFTMAX: softmax, Opcode.NORMALIZE: (9, 12)}
        self.records = records(config)
        self.functions = [function for function in FunctionCode if exists(config, function)]
        self.has_table = not config.table_lanes

    def below(self, bound):
        return int(self.rng.integers(0, bound))

    def chance(self, probability):
        return bool(self.rng.random() < probability)

    def host(self, region, row_bytes, most=6, longest=0):
        """Returns `(region, offset, rows)` of a random range of rows of `row_bytes` bytes in a region."""
        size, bus = self.sizes[region.name], self.config.bus_bytes
        most = longest if longest and self.long and self.chance(self.long) else most
        rows = 1 + self.below(min(most, size // row_bytes))
        return dict(region=region, rows=rows, offset=self.below((size - rows * row_bytes) // bus + 1) * bus)

    def rows(self, depth, rows):
        return self.below(depth - rows + 1)

    def load(self, region=None):
        region = region or (Region.SCRATCH if self.chance(0.6) else Region.INPUT)
        n, turns, depth = self.config.n, int(self.config.transpose and self.chance(0.5)), self.config.unified_buffer_depth
        sizes = (2 * n * n, 3, depth // n) if turns else (2 * n, 6, depth)
        fields = self.host(region, *sizes) | {"transpose": turns}
        fields["rows"] *= n if turns else 1
        self.program.append(op(Opcode.LOAD, **fields, buffer=self.rows(depth, fields["rows"])))

    def load_bias(self):
        n, depth, half = self.config.n, self.config.bias_depth, self.below(3) if self.config.training else 0
        fields = self.host(Region.SCRATCH if self.chance(0.6) else Region.INPUT, 2 * n if half else 4 * n, depth)
        self.program.append(op(Opcode.LOAD_BIAS, **fields, half=half, bias=self.rows(depth, fields["rows"])))

    def load_weights(self, tiles=None):
        n = self.config.n
        if tiles is None and self.tiles + 3 > self.config.weight_fifo_depth:
            return
        region = Region.SCRATCH if self.chance(0.6) else Region.INPUT
        while tiles is None or tiles > 0:
            room = self.config.weight_fifo_depth - self.tiles
            most = tiles or (room if room > 3 and self.chance(self.long) else 3)
            fields = self.host(region, 2 * n * n, min(most, room) if tiles is None else min(3, most))
            transpose, format_ = self.config.attention and self.below(2), self.config.weight_formats and self.below(5)
            self.program.append(op(Opcode.LOAD_WEIGHTS, **fields, transpose=int(transpose), weight_format=int(format_)))
            self.tiles += fields["rows"]
            if tiles is None:
                return
            tiles -= fields["rows"]

    def store(self):
        depth = self.config.unified_buffer_depth
        fields = self.host(Region.SCRATCH if self.chance(0.7) else Region.OUTPUT, 2 * self.config.n, longest=depth)
        self.program.append(op(Opcode.STORE, **fields, buffer=self.rows(depth, fields["rows"])))

    def store_update(self):
        """Appends a STORE_UPDATE. Halves of binary32 must not be used as numbers, so it stores to OUTPUT."""
        fields = self.host(Region.OUTPUT, 2 * self.config.n)
        place, part = self.rows(self.config.update_depth, fields["rows"]), UpdatePart(1 + self.below(len(UpdatePart)))
        self.program.append(op(Opcode.STORE_UPDATE, **fields, part=part, update=place))

    def matmul(self):
        config = self.config
        f = dict(
            start=self.below(2),
            keep=int(self.chance(0.3)),
            rows0=1 + self.below(4),
            rows1=1 + self.below(3),
            tiles0=1 + self.below(3),
            tiles1=1 + self.below(2),
        )
        f.update(
            {
                name: self.below(3)
                for name in (
                    "rows0_stride",
                    "rows1_stride",
                    "tiles0_stride",
                    "tiles1_stride",
                    "tiles0_acc_stride",
                    "tiles1_acc_stride",
                )
            }
        )
        if self.long and self.chance(self.long):
            f["rows0"] = 1 + self.below(config.accumulator_depth)
        f["tiles0"] = min(f["tiles0"], config.bias_depth)
        buffer = sum((f[name] - 1) * f[name + "_stride"] for name in ("rows0", "rows1", "tiles0", "tiles1"))
        acc = sum((f[name] - 1) * f[name + "_acc_stride"] for name in ("tiles0", "tiles1")) + f["rows0"] * f["rows1"]
        if acc > config.accumulator_depth or buffer >= config.unified_buffer_depth:
            return
        f["buffer"] = self.below(config.unified_buffer_depth - buffer)
        f["acc"] = self.rows(config.accumulator_depth, acc)
        biases = f["tiles0"]
        if config.attention and biases + f["rows0"] * f["rows1"] - 1 <= config.bias_depth:
            f["bias_rows"] = self.below(2)
            biases += (f["rows0"] * f["rows1"] - 1) * f["bias_rows"]
        f["bias"] = self.rows(config.bias_depth, biases)
        if not f["keep"]:
            needed = f["tiles0"] * f["tiles1"]
            if self.tiles < needed:
                self.load_weights(needed - self.tiles)
            self.tiles -= needed
        self.program.append(op(Opcode.MATMUL, **f))

    def draw(self, opcode, **given):
        """Returns random fields of an activation-unit instruction with bfloat16 results. `given` fixes some fields."""
        config, record = self.config, self.records[opcode]
        fields = {name: self.below(1 << width) for name, width in record.widths.items() if name not in _KINDS}
        fields |= {name: 1 + self.below(3 + (len(record.counts) == 1)) for name in record.counts}
        fields |= {name: self.below(5) for name in fields if name.endswith(("_stride", "_step"))}
        if self.chance(self.long):  # one long loop, often over the same rows
            long, (usual, most) = record.counts[self.below(len(record.counts))], self.long_bits.get(opcode, (9, LOOP_BITS))
            fields[long] = self.below(1 << self.below(1 + min(usual, record.widths[long]))) or 1
            fields |= {stride: self.below(2) for span in record.spans for count, stride in span.loops if count == long}
            if self.longest and self.chance(0.1):
                bits = min(most, record.widths[long])
                fields |= dict.fromkeys(record.counts, 1) | {long: self.below(1 << bits) or 1}
                fields |= {stride: 0 for span in record.spans for _, stride in span.loops}
                self.longest = False
        usual = {"lanes": 1 + self.below(config.n), "first": 110 + self.below(20)}
        fields |= {name: value for name, value in usual.items() if name in fields} | given
        for span in record.spans:
            places = space_depth(config, span.space) - span.length({"format": Format.BFLOAT16, **fields}) + 1
            if places <= given.get(span.base, 0):
                return None
            if span.base not in given:
                fields[span.base] = self.below(places) * (config.n if span.space == "table" else 1)
        if "function" in record.widths and "function" not in given:
            fields["function"] = self.functions[self.below(len(self.functions))]
        return fields

    def result(self, opcode):
        """Appends an instruction of the activation unit with bfloat16 results, unless none fits."""
        fields = self.draw(opcode)
        if fields:
            self.program.append(op(opcode, **fields))

    def select_by_index(self):
        """Appends a POOL that writes indices and a SELECT that uses them. Indices must not be used as numbers, so they are
        overwritten afterwards."""
        function = FunctionCode.RELU if self.chance(0.5) else FunctionCode.NONE
        pool = self.draw(Opcode.POOL, format=Format.INDEX, function=function, buffer_step=self.below(2))
        if not pool:
            return
        number = 255 if self.chance(0.1) else self.below(min(pool["window0"] * pool["window1"], 256))
        operands = dict(operand=pool["buffer"], operand_stride=pool["buffer_stride"], rows0=pool["rows0"], rows1=pool["rows1"])
        select = self.draw(Opcode.SELECT, condition=Condition.EQUAL, number=number, **operands)
        if select:
            rows = pool["rows0"] + (pool["rows1"] - 1) * pool["buffer_stride"]
            self.program += [
                op(Opcode.POOL, **pool),
                op(Opcode.SELECT, **select),
                op(Opcode.LOAD, region=Region.INPUT, rows=rows, buffer=pool["buffer"]),
            ]

    def activate_in_two(self):
        """Appends an ACTIVATE with binary32 results. Halves of binary32 must not be used as numbers, so they are stored and
        overwritten."""
        config = self.config
        rows = 1 + self.below(2)
        buffer = self.rows(config.unified_buffer_depth, 2 * rows)
        planes = config.training and self.chance(0.5)
        function = FunctionCode.RELU if self.chance(0.5) else FunctionCode.NONE
        self.program.append(
            op(
                Opcode.ACTIVATE,
                function=function if planes else self.functions[self.below(len(self.functions))],
                format=Format.PLANES if planes else Format.BINARY32,
                rows=rows,
                lanes=1 + self.below(config.n),
                acc=self.rows(config.accumulator_depth, rows),
                buffer=buffer,
            )
        )
        self.store_and_load(buffer, 2 * rows)

    def store_and_load(self, buffer, rows):
        """Appends a STORE of rows that must not be used as numbers, and a LOAD that overwrites them."""
        offset = self.below((self.sizes["OUTPUT"] - 2 * self.config.n * rows) // self.config.bus_bytes) * self.config.bus_bytes
        self.program += [
            op(Opcode.STORE, region=Region.OUTPUT, offset=offset, rows=rows, buffer=buffer),
            op(Opcode.LOAD, region=Region.INPUT, rows=rows, buffer=buffer),
        ]

    def ring(self):
        """Appends a RING, in place or with separate results. Binary32 sums must not be used as numbers, so they are overwritten
        afterwards."""
        depth, mode = self.config.unified_buffer_depth, RingMode(self.below(len(RingMode)))
        segment, rounds = 1 + self.below(min(3, self.config.ring_depth)), 1 + self.below(2)
        if self.chance(self.long):
            segment, rounds = 1 + self.below(min(16, self.config.ring_depth)), 1 + self.below(12)
        own = segment * rounds
        stride = own + self.below(2)
        around = (self.cores - 1) * stride + own
        reads = own if mode is RingMode.ALL_GATHER else around
        written = own if mode is RingMode.REDUCE_SCATTER else around
        if reads + written > depth:
            return
        if mode is RingMode.ALL_REDUCE and self.chance(0.5):
            buffer = result = self.rows(depth, around)
        elif self.chance(0.5):
            buffer = self.rows(depth - written, reads)
            result = buffer + reads + self.below(depth - written - buffer - reads + 1)
        else:
            result = self.rows(depth - reads, written)
            buffer = result + written + self.below(depth - reads - result - written + 1)
        fields = dict(mode=mode, buffer=buffer, result=result, segment=segment, stride=stride, rounds=rounds)
        self.program.append(op(Opcode.RING, **fields))
        if self.cores > 1 and mode is not RingMode.ALL_GATHER:
            self.store_and_load(result, written)

    def sync(self):
        self.program.append(op(Opcode.SYNC))

    def make(self, length, cores=1):
        self.cores = cores
        table = [] if self.has_table else whole_table(self.config, self.known_table, self.sizes)
        self.tiles, self.program = 0, [*table, *initialisation(self.config, self.sizes)]
        self.has_table, length = True, length + len(self.program) - len(initialisation(self.config, self.sizes))
        kinds = [self.load, self.load_bias, self.load_weights, self.store, self.matmul, self.activate_in_two, self.sync]
        weights = [4, 2, 2, 4, 7, 2, 0.3]
        if self.config.training:
            kinds.append(self.select_by_index)
            weights.append(2)
        if self.config.update_lanes:
            kinds.append(self.store_update)
            weights.append(2)
        if self.config.ring:
            kinds.append(self.ring)
            weights.append(3)
        for opcode, record in self.records.items():
            if record.unit is Unit.ACTIVATE:
                kinds.append(functools.partial(self.result, opcode))
                weights.append(_RESULT_WEIGHTS.get(opcode, 3))
        weights = np.array(weights)
        self.longest = bool(self.long and self.chance(0.2))
        while len(self.program) < length:
            kind = kinds[self.rng.choice(len(kinds), p=weights / weights.sum())]
            for _ in range(10 if self.long and self.chance(self.long / 3) else 1):
                kind()
        if self.tiles > self.config.weight_fifo_depth:
            raise AssertionError("the program leaves more tiles than the FIFO holds")
        return self.program + revelation(self.config, self.sizes)
