"""From a graph of stages to instructions in order: stage after stage over the whole batch, job after job.

Every tensor lies in host memory, in INPUT, SCRATCH or OUTPUT; a job brings the operands of a rectangle of results to the unified
buffer, sums, activates into another part of it, and stores. As in :mod:`sim.schedule` this order defines the result,
nothing waits, and :mod:`sim.ordering` puts the instructions where they overlap.
"""

import numpy as np

from hw.isa import TABLE_ENTRIES, Format, Function, Opcode, Region

from .folding import fold
from .layout import layout_of
from .memory_map import tiles_of
from .program import CompileError
from .schedule import Op, Places, Ring
from .stage_tiles import Area, NothingFits, passes_of, plan_stage, runs_of_windows
from .timing import UNIT

__all__ = ["GraphSchedule", "ZEROS"]

#: Stands for the tensor that the result is multiplied with, among the areas of operands.
_FACTOR = object()

#: Vectors of zeros in region MODEL, from which zero margins are loaded.
ZEROS = 64


def _loops(places):
    """Operands of consecutive passes as nested loops: `(first, count0, stride0, count1, stride1)` each."""
    position = 0
    while position < len(places):
        rest = places[position:]
        count = _steps(rest)
        stride = rest[1] - rest[0] if count > 1 else 0
        starts = rest[::count]
        outer = 1
        while (outer < len(starts) and starts[outer] - starts[outer - 1] == starts[1] - starts[0] >= 0
               and rest[outer * count:(outer + 1) * count] == [starts[outer] + i * stride for i in range(count)]):
            outer += 1
        yield rest[0], count, stride, outer, starts[1] - starts[0] if outer > 1 else 0
        position += count * outer


def _steps(places):
    """Length of the arithmetic progression at the beginning."""
    count = 1
    while (count < len(places) and places[count] - places[count - 1] == places[1] - places[0] >= 0):
        count += 1
    return count


class GraphSchedule:
    """Builds `ops`: all instructions but LOAD_WEIGHTS and HALT; `owners` says which stage each belongs to.

    Offsets in MODEL count from the zeros, which the biases follow.

    Parameters
    ----------
    graph : Graph
    config : Config
    batch : int

    Members
    -------
    stages, gathers : see :func:`sim.folding.fold`.
    layouts : dict of tensor name to Layout. `regions` : to `(Region, first position)`.
    plans : StagePlan of every stage.
    """

    def __init__(self, graph, config, batch):
        self.graph, self.config, self.batch, self.n = graph, config, batch, config.n
        self.wide = any(map(graph.is_wide, graph.stages))
        self.stages, self.gathers = fold(graph, config.n)
        self._check()
        self._lay_out_host()
        self.ops, self.issued = [], [0] * 5
        self.stage = 0
        self._lay_out_buffer()
        self.places = {"buffer": Places(config.unified_buffer_depth), "acc": Places(config.accumulator_depth),
                       "bias": Places(config.bias_depth), "scratch": Places(max(1, self.scratch))}
        self.acc_ring = Ring(0, config.accumulator_depth)
        self.bias_ring, self.bias_places = Ring(0, config.bias_depth), {}
        self.tables, self.table = {}, None          # functions to their places in region MODEL; the one that is loaded
        if self.zeros:
            self._load_zeros(0, self.zeros)
            self._zero_margins()
        for self.stage, (stage, plan) in enumerate(zip(self.stages, self.plans)):
            self._run_stage(stage, plan)

    def _check(self):
        """That the core has what the stages need."""
        for stage in self.stages:
            lacking = [(stage.pool, self.config.pooling, "pooling"), (stage.softmax, self.config.softmax, "softmax"),
                       (self._is_table(stage.function) or stage.times, self.config.table_lanes, "table_lanes")]
            for needed, there, name in lacking:
                if needed and not there:
                    raise CompileError(f"stage {stage.name}: needs a core with {name}; set it in its configuration "
                                       f"(--{name.replace('_', '-')})")
            if stage.times and (stage.pool or stage.softmax or stage.function != "none"):
                raise ValueError(f"stage {stage.name}: a product goes with neither pooling nor a function")

    # Places

    def _lay_out_host(self):
        tensors = {gather.tensor.name: gather.tensor for gather in self.gathers} | self.graph.tensors
        inputs = [gather.tensor.name for gather in self.gathers]
        used = {name for stage in self.stages for name in (*(term.source for term in stage.terms), stage.times)}
        self.layouts, self.regions = {}, {}
        sizes = {Region.INPUT: 0, Region.SCRATCH: 0, Region.OUTPUT: 0}
        written = dict.fromkeys(stage.output for stage in self.stages)
        for name in [*inputs, *written]:
            readers = [(term, stage.sums_size) for stage in self.stages for term in stage.terms if term.source == name]
            layout = layout_of(tensors[name], self.n, self.batch, readers)
            region = Region.INPUT if name in inputs else Region.OUTPUT if name == self.graph.output else Region.SCRATCH
            if region is Region.OUTPUT and name in used:
                raise CompileError(f"{self.graph.name}: its output {name!r} is also used inside, which is not supported")
            self.layouts[name], self.regions[name] = layout, (region, sizes[region])
            sizes[region] += layout.size * (2 if region is Region.OUTPUT and self.wide else 1)
        self.sizes, self.scratch = sizes, sizes[Region.SCRATCH]

    def _lay_out_buffer(self):
        """Zeros for margins | a ring for operands | places for results, cut anew for every stage."""
        written = [layout for name, layout in self.layouts.items() if self.regions[name][0] is not Region.INPUT]
        margins = [count for layout in written for count in (layout.below * layout.row, layout.lead, layout.beside)]
        self.zeros = min(ZEROS, max(margins))
        space = self.config.unified_buffer_depth - self.zeros
        self.plans = []
        for stage in self.stages:
            try:
                plan = plan_stage(stage, self.config, self.batch, self.layouts, space, self._is_wide(stage))
            except NothingFits as error:
                raise CompileError(f"stage {stage.name}: {error.name} = {getattr(self.config, error.name)}: its smallest tile "
                                   f"takes {error.needed}") from None
            self.plans.append(plan)

    # Instructions

    def _emit(self, opcode, fields, accesses, tiles=None, group_tiles=0):
        """`accesses` : (memory, first row, rows, write) that the instruction touches."""
        unit = UNIT[opcode]
        self.issued[unit] += 1
        needs = np.zeros(5, np.int64)
        for memory, first, count, write in accesses:
            needs = np.maximum(needs, self.places[memory].access(unit, self.issued[unit], first, count, write))
        op = Op(opcode, fields, [(unit, need) for unit, need in enumerate(needs.tolist()) if need], tiles)
        op.group_tiles, op.stage = group_tiles, self.stage
        self.ops.append(op)
        return op

    def _move(self, opcode, name, position, buffer, count):
        """LOAD or STORE of positions of a tensor in bfloat16."""
        region, first = self.regions[name]
        write, offset = opcode is Opcode.LOAD, first + position
        accesses = [("buffer", buffer, count, write)]
        if region is Region.SCRATCH:
            accesses.append(("scratch", offset, count, not write))
        self._emit(opcode, {"region": region, "offset": offset * 2 * self.n, "rows": count, "buffer": buffer}, accesses)

    def _load_zeros(self, buffer, count):
        for first in range(0, count, ZEROS):
            rows = min(ZEROS, count - first)
            self._emit(Opcode.LOAD, {"region": Region.MODEL, "offset": 0, "rows": rows, "buffer": buffer + first},
                       [("buffer", buffer + first, rows, True)])

    def _zero_margins(self):
        """Zeros before, between and after the samples of every tensor that the core writes."""
        for name, layout in self.layouts.items():
            if self.regions[name][0] is not Region.SCRATCH:
                continue
            stretches = [(0, layout.lead)] if layout.lead else []
            below = layout.below * layout.row
            if below:
                stretches += [(layout.position(sample, layout.tensor.height), below) for sample in range(self.batch)]
            if layout.beside and any(stage.output == name and self._partial(stage, plan)
                                     for stage, plan in zip(self.stages, self.plans)):
                stretches += [(layout.position(sample, y, tile, layout.tensor.width), layout.beside) for sample in range(self.batch)
                              for y in range(layout.tensor.height) for tile in range(layout.tiles)]
            for position, count in stretches:
                for first in range(0, count, self.zeros):
                    self._move(Opcode.STORE, name, position + first, 0, min(self.zeros, count - first))

    # A stage

    def _partial(self, stage, plan):
        """Whether a job makes parts of rows, which are stored piece by piece and without the margin."""
        return plan.columns < self.layouts[stage.output].tensor.width

    def _run_stage(self, stage, plan):
        space = self.config.unified_buffer_depth
        staging = space - plan.slots * plan.staging
        self.operands = Ring(self.zeros, staging - self.zeros)
        output = self.layouts[stage.output]
        partial = self._partial(stage, plan)
        self.pitch = plan.columns if partial else output.pitch
        if self._is_table(stage.function):
            self._load_table(stage.function)
        if output.beside and not partial:
            self._load_zeros(staging, plan.slots * plan.staging)
        for job, rectangle in enumerate(plan.rectangles(stage, self.batch)):
            place = staging + job % plan.slots * plan.staging
            self._job(stage, plan, rectangle, place)
            self._store(stage, rectangle, place, partial)

    def _job(self, stage, plan, rectangle, result):
        columns = tiles_of(stage.channels, self.n)
        sums = int(np.prod(rectangle.sums))
        whole = len(plan.blocks) == 1
        areas = self._load_block(stage, plan, rectangle, plan.blocks[0]) if whole else None
        self.factor = areas.get(_FACTOR) if whole else None
        held = None
        if stage.softmax:
            held = self.acc_ring.take(columns * sums)
        for column in range(0, columns, plan.together):
            count = min(plan.together, columns - column)
            acc = held + column * sums if stage.softmax else self.acc_ring.take(count * sums)
            self._sum(stage, plan, rectangle, column, count, acc, sums, areas)
            if not stage.softmax:
                for c in range(count):
                    self._activate(stage, rectangle, column + c, acc + c * sums, result)
        if stage.softmax:
            self._softmax(stage, rectangle, held, sums, result)

    def _load_block(self, stage, plan, rectangle, block):
        """{source: (Area, its place in the unified buffer)}."""
        areas = plan.areas(stage, rectangle, block, self.layouts)
        if stage.times and block is plan.blocks[-1]:
            layout = self.layouts[stage.times]
            columns = None if rectangle.columns == (0, layout.tensor.width) else rectangle.columns
            areas[_FACTOR] = Area(layout, rectangle.samples, rectangle.rows, (0, layout.tiles), columns, 0)
        place, found = self.operands.take(sum(area.size for area in areas.values())), {}
        for source, area in areas.items():
            for host, offset, count in area.transfers():
                self._move(Opcode.LOAD, stage.times if source is _FACTOR else source, host, place + offset, count)
            found[source] = area, place
            place += area.size
        return found

    def _sum(self, stage, plan, rectangle, column, count, acc, sums, areas):
        """All passes of `count` column tiles."""
        passes = passes_of(stage, self.n, column, self.layouts)
        group, before = (self.stage, column, count), 0
        bias = [self._bias(self.stage, column + c) for c in range(count)]
        if any(b != bias[0] + c for c, b in enumerate(bias)):
            bias = [self._bias(self.stage, column, count)]
        for block in plan.blocks:
            if len(plan.blocks) > 1:
                areas = self._load_block(stage, plan, rectangle, block)
                self.factor = areas.get(_FACTOR)
            inside = [p for p in passes if any(
                p[0] == index and ky <= p[1] < end_ky and tile <= p[3] < end_tile for index, ky, end_ky, tile, end_tile in block)]
            for index in range(len(stage.terms)):
                mine = [p for p in inside if p[0] == index]
                if not mine:
                    continue
                places, rows = self._operands(stage.terms[index], rectangle, mine, areas)
                first = 0
                if before == 0:
                    self._matmul(group, count, before, (places[0], 1, 0, 1, 0), rows, acc, sums, len(passes), bias[0])
                    first = before = 1
                for loops in self._passes(places[first:], count):
                    self._matmul(group, count, before, loops, rows, acc, sums, len(passes))
                    before += loops[1] * loops[3]
        assert before == len(passes)

    def _passes(self, places, count):
        """With several column tiles, the inner loop is theirs."""
        if count == 1:
            yield from _loops(places)
            return
        while places:
            steps = _steps(places)
            yield places[0], 1, 0, steps, places[1] - places[0] if steps > 1 else 0
            places = places[steps:]

    def _operands(self, term, rectangle, passes, areas):
        """First vector of every pass, and the two loops over the rows of each."""
        area, place = areas[term.source]
        y, x = (first * stride - padding for first, stride, padding in zip(
            (rectangle.sum_rows[0], rectangle.sum_columns[0]), term.stride, term.padding))
        first = rectangle.samples[0]
        places = [place + area.place(first, y + ky * term.dilation[0], tile, x + kx * term.dilation[1])
                  for _, ky, kx, tile in passes]
        loops = [(count, stride) for count, stride in zip(
            rectangle.sums, (area.sample, term.stride[0] * area.row, term.stride[1])) if count > 1]
        return places, [(1, 0)] * (2 - len(loops)) + loops

    def _matmul(self, group, count, before, loops, rows, acc, sums, passes, bias=None):
        first, count0, stride0, count1, stride1 = loops
        (rows1, rows1_stride), (rows0, rows0_stride) = rows
        start = int(bias is not None)
        fields = {"start": start, "buffer": first, "rows0": rows0, "rows0_stride": rows0_stride, "rows1": rows1,
                  "rows1_stride": rows1_stride, "tiles1": count1, "tiles1_stride": stride1, "acc": acc, "bias": bias or 0,
                  "keep": 0, "tiles0": count if count > 1 else count0, "tiles0_stride": stride0,
                  "tiles0_acc_stride": sums if count > 1 else 0}
        extent = ((count0 - 1) * stride0 + (count1 - 1) * stride1 + (rows0 - 1) * rows0_stride + (rows1 - 1) * rows1_stride + 1)
        accesses = [("buffer", first, extent, False), ("acc", acc, count * sums, True)]
        if start:
            accesses.append(("bias", bias, count, False))
        self._emit(Opcode.MATMUL, fields, accesses, (*group, before * count, count0 * count1 * count), passes * count)

    def _bias(self, stage, column, count=1):
        """Place of the bias rows of column tiles; they are loaded if they are not there."""
        key = stage, column, count
        if key not in self.bias_places:
            if self.total_biases <= self.config.bias_depth:
                place = self.bias_row(stage, column)
            else:
                place = self.bias_ring.take(count)
                self.bias_places = {other: at for other, at in self.bias_places.items()
                                    if at + other[2] <= place or place + count <= at}
            offset = ZEROS * 2 * self.n + self.bias_row(stage, column) * 4 * self.n
            self._emit(Opcode.LOAD_BIAS, {"region": Region.MODEL, "offset": offset, "rows": count, "bias": place},
                       [("bias", place, count, True)])
            self.bias_places[key] = place
        return self.bias_places[key]

    def bias_row(self, stage, column=0):
        """Number of a column tile's bias row in region MODEL."""
        return sum(tiles_of(other.channels, self.n) for other in self.stages[:stage]) + column

    @property
    def total_biases(self):
        return self.bias_row(len(self.stages))

    # Results

    def _place(self, stage, rectangle, sample, y, column, x=0):
        """Position of a result within a job's place."""
        rows = rectangle.rows[1] - rectangle.rows[0]
        tiles = self.layouts[stage.output].tiles
        return (((sample * rows + y) * tiles + column) * self.pitch + x)

    def _multiply(self, stage, rectangle, column, acc, result):
        """A row of positions at a time: both factors and the product lie apart otherwise."""
        (area, place), (samples, rows, columns) = self.factor, rectangle.sums
        for sample in range(samples):
            for y in range(rows):
                operand = place + area.place(rectangle.samples[0] + sample, rectangle.rows[0] + y, column, rectangle.columns[0])
                buffer = result + self._place(stage, rectangle, sample, y, column)
                low, high = min(operand, buffer), max(operand, buffer)
                self._emit(Opcode.MULTIPLY, {"rows": columns, "lanes": min(self.n, stage.channels - column * self.n), "buffer": buffer,
                                             "acc": acc + (sample * rows + y) * columns, "operand": operand},
                           [("acc", acc + (sample * rows + y) * columns, columns, False),
                            ("buffer", low, high - low + columns, True)])

    def _softmax(self, stage, rectangle, acc, sums, result):
        """A row of positions at a time, unless one tile holds all channels."""
        samples, rows, columns = rectangle.sums
        tiles = tiles_of(stage.channels, self.n)
        parts = samples * rows
        if tiles == 1 and (self.pitch == columns or parts == 1):
            parts, columns = 1, parts * columns
        for part in range(parts):
            buffer = result + self._scaled(stage, part * tiles * self.pitch)
            stride = self._scaled(stage, self.pitch)
            op = self._emit(Opcode.SOFTMAX, {
                "format": self._format(stage), "rows": columns,
                "lanes": stage.channels - (tiles - 1) * self.n, "buffer": buffer, "acc": acc + part * columns, "tiles": tiles,
                "acc_stride": sums, "buffer_stride": stride},
                [("acc", acc + part * columns, (tiles - 1) * sums + columns, False),
                 ("buffer", buffer, (tiles - 1) * stride + self._scaled(stage, columns), True)])
            op.rows = columns * 3 * stage.channels      # it reads every number three times, one a cycle

    def _activate(self, stage, rectangle, column, acc, result):
        if stage.times:
            self._multiply(stage, rectangle, column, acc, result)
            return
        fields = {"function": self._function(stage.function), "format": self._format(stage),
                  "lanes": min(self.n, stage.channels - column * self.n)}
        samples, rows, columns = rectangle.sums
        if stage.pool:
            self._pool_windows(stage, rectangle, column, acc, result, fields)
            return
        # Runs of rows that follow each other in the accumulators, and their distance in the result.
        if rows == columns == 1:
            outer, inner, step = samples, 1, self._place(stage, rectangle, 1, 0, 0)
        elif samples == 1:
            outer, inner, step = rows, columns, self._place(stage, rectangle, 0, 1, 0)
        else:
            outer, inner, step = samples * rows, columns, self._place(stage, rectangle, 0, 1, 0)
        self._write(stage, fields, acc, outer, inner, inner, 1, step, result + self._scaled(
            stage, self._place(stage, rectangle, 0, 0, column)))

    def _scaled(self, stage, positions):
        """Positions of a result, in vectors."""
        return positions * (2 if self._is_wide(stage) else 1)

    def _is_wide(self, stage):
        return self.wide and stage.output == self.graph.output

    def _format(self, stage):
        return Format.BINARY32 if self._is_wide(stage) else Format.BFLOAT16

    def _pool_windows(self, stage, rectangle, column, acc, result, fields):
        pool, width = stage.pool, rectangle.sums[2]
        for y, rows, wy, high in runs_of_windows(stage, 0, *rectangle.rows):
            for x, columns, wx, broad in runs_of_windows(stage, 1, *rectangle.columns):
                top = y * pool.stride[0] - pool.padding[0] + wy * pool.dilation[0] - rectangle.sum_rows[0]
                left = x * pool.stride[1] - pool.padding[1] + wx * pool.dilation[1] - rectangle.sum_columns[0]
                place = self._place(stage, rectangle, 0, y - rectangle.rows[0], column, x - rectangle.columns[0])
                self._write(stage, fields, acc + top * width + left, rows, columns, pool.stride[0] * width, pool.stride[1],
                            self._place(stage, rectangle, 0, 1, 0), result + self._scaled(stage, place),
                            window=(high, pool.dilation[0] * width, broad, pool.dilation[1]))

    def _write(self, stage, fields, acc, outer, inner, outer_stride, inner_stride, step, buffer, window=(1, 0, 1, 0)):
        """ACTIVATE or POOL of `outer` x `inner` results."""
        size = self._scaled(stage, 1)
        high, high_stride, broad, broad_stride = window
        read = ((outer - 1) * outer_stride + (inner - 1) * inner_stride + (high - 1) * high_stride + (broad - 1) * broad_stride + 1)
        plain = high == broad == 1 and inner_stride == 1
        if plain and (outer == 1 or outer_stride == inner and step == inner):
            rows = outer * inner
            self._emit(Opcode.ACTIVATE, {**fields, "rows": rows, "acc": acc, "buffer": buffer},
                       [("acc", acc, rows, False), ("buffer", buffer, rows * size, True)])
        elif plain and not self.config.pooling:
            for index in range(outer):
                self._write(stage, fields, acc + index * outer_stride, 1, inner, 0, 1, 0, buffer + index * step * size)
        else:
            op = self._emit(
                Opcode.POOL, {**fields, "acc": acc, "buffer": buffer, "rows0": inner, "rows0_stride": inner_stride, "rows1": outer,
                              "rows1_stride": outer_stride, "buffer_stride": step * size, "window0": broad,
                              "window0_stride": broad_stride, "window1": high, "window1_stride": high_stride},
                [("acc", acc, read, False), ("buffer", buffer, ((outer - 1) * step + inner) * size, True)])
            op.rows = outer * inner * high * broad

    def _function(self, function):
        """Its code; a function by table must have been loaded."""
        if self._is_table(function):
            return Function.TABLE
        return Function[(function if isinstance(function, str) else function.name).upper()]

    @staticmethod
    def _is_table(function):
        return not isinstance(function, str) and function.name not in ("none", "relu")

    def _load_table(self, function):
        """Puts a function into the function table, in parts that leave room for nothing else: operands come afterwards."""
        if function == self.table:
            return
        self.table = function
        number = self.tables.setdefault(function, len(self.tables))
        table = function.table()
        base = ZEROS * 2 * self.n + self.total_biases * 4 * self.n + number * 2 * TABLE_ENTRIES
        vectors = TABLE_ENTRIES // self.n
        part = min(vectors, self.operands.size)
        for start in range(0, vectors, part):
            rows = min(part, vectors - start)
            buffer = self.operands.take(rows)
            self._emit(Opcode.LOAD, {"region": Region.MODEL, "offset": base + start * 2 * self.n, "rows": rows, "buffer": buffer},
                       [("buffer", buffer, rows, True)])
            op = self._emit(Opcode.LOAD_TABLE, {"linear_low": table.linear_low, "linear_high": table.linear_high,
                                                "first": table.first, "rows": rows,
                                                "buffer": buffer, "entry": start * self.n}, [("buffer", buffer, rows, False)])
            op.rows = rows * self.n

    def _store(self, stage, rectangle, place, partial):
        layout, (top, left) = self.layouts[stage.output], stage.origin
        rows, (x, end_x) = rectangle.rows[1] - rectangle.rows[0], rectangle.columns
        scale = self._scaled(stage, 1)
        stretches, place_row = [], self.pitch if partial else rows * layout.row
        for sample in range(*rectangle.samples):
            if not partial:
                stretches.append((layout.position(sample, top + rectangle.rows[0]), place_row))
                continue
            for y in range(*rectangle.rows):
                stretches += [(layout.position(sample, top + y, tile, left + x), end_x - x) for tile in range(layout.tiles)]
        merged = []
        for index, (position, count) in enumerate(stretches):
            offset = index * place_row
            if merged and merged[-1][0] + merged[-1][2] == position and merged[-1][1] + merged[-1][2] == offset:
                merged[-1][2] += count
            else:
                merged.append([position, offset, count])
        for position, offset, count in merged:
            region, first = self.regions[stage.output]
            accesses = [("buffer", place + offset * scale, count * scale, False)]
            if region is Region.SCRATCH:
                accesses.append(("scratch", first + position, count, True))
            self._emit(Opcode.STORE, {"region": region, "offset": (first + position * scale) * 2 * self.n, "rows": count * scale,
                                      "buffer": place + offset * scale}, accesses)
