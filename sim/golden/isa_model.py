"""The instruction-level model of the core. It executes the same programs with the same bits, and rejects the same invalid
instructions."""

import functools
from dataclasses import dataclass

import numpy as np

from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import (
    INSTRUCTIONS,
    TABLE_WORDS,
    Condition,
    Fault,
    Format,
    FunctionCode,
    Half,
    Opcode,
    Region,
    RingMode,
    WeightFormat,
)

from .arithmetic import activate, add, bfloat16, matmul, multiply, ordered, relu, to_bfloat16, without_minus_zero
from .isa_check import MachineFault, check, host_bytes
from .normalization import normalize
from .progress import Progress, touched
from .ring import exchange
from .softmax import softmax
from .table_lookup import Table, lookup
from .weight_formats import unpacked

__all__ = ["Exchange", "Machine", "MachineFault"]

_ACTIVATION = {FunctionCode.NONE: "none", FunctionCode.RELU: "relu"}
#: Index that INDEX writes, after RELU, for a window without a positive number.
_NOTHING = 255
#: The effect of each opcode: a method of :class:`Machine` that takes the fields of the instruction.
_EFFECTS = {}


def _effect(opcode):
    def of(method):
        _EFFECTS[opcode] = method
        return method

    return of


@dataclass(frozen=True)
class Exchange:
    """A RING instruction of one core, waiting for the same instruction on the other cores."""

    mode: RingMode
    #: Uint16 arrays. Vectors that the instruction reads, in the form that :func:`sim.golden.ring.exchange` takes.
    vectors: np.ndarray
    #: segment, rounds: Vectors per segment, and number of rounds. A correct program has the same numbers in all cores.
    segment: int
    rounds: int


class Machine:
    """One core without timing. Every instruction that the core can complete takes effect at once.

    An instruction is checked before it has any effect, for ILLEGAL, LENGTH, RING and ADDRESS in this order, as in the core's
    decoder. Earlier instructions have taken effect by then, unless they wait for a later one. If the core cannot complete a
    program, the model completes all instructions that can complete, and then raises TIMEOUT (:mod:`sim.golden.progress`). Unlike
    the core, the model does not prefetch instructions, and every bus access gets a response.

    Parameters
    ----------
    config : hw.config.Config
    regions : dict
        Host memory; see the attribute.
    rank, size : int
        Position in the ring, and number of cores. To run more than one core, use :class:`sim.golden.isa_ring.MachineRing`.

    Attributes
    ----------
    regions : dict Region -> bytearray
        Host memory. Missing regions are empty.
    buffer, sums, bias : arrays of bits
        Unified buffer (uint16), accumulators and bias rows (uint32), all `n` lanes wide.
    updates : uint16 array (rows, 3, n)
        Update memory: the parts of each row in the order of :class:`hw.spec.isa.UpdatePart`.
    table : sim.golden.table_lookup.Table
        Function table.
    executed : int
        Instructions executed by the last run, including HALT.
    refused : bool
        True if every RING of this core gives the fault RING, in a ring of several cores. Set by a run that ended with a fault,
        cleared by :meth:`.MachineRing.flush`. In hardware, `aresetn` sets it too.
    """

    def __init__(self, config, regions=None, *, rank=0, size=1):
        self.config, self.rank, self.size = config, rank, size
        self.regions = regions if regions is not None else {}
        self.buffer = np.zeros((config.unified_buffer_depth, config.n), np.uint16)
        self.sums = np.zeros((config.accumulator_depth, config.n), np.uint32)
        self.bias = np.zeros((config.bias_depth, config.n), np.uint32)
        self.updates = np.zeros((config.update_depth, 3, config.n), np.uint16)
        self.table = Table(0, 0, 0, np.zeros(TABLE_WORDS, np.uint16))
        self.executed, self.refused = 0, False
        self._tiles = []  # weight FIFO: arrays of tiles, oldest first
        self._tile = np.zeros((config.n, config.n), np.uint16)  # weights in the array, [row, column]

    def run(self, pc=0):
        """Executes the program at offset `pc` of region MODEL up to HALT. Raises MachineFault, with the cause TIMEOUT if a RING
        waits for another core."""
        for _ in self.exchanges(pc):
            pass

    def exchanges(self, pc=0):
        """Executes a program as a generator that stops at each RING of several cores. It yields an :class:`Exchange` and must be
        sent this core's result of :func:`sim.golden.ring.exchange`, or None if another core does not take part. Arguments and
        errors are those of :meth:`run`."""
        self._tiles, self.executed, self._waits = [], 0, None
        model, step = self.regions.get(Region.MODEL, b""), self.config.instruction_bytes
        progress = Progress(self.config)
        while True:
            if pc % self.config.bus_bytes or pc + step > len(model):
                raise MachineFault(Fault.ADDRESS, pc)
            opcode, fields = self.check(int.from_bytes(model[pc : pc + 32], "little"), pc)
            self.executed += 1
            if INSTRUCTIONS[opcode].unit is Unit.CONTROL:
                passes = progress.at_rest
            else:
                act = functools.partial(_EFFECTS[opcode], self, **fields)
                spans = touched(opcode, fields, host_bytes(self.config, opcode, fields), self.size)
                passes = progress.dispatch(opcode, fields, spans, act)
                while self._waits is not None:
                    wait, places = self._waits
                    self._waits = None
                    vectors = yield wait
                    if vectors is not None:
                        self.buffer[places] = vectors
                        progress.end_foreign()
            if not passes:  # the core decodes the next instruction while this one waits for the dispatcher
                raise MachineFault(Fault.TIMEOUT, pc if opcode is Opcode.HALT else pc + step)
            if opcode is Opcode.HALT:
                return
            pc += step

    def check(self, word, pc):
        """Checks an instruction by :func:`sim.golden.isa_check.check`, with this core's memory and position in the ring."""
        sizes = {region: len(memory) for region, memory in self.regions.items()}
        return check(self.config, sizes, word, pc, rank=self.rank, size=self.size, refused=self.refused)

    # Instructions

    def _read(self, region, offset, rows, dtype="<u2"):
        count = rows * self.config.n
        return np.frombuffer(self.regions[region], dtype, count, offset).reshape(rows, self.config.n)

    @_effect(Opcode.LOAD)
    def _load(self, region, offset, rows, buffer, transpose):
        n, vectors = self.config.n, self._read(region, offset, rows)
        tiles = vectors.reshape(-1, n, n).swapaxes(1, 2).reshape(rows, n) if transpose else vectors
        self.buffer[buffer : buffer + rows] = tiles

    @_effect(Opcode.LOAD_BIAS)
    def _load_bias(self, region, offset, rows, half, bias):
        places = self.bias[bias : bias + rows]
        if half is Half.WHOLE:
            places[:] = self._read(region, offset, rows, "<u4")
        elif half is Half.UPPER:
            places[:] = self._read(region, offset, rows).astype(np.uint32) << np.uint32(16) | places & np.uint32(0xFFFF)
        else:
            places[:] = self._read(region, offset, rows) | places & np.uint32(0xFFFF0000)

    @_effect(Opcode.LOAD_WEIGHTS)
    def _load_weights(self, region, offset, rows, transpose, weight_format):
        n = self.config.n
        if weight_format is not WeightFormat.BFLOAT16:
            vectors = self._read(region, offset, weight_format.vectors(n, rows))
            self._tiles.append(unpacked(weight_format, vectors, rows).swapaxes(1, 2))
            return
        vectors = self._read(region, offset, rows * n).reshape(rows, n, n)
        self._tiles.append((vectors if transpose else vectors.swapaxes(1, 2)).copy())

    @_effect(Opcode.STORE)
    def _store(self, region, offset, rows, buffer):
        data = self.buffer[buffer : buffer + rows].astype("<u2").tobytes()
        self.regions[region][offset : offset + len(data)] = data

    def _take_tiles(self, count):
        """Removes the next `count` weight tiles from the FIFO and returns them, (count, n, n)."""
        taken = []
        while count:
            head = self._tiles[0][:count]
            taken.append(head)
            count -= len(head)
            self._tiles[0] = self._tiles[0][len(head) :]
            if not len(self._tiles[0]):
                self._tiles.pop(0)
        self._tile = taken[-1][-1]
        return np.concatenate(taken)

    @_effect(Opcode.MATMUL)
    def _matmul(
        self,
        start,
        keep,
        bias_rows,
        buffer,
        rows0,
        rows0_stride,
        rows1,
        rows1_stride,
        tiles0,
        tiles0_stride,
        tiles0_acc_stride,
        tiles1,
        tiles1_stride,
        tiles1_acc_stride,
        acc,
        bias,
    ):
        rows = rows0 * rows1
        operands = (buffer + rows1_stride * np.arange(rows1)[:, None] + rows0_stride * np.arange(rows0)).ravel()
        # By definition, passes run one after the other. One large matmul gives the same sums in less time if all passes of the
        # outer loop add to the same rows, and passes of the inner loop add to separate rows.
        fused = (
            not keep
            and not tiles0_stride
            and not tiles1_acc_stride
            and (tiles1 == 1 or not start)
            and (tiles0 == 1 or tiles0_acc_stride >= rows)
        )
        if fused:
            columns, groups = tiles0, [(tiles1, 0, 0)]
        else:
            columns, groups = 1, [(1, t1, t0) for t1 in range(tiles1) for t0 in range(tiles0)]
        for depth, t1, t0 in groups:
            tiles = self._tile[None] if keep else self._take_tiles(depth * columns)
            self._add_passes(
                operands + t1 * tiles1_stride + t0 * tiles0_stride,
                tiles1_stride,
                tiles.reshape(depth, columns, -1),
                acc + t1 * tiles1_acc_stride + t0 * tiles0_acc_stride,
                tiles0_acc_stride,
                self.bias[bias + t0 + np.arange(columns) + bias_rows * np.arange(rows)[:, None]] if start else None,
            )

    def _add_passes(self, operands, operand_stride, tiles, acc, acc_stride, first):
        """Adds the products of several passes to the accumulators: acc[c] = `first` + sum over d of buffer[operands + d * stride]
        @ tiles[d, c], in the order of d. `first` is an array of bit patterns (rows, columns, n); None selects the current
        accumulators."""
        n, (depth, columns), rows = self.config.n, tiles.shape[:2], len(operands)
        x = self.buffer[(operands[:, None] + operand_stride * np.arange(depth)).ravel()].reshape(rows, depth * n)
        w = tiles.reshape(depth, columns, n, n).transpose(0, 2, 1, 3).reshape(depth * n, columns * n)
        places = (acc + acc_stride * np.arange(columns) + np.arange(rows)[:, None]).ravel()
        first = (self.sums[places] if first is None else first).reshape(rows, columns * n)
        sums = matmul(x.view(bfloat16), np.ascontiguousarray(w).view(bfloat16), np.ascontiguousarray(first).view(np.float32))
        self.sums[places] = without_minus_zero(np.ascontiguousarray(sums).view(np.uint32)).reshape(-1, n)

    @_effect(Opcode.ACTIVATE)
    def _activate(self, function, format, rows, lanes, buffer, acc):
        if format is Format.PLANES:
            places = buffer + np.arange(rows)
            values = self._results(self.sums[acc : acc + rows], function, lanes)
            self.buffer[places], self.buffer[places + rows] = values >> np.uint32(16), values & np.uint32(0xFFFF)
        else:
            places = buffer + format.height * np.arange(rows)
            self._write_results(self.sums[acc : acc + rows], function, format, lanes, places)

    @_effect(Opcode.POOL)
    def _pool(
        self,
        function,
        format,
        rows0,
        lanes,
        buffer,
        acc,
        rows0_stride,
        rows1,
        rows1_stride,
        buffer_stride,
        window0,
        window0_stride,
        window1,
        window1_stride,
        buffer_step,
    ):
        outer, inner = np.arange(rows1)[:, None], np.arange(rows0)
        first = (acc + outer * rows1_stride + inner * rows0_stride).ravel()
        window = np.arange(window1)[:, None] * window1_stride + np.arange(window0) * window0_stride
        _, numbers = np.unique(window, return_index=True)  # the first position of each row: rows may occur twice in a window
        largest, index = np.full((len(first), self.config.n), np.iinfo(np.int32).min, np.int32), None
        for number in sorted(numbers.tolist()):
            values = ordered(self.sums[first + window.flat[number]].view(np.int32))
            index = np.zeros(values.shape, np.uint16) if index is None else np.where(values > largest, np.uint16(number), index)
            largest = np.maximum(largest, values)
        sums = ordered(largest).view(np.uint32)
        places = (buffer + outer * buffer_stride + (buffer_step or format.height) * inner).ravel()
        if format is Format.INDEX:
            nothing = (function is FunctionCode.RELU) & (relu(sums) == 0)
            self.buffer[places] = np.where(np.arange(self.config.n) < lanes, np.where(nothing, _NOTHING, index), 0)
        else:
            self._write_results(sums, function, format, lanes, places)

    @_effect(Opcode.SOFTMAX)
    def _softmax(self, **fields):
        self._write_rows(softmax, **fields)

    @_effect(Opcode.NORMALIZE)
    def _normalize(self, centred, root, factor, epsilon, **fields):
        self._write_rows(functools.partial(normalize, centred=centred, root=root, factor=factor, epsilon=epsilon), **fields)

    def _write_rows(self, function, format, rows, lanes, buffer, acc, tiles, acc_stride, buffer_stride):
        """Applies a function of rows of sums (rows, N), whose results are bfloat16 bit patterns."""
        n = self.config.n
        height = format.height
        for row in range(rows):  # process row by row: a later row overwrites an earlier one
            count = n * (tiles - 1) + lanes
            values = np.zeros(n * tiles, np.uint32)
            values[:count] = function(self.sums[acc + row + np.arange(tiles) * acc_stride].reshape(1, -1)[:, :count])
            values = (values << np.uint32(16)).reshape(tiles, n)
            places = buffer + row * height + np.arange(tiles) * buffer_stride
            self._write_results(values, FunctionCode.NONE, format, n, places)

    def _results(self, sums, function, lanes):
        """Applies the activation function to sums (rows, n), and sets lane `lanes` and all later lanes to +0. Returns binary32
        bit patterns."""
        if function is FunctionCode.TABLE:
            values = lookup(sums, self.table).astype(np.uint32) << np.uint32(16)
        else:
            values = np.asarray(activate(np.ascontiguousarray(sums).view(np.float32), _ACTIVATION[function])).view(np.uint32)
        return np.where(np.arange(self.config.n) < lanes, values, np.uint32(0))

    def _write_results(self, sums, function, format, lanes, places):
        """Applies the activation function to sums (rows, n), and writes the results to the unified buffer in the given format.
        Row r is written to buffer[places[r]]; a later row overwrites an earlier one."""
        values = self._results(sums, function, lanes)
        if format is Format.BINARY32:
            halves = values.astype("<u4").view("<u2").reshape(len(values), 2, -1)
            self.buffer[np.stack([places, places + 1], axis=1)] = halves
        else:
            self.buffer[places] = to_bfloat16(values)

    @_effect(Opcode.MULTIPLY)
    def _multiply(self, rows, lanes, buffer, acc, operand):
        for row in range(rows):
            values = without_minus_zero(multiply(to_bfloat16(self.sums[acc + row]), self.buffer[operand + row]))
            self.buffer[buffer + row] = np.where(np.arange(self.config.n) < lanes, to_bfloat16(values), np.uint16(0))

    @_effect(Opcode.SELECT)
    def _select(
        self,
        condition,
        rows0,
        number,
        buffer,
        acc,
        rows0_stride,
        rows1,
        rows1_stride,
        buffer_stride,
        operand,
        operand_stride,
        buffer_step,
    ):
        outer, inner = np.arange(rows1)[:, None], np.arange(rows0)
        values = to_bfloat16(self.sums[(acc + outer * rows1_stride + inner * rows0_stride).ravel()])
        operands = (operand + outer * operand_stride + inner).ravel()
        places = (buffer + outer * buffer_stride + (buffer_step or 1) * inner).ravel()

        def select(rows):
            bits = self.buffer[operands[rows]]
            if condition is Condition.POSITIVE:  # a subnormal counts as 0, and a NaN is never above 0
                kept = (bits >= 0x0080) & (bits <= 0x7F80)
            else:
                kept = bits & np.uint16(0xFF) == number
            self.buffer[places[rows]] = np.where(kept, values[rows], np.uint16(0))

        # By definition, rows are processed one after the other. If no row reads a row written before, all can be processed at
        # once.
        order = np.arange(rows0 * rows1)
        written = np.full(len(self.buffer), len(order))
        np.minimum.at(written, places, order)
        if (written[operands] >= order).all():
            select(order)
        else:
            for row in order:
                select([row])

    @_effect(Opcode.UPDATE)
    def _update(self, rows, update, acc, momentum, rate, bias):
        master, moved = (
            self.bias[bias : bias + rows],
            (self.bias[bias + rows : bias + 2 * rows] >> np.uint32(16)).astype(np.uint16),
        )
        moved = add(self.sums[acc : acc + rows], multiply(moved, np.uint16(momentum)))
        moved = to_bfloat16(without_minus_zero(moved))
        master = without_minus_zero(add(master, multiply(moved, np.uint16(rate))))
        self.updates[update : update + rows] = np.stack([moved, master >> np.uint32(16), master & np.uint32(0xFFFF)], axis=1)

    @_effect(Opcode.STORE_UPDATE)
    def _store_update(self, region, rows, offset, part, update):
        data = self.updates[update : update + rows, part.value - 1].astype("<u2").tobytes()
        self.regions[region][offset : offset + len(data)] = data

    @_effect(Opcode.RING)
    def _ring(self, mode, buffer, result, segment, stride, rounds):
        """Starts a RING: reads its vectors from the unified buffer. A single core completes at once; in a ring of several cores
        the vectors wait for the other cores."""
        rows = np.arange(rounds * segment)
        each = np.arange(self.size)[:, None] * stride + rows
        vectors = self.buffer[buffer + (rows if mode is RingMode.ALL_GATHER else each)]
        places = result + (rows if mode is RingMode.REDUCE_SCATTER else each)
        if self.size == 1:
            self.buffer[places] = exchange(mode, [vectors])[0]
        else:
            self._waits = Exchange(mode, vectors, segment, rounds), places
        return self._waits is not None

    @_effect(Opcode.LOAD_TABLE)
    def _load_table(self, rows, buffer, word, **settings):
        words = self.table.words.copy()
        words[word : word + rows * self.config.n] = self.buffer[buffer : buffer + rows].ravel()
        self.table = Table(words=words, **settings)
