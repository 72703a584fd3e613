"""Instruction-level model of the core: executes the same programs, bit for bit, and refuses the same bad ones."""

import numpy as np

from hw.isa import FIELDS, REGION_WRITABLE, Fault, Format, Function, Opcode, Region, decode

from .golden import activate, bfloat16, matmul, to_bfloat16

__all__ = ["Machine", "MachineFault"]

_ACTIVATION = {Function.NONE: "none", Function.RELU: "relu"}
_COUNTS = ("rows", "rows0", "rows1", "tiles0", "tiles1")


class MachineFault(Exception):
    """The end of a run before HALT: `cause` (Fault) and `pc`, the offset in region MODEL of the instruction."""

    def __init__(self, cause, pc):
        super().__init__(f"{cause.name} at pc {pc:#x}")
        self.cause, self.pc = cause, pc


class Machine:
    """One core without its timing: every instruction runs to its end before the next one.

    An instruction is checked before it has any effect, in the order ILLEGAL, LENGTH, ADDRESS, as the decoder of the
    core does; what went before it has happened. Unlike the core it fetches nothing ahead, and every bus answers.

    Attributes
    ----------
    regions : dict Region -> bytearray
        Host memory. Regions that are missing are empty.
    buffer, sums, bias : arrays of bits
        Unified buffer (uint16), accumulators and bias rows (uint32), all `n` lanes wide.
    executed : int
        Instructions of the last run, HALT included.
    """

    def __init__(self, config, regions=None):
        self.config = config
        self.regions = regions if regions is not None else {}
        self.buffer = np.zeros((config.unified_buffer_depth, config.n), np.uint16)
        self.sums = np.zeros((config.accumulator_depth, config.n), np.uint32)
        self.bias = np.zeros((config.bias_depth, config.n), np.uint32)
        self.executed = 0
        self._tiles = []                                                # FIFO of arrays of tiles, oldest first
        self._tile = np.zeros((config.n, config.n), np.uint16)          # what the array holds, [row, column]

    def run(self, pc=0):
        """Executes from offset `pc` of region MODEL to HALT. Raises MachineFault."""
        self._tiles, self.executed = [], 0
        model = self.regions.get(Region.MODEL, b"")
        while True:
            if pc % self.config.bus_bytes or pc + self.config.instruction_bytes > len(model):
                raise MachineFault(Fault.ADDRESS, pc)
            opcode, fields = self._decode(int.from_bytes(model[pc:pc + 32], "little"), pc)
            self.executed += 1
            if opcode is Opcode.HALT:
                return
            if opcode is not Opcode.SYNC:
                getattr(self, "_" + opcode.name.lower())(pc, **fields)
            pc += self.config.instruction_bytes

    # Checks

    def _decode(self, word, pc):
        try:
            opcode, fields = decode(word)
            if opcode is Opcode.ACTIVATE:
                fields["function"] = Function(fields["function"])
                fields["format"] = Format(fields["format"])
            if "region" in fields:
                fields["region"] = Region(fields["region"])
        except ValueError:
            raise MachineFault(Fault.ILLEGAL, pc) from None
        if "lanes" in fields and not 1 <= fields["lanes"] <= self.config.n:
            raise MachineFault(Fault.ILLEGAL, pc)
        if any(fields.get(name) == 0 for name in _COUNTS):
            raise MachineFault(Fault.LENGTH, pc)
        if not (self._host_is_inside(opcode, fields) and self._rows_are_inside(opcode, fields)):
            raise MachineFault(Fault.ADDRESS, pc)
        return opcode, fields

    def _host_is_inside(self, opcode, fields):
        if "region" not in fields:
            return True
        region, offset = fields["region"], fields["offset"]
        return (offset % self.config.bus_bytes == 0
                and offset + self._host_bytes(opcode, fields["rows"]) <= len(self.regions.get(region, b""))
                and (opcode is not Opcode.STORE or REGION_WRITABLE[region]))

    def _host_bytes(self, opcode, rows):
        n = self.config.n
        return rows * {Opcode.LOAD_BIAS: 4 * n, Opcode.LOAD_WEIGHTS: 2 * n * n}.get(opcode, 2 * n)

    def _rows_are_inside(self, opcode, fields):
        """Whether the last row that is touched of the buffer, of the accumulators and of the biases exists."""
        last = {name: fields[name] for name, _ in FIELDS[opcode] if name in ("buffer", "acc", "bias")}
        if opcode is Opcode.MATMUL:
            def spread(stride):
                return sum((fields[count] - 1) * fields[count + stride] for count in ("tiles0", "tiles1"))
            last["buffer"] += spread("_stride") + sum(
                (fields[count] - 1) * fields[count + "_stride"] for count in ("rows0", "rows1"))
            last["acc"] += spread("_acc_stride") + fields["rows0"] * fields["rows1"] - 1
            last["bias"] = last["bias"] + fields["tiles0"] - 1 if fields["start"] else 0
        else:
            for name in last:
                last[name] += fields["rows"] * (2 if name == "buffer" and self._is_wide(fields) else 1) - 1
        depth = {"buffer": len(self.buffer), "acc": len(self.sums), "bias": len(self.bias)}
        return all(row < depth[name] for name, row in last.items())

    @staticmethod
    def _is_wide(fields):
        return fields.get("format") is Format.BINARY32

    # Instructions

    def _read(self, opcode, region, offset, rows, dtype):
        data = memoryview(self.regions[region])[offset:offset + self._host_bytes(opcode, rows)]
        return np.frombuffer(data, dtype).reshape(-1, self.config.n)

    def _load(self, pc, region, offset, rows, buffer):
        self.buffer[buffer:buffer + rows] = self._read(Opcode.LOAD, region, offset, rows, "<u2")

    def _load_bias(self, pc, region, offset, rows, bias):
        self.bias[bias:bias + rows] = self._read(Opcode.LOAD_BIAS, region, offset, rows, "<u4")

    def _load_weights(self, pc, region, offset, rows):
        n = self.config.n
        vectors = self._read(Opcode.LOAD_WEIGHTS, region, offset, rows, "<u2")
        self._tiles.append(vectors.reshape(rows, n, n).swapaxes(1, 2).copy())

    def _store(self, pc, region, offset, rows, buffer):
        data = self.buffer[buffer:buffer + rows].astype("<u2").tobytes()
        self.regions[region][offset:offset + len(data)] = data

    def _take_tiles(self, count, pc):
        """The next tiles, (count, n, n). A core that waits for a tile that never comes ends by its time limit."""
        taken = []
        while count:
            if not self._tiles:
                raise MachineFault(Fault.TIMEOUT, pc)
            head = self._tiles[0][:count]
            taken.append(head)
            count -= len(head)
            self._tiles[0] = self._tiles[0][len(head):]
            if not len(self._tiles[0]):
                self._tiles.pop(0)
        self._tile = taken[-1][-1]
        return np.concatenate(taken)

    def _matmul(self, pc, start, keep, buffer, rows0, rows0_stride, rows1, rows1_stride, tiles0, tiles0_stride,
                tiles0_acc_stride, tiles1, tiles1_stride, tiles1_acc_stride, acc, bias):
        rows = rows0 * rows1
        operands = (buffer + rows1_stride * np.arange(rows1)[:, None] + rows0_stride * np.arange(rows0)).ravel()
        # Passes one after the other are the definition. When all the passes of the outer loop add up in the same
        # rows, and those of the inner one in rows of their own, one long matmul gives the same sums in less time.
        fused = (not keep and not tiles0_stride and not tiles1_acc_stride and (tiles1 == 1 or not start)
                 and (tiles0 == 1 or tiles0_acc_stride >= rows))
        if fused:
            columns, groups = tiles0, [(tiles1, 0, 0)]
        else:
            columns, groups = 1, [(1, t1, t0) for t1 in range(tiles1) for t0 in range(tiles0)]
        for depth, t1, t0 in groups:
            tiles = self._tile[None] if keep else self._take_tiles(depth * columns, pc)
            self._add_passes(
                operands + t1 * tiles1_stride + t0 * tiles0_stride, tiles1_stride, tiles.reshape(depth, columns, -1),
                acc + t1 * tiles1_acc_stride + t0 * tiles0_acc_stride, tiles0_acc_stride,
                self.bias[bias + t0:bias + t0 + columns] if start else None)

    def _add_passes(self, operands, operand_stride, tiles, acc, acc_stride, bias):
        """acc[c] (+)= sum over d of buffer[operands + d * stride] @ tiles[d, c], in the order of d."""
        n, (depth, columns), rows = self.config.n, tiles.shape[:2], len(operands)
        x = self.buffer[(operands[:, None] + operand_stride * np.arange(depth)).ravel()].reshape(rows, depth * n)
        w = tiles.reshape(depth, columns, n, n).transpose(0, 2, 1, 3).reshape(depth * n, columns * n)
        places = (acc + acc_stride * np.arange(columns) + np.arange(rows)[:, None]).ravel()
        first = np.broadcast_to(bias.reshape(1, -1), (rows, columns * n)) if bias is not None \
            else self.sums[places].reshape(rows, columns * n)
        sums = matmul(x.view(bfloat16), np.ascontiguousarray(w).view(bfloat16),
                      np.ascontiguousarray(first).view(np.float32))
        self.sums[places] = np.ascontiguousarray(sums).view(np.uint32).reshape(-1, n)

    def _activate(self, pc, function, format, rows, lanes, buffer, acc):
        values = self.sums[acc:acc + rows]
        values = np.asarray(activate(values.view(np.float32), _ACTIVATION[function])).view(np.uint32)
        values = np.where(np.arange(self.config.n) < lanes, values, np.uint32(0))
        if format is Format.BINARY32:
            self.buffer[buffer:buffer + 2 * rows] = values.astype("<u4").view("<u2").reshape(2 * rows, -1)
        else:
            self.buffer[buffer:buffer + rows] = to_bfloat16(values)
