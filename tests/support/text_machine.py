"""An interpreter of the instructions, written from the datasheet alone: a second definition beside the golden model.

It reads the fields of the instructions and the codes from the datasheet's tables, and computes as the texts say. It executes
valid programs of one core, without formats of weights.
"""

import re
from types import SimpleNamespace

import numpy as np

from amaranth_tpu.scripts.show.documents import DATASHEET
from amaranth_tpu.scripts.show.markdown import section
from text_arithmetic import NAN, normalize_of_text, softmax_of_text, table_of_text

__all__ = ["TextMachine", "flushed"]

_NAN32, _SIGN = np.uint32(0x7FC00000), np.uint32(1 << 31)


def _instructions():
    """Returns the fields of each instruction by its opcode: name, and field to `(first, width)`."""
    found = {}
    for part in section(DATASHEET, "instructions").split("#### ")[1:]:
        rows = re.findall(r"^\| (\d+)(?::(\d+))? \| `(\w+)` \| (\w*)", part, re.M)
        fields = {name: (int(low or high), int(high) - int(low or high) + 1) for high, low, name, _ in rows}
        (opcode,) = (int(text, 16) for *_, name, text in rows if name == "opcode")
        found[opcode] = part.split("\n")[0], fields
    return found


def _codes():
    """Returns the codes: kind to code to name."""
    found = {}
    for table in section(DATASHEET, "codes").split("\n\n"):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines())
        found[head[0]] = {int(code): name for name, code, *_ in rows}
    return found


INSTRUCTIONS, CODES = _instructions(), _codes()


def flushed(bits):
    """Returns binary32 bits with a zero of the same sign for each subnormal, and one NaN."""
    bits = np.asarray(bits, np.uint32)
    bits = np.where(bits & 0x7F800000, bits, bits & _SIGN)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, _NAN32, bits)


def _binary32(one, operation, other):
    with np.errstate(all="ignore"):
        return flushed(operation(flushed(one).view(np.float32), flushed(other).view(np.float32)).view(np.uint32))


def product(x, w):
    """Returns binary32 bits of the products of bfloat16."""
    return _binary32(widened(x), np.multiply, widened(w))


def total(one, other):
    return _binary32(one, np.add, other)


def stored(bits):
    """Returns binary32 bits with +0 for -0, which neither accumulators nor results of products and updates have."""
    return np.where(bits == _SIGN, np.uint32(0), bits)


def widened(bits):
    return np.asarray(bits, np.uint32) << np.uint32(16)


def rounded(bits):
    """Returns binary32 bits rounded to bfloat16, to nearest, ties to even."""
    bits = flushed(bits)
    result = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    return np.where(bits == _NAN32, NAN, result).astype(np.uint16)


def order(bits):
    """Returns keys in the order of the sums: NaN is the largest, and +0 is larger than -0."""
    bits = np.asarray(bits, np.uint32)
    key = np.where(bits & _SIGN, ~bits, bits | _SIGN).astype(np.int64)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, 1 << 33, key)


class TextMachine:
    """A core with its regions of host memory, `{name: bytearray}`. Memories have the names of the datasheet."""

    def __init__(self, config, regions):
        self.n, self.step, self.regions = config.n, config.instruction_bytes, regions
        self.buffer = np.zeros((config.unified_buffer_depth, self.n), np.uint16)
        self.acc = np.zeros((config.accumulator_depth, self.n), np.uint32)
        self.bias = np.zeros((config.bias_depth, self.n), np.uint32)
        self.update = {name: np.zeros((config.bias_depth, self.n), np.uint16) for name in CODES["part"].values()}
        self.table, self.tile, self.fifo = SimpleNamespace(words=np.zeros(1 << 13, np.uint16)), None, []

    def run(self):
        """Executes the program in MODEL from its beginning to HALT."""
        self.fifo = []
        for first in range(0, len(self.regions["MODEL"]), self.step):
            word = int.from_bytes(self.regions["MODEL"][first : first + 32], "little")
            name, fields = INSTRUCTIONS[word & 255]
            f = SimpleNamespace(**{field: word >> low & (1 << width) - 1 for field, (low, width) in fields.items()})
            for kind in CODES.keys() & fields.keys():
                setattr(f, kind, CODES[kind][getattr(f, kind)])
            if name == "HALT":
                return
            if name != "SYNC":
                getattr(self, {"UPDATE": "update_"}.get(name, name.lower()))(f)

    # --- Transfers ------------------------------------------------------------------------------------------------

    def _host(self, f, rows, values, kind="<u2"):
        data = self.regions[f.region][f.offset : f.offset + rows * values * np.dtype(kind).itemsize]
        return np.frombuffer(bytes(data), kind).reshape(rows, values)

    def _to_host(self, f, rows):
        data = rows.astype("<u2").tobytes()
        self.regions[f.region][f.offset : f.offset + len(data)] = data

    def load(self, f):
        vectors = self._host(f, f.rows, self.n)
        if f.transpose:
            vectors = vectors.reshape(-1, self.n, self.n).transpose(0, 2, 1).reshape(-1, self.n)
        self.buffer[f.buffer : f.buffer + f.rows] = vectors

    def load_bias(self, f):
        rows = self.bias[f.bias : f.bias + f.rows]
        if f.half == "WHOLE":
            rows[:] = self._host(f, f.rows, self.n, "<u4")
        elif f.half == "UPPER":
            rows[:] = rows & np.uint32(0xFFFF) | widened(self._host(f, f.rows, self.n))
        else:
            rows[:] = rows & np.uint32(0xFFFF0000) | self._host(f, f.rows, self.n)

    def load_weights(self, f):
        """Tiles as w[r, c]."""
        for tile in self._host(f, f.rows * self.n, self.n).reshape(-1, self.n, self.n):
            self.fifo.append(tile if f.transpose else tile.T)

    def store(self, f):
        self._to_host(f, self.buffer[f.buffer : f.buffer + f.rows])

    def store_update(self, f):
        self._to_host(f, self.update[f.part][f.update : f.update + f.rows])

    # --- Products -------------------------------------------------------------------------------------------------

    def matmul(self, f):
        for t1 in range(f.tiles1):
            for t0 in range(f.tiles0):
                if not f.keep:
                    self.tile = self.fifo.pop(0)
                for r in range(f.rows1 * f.rows0):
                    r1, r0 = divmod(r, f.rows0)
                    row = f.buffer + t1 * f.tiles1_stride + t0 * f.tiles0_stride + r1 * f.rows1_stride + r0 * f.rows0_stride
                    place = f.acc + t1 * f.tiles1_acc_stride + t0 * f.tiles0_acc_stride + r
                    sums = self.bias[f.bias + t0 + (r if f.bias_rows else 0)] if f.start else self.acc[place]
                    for k in range(self.n):
                        sums = total(sums, product(self.buffer[row, k], self.tile[k]))
                    self.acc[place] = stored(sums)

    # --- Results --------------------------------------------------------------------------------------------------

    def _function(self, name, sums):
        if name == "RELU":
            return np.where((sums & _SIGN).astype(bool) & (flushed(sums) != _NAN32), np.uint32(0), sums)
        if name == "TABLE":
            return widened([table_of_text(self.table, int(x)) for x in sums])
        return sums

    def _write(self, row, values, format, lanes):
        """Writes a row of binary32 results: one vector as BFLOAT16, two as BINARY32. Lanes from `lanes` on become +0."""
        values = np.where(np.arange(self.n) < lanes, values, 0).astype(np.uint32)
        if format == "BINARY32":
            self.buffer[row : row + 2] = values.astype("<u4").view("<u2").reshape(2, self.n)
        else:
            self.buffer[row] = rounded(values)

    def activate(self, f):
        for r in range(f.rows):
            values = self._function(f.function, self.acc[f.acc + r])
            if f.format == "PLANES":
                values = np.where(np.arange(self.n) < f.lanes, values, 0)
                self.buffer[f.buffer + r] = values >> np.uint32(16)
                self.buffer[f.buffer + f.rows + r] = values & np.uint32(0xFFFF)
            else:
                self._write(f.buffer + (2 * r if f.format == "BINARY32" else r), values, f.format, f.lanes)

    def pool(self, f):
        step = f.buffer_step or (2 if f.format == "BINARY32" else 1)
        for r1 in range(f.rows1):
            for r0 in range(f.rows0):
                first = f.acc + r1 * f.rows1_stride + r0 * f.rows0_stride
                places = [
                    first + w1 * f.window1_stride + w0 * f.window0_stride for w1 in range(f.window1) for w0 in range(f.window0)
                ]
                largest = order(self.acc[places]).argmax(axis=0)
                values = self._function(f.function, self.acc[places][largest, np.arange(self.n)])
                row = f.buffer + r1 * f.buffer_stride + r0 * step
                if f.format == "INDEX":
                    index = np.where((f.function == "RELU") & (values == 0), 255, largest)
                    self.buffer[row] = np.where(np.arange(self.n) < f.lanes, index, 0)
                else:
                    self._write(row, values, f.format, f.lanes)

    def _rows_of_tiles(self, f, results_of):
        for r in range(f.rows):
            tiles = [self.acc[f.acc + t * f.acc_stride + r] for t in range(f.tiles)]
            count = (f.tiles - 1) * self.n + f.lanes
            results = results_of([int(x) for x in np.concatenate(tiles)[:count]])
            results = widened([*results, *[0] * (self.n - f.lanes)]).reshape(f.tiles, self.n)
            for t, values in enumerate(results):
                row = f.buffer + t * f.buffer_stride + (2 * r if f.format == "BINARY32" else r)
                self._write(row, values, f.format, self.n)

    def softmax(self, f):
        self._rows_of_tiles(f, softmax_of_text)

    def normalize(self, f):
        self._rows_of_tiles(f, lambda row: normalize_of_text(row, f.centred, f.factor, f.epsilon, f.root))

    def multiply(self, f):
        for r in range(f.rows):
            values = stored(product(rounded(self.acc[f.acc + r]), self.buffer[f.operand + r]))
            self._write(f.buffer + r, values, "BFLOAT16", f.lanes)

    def load_table(self, f):
        words = self.buffer[f.buffer : f.buffer + f.rows].ravel()
        self.table.words[f.word : f.word + len(words)] = words
        self.table.__dict__.update((name, getattr(f, name)) for name in vars(f).keys() - {"rows", "buffer", "word", "opcode"})

    def select(self, f):
        for r1 in range(f.rows1):
            for r0 in range(f.rows0):
                operands = self.buffer[f.operand + r1 * f.operand_stride + r0]
                if f.condition == "EQUAL":
                    holds = (operands & 255) == f.number
                else:
                    holds = (operands >= 0x0080) & (operands <= 0x7F80)
                values = rounded(self.acc[f.acc + r1 * f.rows1_stride + r0 * f.rows0_stride])
                self.buffer[f.buffer + r1 * f.buffer_stride + r0 * (f.buffer_step or 1)] = np.where(holds, values, 0)

    def update_(self, f):
        for r in range(f.rows):
            v = self.bias[f.bias + f.rows + r] >> np.uint32(16)
            moved = rounded(stored(total(self.acc[f.acc + r], product(f.momentum, v))))
            master = stored(total(self.bias[f.bias + r], product(f.rate, moved)))
            for part, values in zip(self.update.values(), (moved, master >> np.uint32(16), master & np.uint32(0xFFFF))):
                part[f.update + r] = values

    def ring(self, f):
        """Copies: the core is alone in its ring."""
        for j in range(f.rounds):
            first, result = f.buffer + j * f.segment, f.result + j * f.segment
            self.buffer[result : result + f.segment] = self.buffer[first : first + f.segment].copy()
