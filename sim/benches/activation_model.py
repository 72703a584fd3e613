"""A reference model of the activation unit. For each operation, it lists the vectors that the unit reads and writes, in order,
computed with the golden model."""

import numpy as np

from amaranth_tpu.hw.spec.isa import TABLE_SETTINGS, TABLE_WORDS, Format, FunctionCode, Task

from ..golden import arithmetic as golden
from ..golden.softmax import softmax
from ..golden.table_lookup import Table, lookup
from ..rtl.number_classes import numbers

__all__ = ["ActivationModel", "canonical", "largest", "sums"]


def canonical(bits):
    """Returns bit patterns of sums as the cells would produce them: zero for a subnormal, and 0x7FC00000 for any NaN."""
    return golden.add(bits, np.uint32(0x80000000))


def sums(rng, shape):
    """Returns the bits of random sums of all classes of numbers."""
    return canonical(numbers(rng, shape, 0.6))


def operands(rng, shape):
    """Returns random bfloat16 operands: numbers of all classes, half of them results of an earlier operation, and row numbers."""
    generator = np.random.default_rng(rng.getrandbits(64))
    found = np.where(generator.random(shape) < 0.5, sums(rng, shape) >> 16, numbers(rng, shape, 0.6, 16))
    return np.where(generator.random(shape) < 0.25, generator.choice([0, 1, 2, 3, 255], shape), found)


class ActivationModel:
    """The accumulators, the unified buffer and the function table of a core, changed by each operation that is modelled."""

    def __init__(self, rng, config):
        self.n = config.n
        self.sums = sums(rng, (config.accumulator_depth, config.n)).tolist()
        self.buffer = operands(rng, (config.unified_buffer_depth, config.n)).tolist()
        self.table = Table(0, 0, 0, [0] * TABLE_WORDS)

    def events(self, operation):
        """Executes an operation. Yields `(read, row, lanes)` for each vector that it reads or writes in the unified buffer, in
        order. Lanes are 16 bits each."""
        op = {"rows1": 1, "window0": 1, "window1": 1, "rows0_stride": 1, "task": Task.RESULTS, "select": 0, **operation}
        step = op.get("buffer_step", 1 if op["format"] == Format.BFLOAT16 else 2)
        if op["task"] == Task.LOAD_TABLE:
            words = list(self.table.words)
            for index in range(op["rows"]):
                row, place = op["operand"] + index, (op["word"] + index) * self.n
                words[place : place + self.n] = self.buffer[row]
                yield True, row, self.buffer[row]
            self.table = Table(words=words, **{name: op[name] for name in TABLE_SETTINGS})
            return
        if op.get("softmax"):
            yield from self.softmax_rows(op)
            return
        for r1 in range(op["rows1"]):
            for r0 in range(op["rows"]):
                window = op["acc"] + r0 * op["rows0_stride"] + r1 * op.get("rows1_stride", 0)
                rows = [
                    self.sums[window + w1 * op.get("window1_stride", 0) + w0 * op.get("window0_stride", 0)]
                    for w1 in range(op["window1"])
                    for w0 in range(op["window0"])
                ]
                values = [largest(column) for column in zip(*rows)]
                row = op["row"] + r1 * op.get("buffer_stride", 0) + r0 * step
                if op["format"] == Format.INDEX:
                    self.buffer[row] = self.numbers(op, list(zip(*rows)))
                    yield False, row, self.buffer[row]
                    continue
                if op["select"]:
                    place = op["operand"] + r1 * op["operand_stride"] + r0
                    yield True, place, self.buffer[place]
                    values = [value if is_kept(op, x) else 0 for value, x in zip(values, self.buffer[place])]
                if op["task"] == Task.MULTIPLY:
                    yield True, op["operand"] + r0, self.buffer[op["operand"] + r0]
                    values = [
                        int(golden.without_minus_zero(golden.multiply(golden.to_bfloat16(value), factor)))
                        for value, factor in zip(values, self.buffer[op["operand"] + r0])
                    ]
                for half, lanes in enumerate(self.vectors(op, values)):
                    place = row + half * (op["rows"] if op["format"] == Format.PLANES else 1)
                    self.buffer[place] = lanes
                    yield False, place, lanes

    def numbers(self, op, windows):
        """Returns, for each lane, the index in the window of the first row with the window's maximum. It is 255 if RELU makes the
        maximum 0."""
        numbers = [window.index(largest(window)) for window in windows]
        if op["function"] == FunctionCode.RELU:
            numbers = [number if int(golden.relu(largest(window))) else 255 for number, window in zip(numbers, windows)]
        return [number if c < op["lanes"] else 0 for c, number in enumerate(numbers)]

    def softmax_rows(self, op):
        for index in range(op["rows"]):
            values = [value for t in range(op["rows1"]) for value in self.sums[op["acc"] + index + t * op["rows1_stride"]]]
            pads = self.n - op["lanes"]
            results = softmax([values[: len(values) - pads]])[0].tolist() + [0] * pads
            for t in range(op["rows1"]):
                row = op["row"] + t * op["buffer_stride"] + index * (1 if op["format"] == Format.BFLOAT16 else 2)
                tile = [value << 16 for value in results[t * self.n :][: self.n]]
                for offset, lanes in enumerate(self.vectors({**op, "lanes": self.n}, tile)):
                    self.buffer[row + offset] = lanes
                    yield False, row + offset, lanes

    def vectors(self, op, values):
        """Applies the activation function of an operation to a row of results. Returns them in the operation's format: one or two
        vectors."""
        if op["function"] == FunctionCode.TABLE:
            values = [int(lookup(value, self.table)) << 16 for value in values]
        elif op["function"] == FunctionCode.RELU:
            values = [int(golden.relu(value)) for value in values]
        values = [value if c < op["lanes"] else 0 for c, value in enumerate(values)]
        if op["format"] == Format.BINARY32:
            halves = [value >> 16 * half & 0xFFFF for value in values for half in (0, 1)]
            return [halves[: self.n], halves[self.n :]]
        if op["format"] == Format.PLANES:
            return [[value >> 16 for value in values], [value & 0xFFFF for value in values]]
        return [[int(golden.to_bfloat16(value)) for value in values]]


def is_kept(op, x):
    """Returns True if SELECT keeps a lane whose operand is `x`."""
    return x & 0xFF == op["number"] if op["equal"] else float(np.uint32(canonical(np.uint32(x << 16))).view(np.float32)) > 0


def largest(values):
    """Returns the maximum of binary32 bit patterns, compared by sign and magnitude."""
    return max(values, key=lambda bits: -(bits & 0x7FFFFFFF) - 1 if bits >> 31 else bits)
