"""From a plan (chunks of the batch, groups of column tiles, places in the buffers) to instructions in order.

The order here is the one that defines the result; :mod:`sim.compiler.compile` reorders instructions that do not depend on each
other. Hazards are interlocked in hardware, so nothing here waits: reusing a place is always right, and only costs time
if it comes too soon.
"""

from dataclasses import dataclass

import numpy as np

from amaranth_tpu.hw.spec.isa import Format, Function, Opcode, Region

from .timing import UNIT, turnaround

__all__ = ["Plan", "Op", "Places", "Ring", "Schedule", "waits"]


@dataclass(frozen=True)
class Plan:
    """The free choices of a schedule.

    Parameters
    ----------
    chunks : tuple of int
        Batch rows that go through all the layers together.
    groups : tuple of tuple of int
        For each layer: sizes of the groups of column tiles whose passes alternate. A group's k tiles are read once.
    resident : tuple of bool
        For each layer: whether all of its operands are in the unified buffer at once. If not, they are streamed from
        INPUT or SCRATCH, again for every group.
    copies : int
        Places for the resident input: 2 let the next chunk's input come while this one's is in use.
    block, slots : int
        k tiles in a slot of the ring for streamed operands, and slots.
    staging : int
        Vectors of the unified buffer for results on their way to the host.
    first : tuple of int
        k tiles of the first loads of the run.
    eager : int
        Blocks of operands that are asked for before the weights of the first of them, at the start of the run.
    tail : int
        Parts that the rows of the very last results are cut in, so that activation and store start early.
    """

    chunks: tuple
    groups: tuple
    resident: tuple
    copies: int
    block: int
    slots: int
    staging: int
    first: tuple = (1, 2, 4, 8, 16, 24)
    eager: int = 1
    tail: int = 1


class Op:
    """An instruction, with what its timing depends on.

    `waits` are pairs (unit, how many of that unit's instructions must have ended before it begins). `rows`, `passes`, `keep`,
    `acc`, `acc_stride`, `tiles0` and `wide` are as in its fields; `tiles` is (layer, first column of the group, columns,
    tiles of the group before, tiles) of a MATMUL that takes tiles, which stand in the group's order: by k, then column.
    `stage` is the number of the layer, or of the stage of a graph, that it belongs to; of LOAD_WEIGHTS, `parts` has pairs of such
    a number and tiles, in order.
    """

    __slots__ = ("opcode", "fields", "unit", "waits", "rows", "passes", "keep", "acc", "acc_stride", "tiles0", "wide",
                 "tiles", "group_tiles", "stage", "parts")

    def __init__(self, opcode, fields, waits=(), tiles=None):
        self.opcode, self.fields, self.unit, self.waits, self.tiles = opcode, fields, UNIT[opcode], waits, tiles
        self.rows = fields.get("rows", 0)
        self.stage = None
        self.wide = fields.get("format") is Format.BINARY32
        if opcode is Opcode.MATMUL:
            self.rows = fields["rows0"] * fields["rows1"]
            self.passes = fields["tiles0"] * fields["tiles1"]
            self.tiles0, self.keep = fields["tiles0"], fields["keep"]
            self.acc, self.acc_stride = fields["acc"], fields["tiles0_acc_stride"]


class Places:
    """Who used each row of a memory last: for every row and unit, how many instructions the unit had issued by then."""

    def __init__(self, rows):
        self.written = np.zeros((5, rows), np.int64)
        self.read = np.zeros((5, rows), np.int64)

    def access(self, unit, number, first, count, write):
        """Marks instruction `number` of the unit, and returns what it has to wait for."""
        span = slice(first, first + count)
        needs = self.written[:, span].max(axis=1)
        if write:
            needs = np.maximum(needs, self.read[:, span].max(axis=1))
            self.written[unit, span] = number
        else:
            self.read[unit, span] = number
        needs[unit] = 0
        return needs


def waits(places, unit, number, accesses):
    """What instruction `number` of a unit waits for, as :class:`Op` has it. `places` : {memory: Places}; `accesses` : (memory,
    first row, rows, write) that it touches."""
    needs = np.zeros(5, np.int64)
    for memory, first, count, write in accesses:
        needs = np.maximum(needs, places[memory].access(unit, number, first, count, write))
    return [(other, need) for other, need in enumerate(needs.tolist()) if need]


class Ring:
    """Hands out stretches of a memory, one after the other, round and round."""

    def __init__(self, base, size):
        self.base, self.size, self.next = base, size, 0

    def take(self, count):
        if self.next + count > self.size:
            self.next = 0
        place = self.base + self.next
        self.next += count
        return place


class Schedule:
    """Builds `ops` from a plan: all instructions but LOAD_WEIGHTS and HALT. Offsets in MODEL count from the biases.

    Parameters
    ----------
    config : Config
    memory : MemoryMap
    plan : Plan
    """

    def __init__(self, config, memory, plan):
        self.config, self.memory, self.plan = config, memory, plan
        self.n = config.n
        self.layers = len(memory.network.layers)
        self.functions = [Function[layer.function.upper()] for layer in memory.network.layers]
        self.ops, self.issued, self.stage = [], [0] * 5, 0
        scratch = sum(memory.tiles[1:-1]) * max(plan.chunks) if not all(plan.resident[1:]) else 0
        self.scratch_bytes = scratch * 2 * self.n
        self.places = {"buffer": Places(config.unified_buffer_depth), "acc": Places(config.accumulator_depth),
                       "bias": Places(config.bias_depth), "scratch": Places(max(1, scratch))}
        self._lay_out_buffer()
        self._lay_out_biases()
        self.acc_ring = Ring(0, config.accumulator_depth)
        self.loads = []                 # streamed blocks to come, in order of use
        self.loaded = 0
        self.input_loaded = {}          # chunk -> k tiles of its resident input that have been loaded
        self._build()

    # Places

    def _lay_out_buffer(self):
        """Input copies | one area for even, one for odd hidden layers | ring for streams | staging."""
        plan, tiles, rows = self.plan, self.memory.tiles, max(self.plan.chunks)
        position, self.areas = 0, {}
        if plan.resident[0]:
            self.areas[0] = [position + copy * tiles[0] * rows for copy in range(plan.copies)]
            position += plan.copies * tiles[0] * rows
        for parity in (1, 0):
            levels = [level for level in range(1, self.layers) if level % 2 == parity and plan.resident[level]]
            for level in levels:
                self.areas[level] = [position]
            position += max((tiles[level] * rows for level in levels), default=0)
        self.slot_vectors = plan.block * rows
        self.slots = [position + slot * self.slot_vectors for slot in range(plan.slots)]
        position += plan.slots * self.slot_vectors
        self.staging = Ring(position, plan.staging)
        assert position + plan.staging <= self.config.unified_buffer_depth

    def _lay_out_biases(self):
        self.all_biases = self.memory.bias_rows <= self.config.bias_depth
        self.bias_ring = Ring(0, self.config.bias_depth)
        self.biases_loaded = 0

    def _area(self, chunk, level):
        places = self.areas[level]
        return places[chunk % len(places)]

    # Instructions

    def _emit(self, opcode, fields, accesses, tiles=None):
        """`accesses` : (memory, first row, rows, write) that the instruction touches."""
        unit = UNIT[opcode]
        self.issued[unit] += 1
        op = Op(opcode, fields, waits(self.places, unit, self.issued[unit], accesses), tiles)
        op.stage = self.stage
        if tiles is not None:
            op.group_tiles = self.memory.tiles[tiles[0]] * tiles[2]
        self.ops.append(op)

    def _load(self, chunk, level, k0, k1, buffer):
        """k tiles of a layer's operands, from host memory to the unified buffer."""
        rows = (k1 - k0) * self.memory.chunks[chunk]
        accesses = [("buffer", buffer, rows, True)]
        if level == 0:
            region, offset = Region.INPUT, self.memory.input_offset(chunk, k0)
        else:
            region, offset = Region.SCRATCH, self.memory.scratch_offset(chunk, level, k0)
            accesses.append(("scratch", offset // (2 * self.n), rows, False))
        self._emit(Opcode.LOAD, {"region": region, "offset": offset, "rows": rows, "buffer": buffer}, accesses)
        self.ops[-1].stage = level

    def _load_biases(self, layer, column, count):
        """Brings bias rows, and returns the first one's place."""
        row = self.memory.bias_row(layer, column)
        if self.all_biases:
            # The first group's come with it, all others at once behind them.
            wanted = row + count if not self.biases_loaded else self.memory.bias_rows
            place, first, count = row, self.biases_loaded, wanted - self.biases_loaded
            self.biases_loaded = wanted
        else:
            place, first = self.bias_ring.take(count), row
        if count:
            base = first if self.all_biases else place
            self._emit(Opcode.LOAD_BIAS, {"region": Region.MODEL, "offset": first * 4 * self.n, "rows": count,
                                          "bias": base}, [("bias", base, count, True)])
        return place

    def _matmul(self, tiles, count, k0, k1, buffer, rows, stride, acc, acc_stride, bias, start=0, keep=0):
        """Passes over k tiles k0 to k1 for `count` column tiles, alternating."""
        fields = {"start": start, "keep": keep, "buffer": buffer, "rows0": rows, "rows0_stride": 1, "rows1": 1,
                  "tiles0": count, "tiles0_acc_stride": acc_stride, "tiles1": k1 - k0, "tiles1_stride": stride,
                  "acc": acc, "bias": bias if start else 0}
        accesses = [("buffer", buffer, (k1 - k0 - 1) * stride + rows, False),
                    ("acc", acc, (count - 1) * acc_stride + rows, True)]
        if start:
            accesses.append(("bias", bias, count, False))
        self._emit(Opcode.MATMUL, fields, accesses, None if keep else (*tiles, count * (k1 - k0)))

    def _activate(self, layer, rows, lanes, buffer, acc, format):
        self._emit(Opcode.ACTIVATE, {"function": self.functions[layer], "format": format, "rows": rows, "lanes": lanes,
                                     "buffer": buffer, "acc": acc},
                   [("acc", acc, rows, False),
                    ("buffer", buffer, rows * (2 if format is Format.BINARY32 else 1), True)])

    def _store(self, region, offset, rows, buffer):
        accesses = [("buffer", buffer, rows, False)]
        if region is Region.SCRATCH:
            accesses.append(("scratch", offset // (2 * self.n), rows, True))
        self._emit(Opcode.STORE, {"region": region, "offset": offset, "rows": rows, "buffer": buffer}, accesses)

    # Groups

    def _build(self):
        steps = [(chunk, layer, *group) for chunk in range(len(self.plan.chunks)) for layer in range(self.layers)
                 for group in self._groups(layer)]
        for chunk, layer, column, count in steps:
            if not self.plan.resident[layer]:
                tiles = self.memory.tiles[layer]
                self.loads += [(chunk, layer, column, k, min(k + self.plan.block, tiles))
                               for k in range(0, tiles, self.plan.block)]
        self.streamed = 0               # blocks whose passes have been issued
        for position, (chunk, layer, column, count) in enumerate(steps):
            self.stage, last_of_layer = layer, column + count == self.memory.tiles[layer + 1]
            self._group(chunk, layer, column, count, last_of_layer, position + 1 == len(steps))
            if layer == 0 and self.plan.resident[0]:
                ahead = chunk + 1 < len(self.plan.chunks) and chunk + 1 not in self.input_loaded
                if ahead and (last_of_layer or self.plan.copies > 1):
                    self._prefetch_input(chunk + 1)

    def _groups(self, layer):
        column = 0
        for count in self.plan.groups[layer]:
            yield column, count
            column += count

    def _prefetch_input(self, chunk):
        """The whole resident input of a chunk, in a few pieces."""
        tiles, rows = self.memory.tiles[0], self.memory.chunks[chunk]
        piece = max(1, -(-tiles // 8))
        for k in range(0, tiles, piece):
            end = min(k + piece, tiles)
            self._load(chunk, 0, k, end, self._area(chunk, 0) + k * rows)
        self.input_loaded[chunk] = tiles

    def _blocks(self, chunk, layer, column):
        """`(k0, k1)` of the matmuls of a group: cut where operands come separately."""
        tiles = self.memory.tiles[layer]
        if not self.plan.resident[layer]:
            return [(k, min(k + self.plan.block, tiles)) for k in range(0, tiles, self.plan.block)]
        cuts = {0, tiles}
        if layer == 0 and chunk not in self.input_loaded:
            position = 0
            sizes = list(self.plan.first)
            while position < tiles:
                position += sizes.pop(0) if len(sizes) > 1 else sizes[0]
                cuts.add(min(position, tiles))
        elif layer == 0 and len(self.plan.chunks) > 1:
            if self.plan.copies == 1 or column == 0:
                cuts.update(range(0, tiles, max(1, -(-tiles // 8))))
        elif layer > 0 and column == 0:
            cuts.update(range(tiles - self.plan.groups[layer - 1][-1], tiles))
        cuts = sorted(cuts)
        return list(zip(cuts, cuts[1:]))

    def _operands(self, chunk, layer, k0, k1):
        """Brings k tiles of a layer's operands if they are not there; place of the first."""
        rows = self.memory.chunks[chunk]
        if self.plan.resident[layer]:
            place = self._area(chunk, layer) + k0 * rows
            if layer == 0 and self.input_loaded.setdefault(chunk, 0) <= k0:
                self._load(chunk, 0, k0, k1, place)
                self.input_loaded[chunk] = k1
            return place
        # Blocks ahead may come as soon as their slot's last block has been issued, and their data has been made.
        while self.loaded < min(len(self.loads), self.streamed + self.plan.slots):
            ahead = self.loads[self.loaded]
            if self.loaded > self.streamed and ahead[1] > 0 and ahead[:2] != (chunk, layer):
                break
            self._load(ahead[0], ahead[1], ahead[3], ahead[4], self.slots[self.loaded % self.plan.slots])
            self.loaded += 1
        place = self.slots[self.streamed % self.plan.slots]
        self.streamed += 1
        return place

    def _group(self, chunk, layer, column, count, last_of_layer, last_of_all):
        rows = self.memory.chunks[chunk]
        tiles = self.memory.tiles[layer]
        acc = self.acc_ring.take(count * rows)
        bias, group = None, (layer, column, count)
        parts = self._parts(rows) if last_of_all else [(0, rows)]
        whole = tiles - self._split_tiles(rows) if len(parts) > 1 else tiles
        for k0, k1 in self._blocks(chunk, layer, column):
            if bias is None:
                bias = self._load_biases(layer, column, count)
            place = self._operands(chunk, layer, k0, k1)
            common = {"stride": rows, "acc_stride": rows, "bias": bias}
            end = min(k1, max(whole, k0))
            if k0 == 0 and end > 0:
                self._matmul((*group, 0), count, 0, 1, place, rows, acc=acc, start=1, **common)
            first = max(k0, 1)
            if end > first:
                self._matmul((*group, first * count), count, first, end, place + (first - k0) * rows, rows, acc=acc,
                             **common)
            for k in range(end, k1):
                for c in range(count):
                    for begin, part in parts:
                        self._matmul((*group, k * count + c), 1, k, k + 1, place + (k - k0) * rows + begin, part,
                                     acc=acc + c * rows + begin, stride=rows, acc_stride=rows, bias=bias + c,
                                     start=int(k == 0), keep=int(begin > 0))
        self._finish(chunk, layer, column, count, acc, parts, last_of_layer)

    def _split_tiles(self, rows):
        """Last k tiles whose rows are cut in parts: enough for a part to wait only for the same part before it."""
        return 1 + -(-turnaround(self.config) // max(rows, self.n))

    def _parts(self, rows):
        """`(first row, rows)` of the parts of the very last rows."""
        size = -(-rows // self.plan.tail)
        return [(begin, min(size, rows - begin)) for begin in range(0, rows, size)]

    def _finish(self, chunk, layer, column, count, acc, parts, last_of_layer):
        """Activates a group, and stores it if its place is not the unified buffer."""
        rows = self.memory.chunks[chunk]
        final = layer == self.layers - 1
        factor = 2 if final else 1
        format = Format.BINARY32 if final else Format.BFLOAT16
        staged = final or not self.plan.resident[layer + 1]
        width = self.memory.widths[layer + 1]
        c = 0
        while c < count:
            lanes = min(self.n, width - (column + c) * self.n)
            together = 1
            if lanes == self.n and len(parts) == 1 and not (last_of_layer and not staged):
                full = width // self.n - column
                together = max(1, min(count, full) - c)
                if staged:
                    together = max(1, min(together, self.plan.staging // 2 // (factor * rows)))
            for begin, part in parts if together == 1 else [(0, together * rows)]:
                if staged:
                    buffer = self.staging.take(factor * part)
                else:
                    buffer = self._area(chunk, layer + 1) + (column + c) * rows
                self._activate(layer, part, lanes, buffer, acc + c * rows + begin, format)
                if final:
                    offset = self.memory.output_offset(chunk, column + c, begin)
                    self._store(Region.OUTPUT, offset, factor * part, buffer)
                elif staged:
                    self._store(Region.SCRATCH, self.memory.scratch_offset(chunk, layer + 1, column + c), part, buffer)
            c += together
