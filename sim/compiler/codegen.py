"""From a graph of stages to instructions in order: stage after stage over the whole batch, job after job.

Every tensor lies in host memory, in INPUT, SCRATCH or OUTPUT; a job brings the operands of a rectangle of results to the unified
buffer, sums, activates into another part of it, and stores. As in :mod:`sim.compiler.residency` this order defines the result,
nothing waits, and :mod:`sim.compiler.scheduling` puts the instructions where they overlap.
"""

import numpy as np

from amaranth_tpu.hw.spec.isa import Opcode, Region

from .emitter import ZEROS, Emitter
from .im2col import fold
from .layout import layout_of
from .memory_map import tiles_of
from .program import CompileError
from .residency import Ring
from .results import Results, is_table
from .split_pool import split_windows
from .tiling import Area, NothingFits, passes_of, plan_stage

__all__ = ["GraphSchedule"]

#: Stands for the tensor that the result is multiplied with, among the areas of operands.
_FACTOR = object()


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
    """All instructions of a graph's program but LOAD_WEIGHTS and HALT: `emitter.ops`.

    Parameters
    ----------
    graph : Graph
    config : Config
    batch : int

    Members
    -------
    graph : as it was given, but for :func:`sim.compiler.split_pool.split_windows`. `stages`, `gathers` : see :func:`sim.compiler.im2col.fold`.
    layouts : dict of tensor name to Layout. `regions` : to `(Region, first position)`.
    plans : StagePlan of every stage.
    """

    def __init__(self, graph, config, batch):
        self.graph = graph = split_windows(graph, config.accumulator_depth)
        self.config, self.batch, self.n = config, batch, config.n
        self.wide = any(map(graph.is_wide, graph.stages))
        self.stages, self.gathers = fold(graph, config.n)
        self._check()
        self._lay_out_host()
        self._lay_out_buffer()
        self.emitter = Emitter(config, self.stages, self.regions, self.sizes[Region.SCRATCH])
        if self.zeros:
            self.emitter.load_zeros(0, self.zeros)
            self._zero_margins()
        for self.emitter.stage, (stage, plan) in enumerate(zip(self.stages, self.plans)):
            self._run_stage(stage, plan)

    def _check(self):
        """That the core has what the stages need."""
        for stage in self.stages:
            lacking = [(stage.pool, self.config.pooling, "pooling"), (stage.softmax, self.config.softmax, "softmax"),
                       (is_table(stage.function) or stage.times, self.config.table_lanes, "table_lanes")]
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
        readers = {}
        for stage in self.stages:
            for term in stage.terms:
                readers.setdefault(term.source, []).append((term, stage.sums_size))
        self.layouts, self.regions = {}, {}
        sizes = {Region.INPUT: 0, Region.SCRATCH: 0, Region.OUTPUT: 0}
        written = dict.fromkeys(stage.output for stage in self.stages)
        for name in [*inputs, *written]:
            layout = layout_of(tensors[name], self.n, self.batch, readers.get(name, ()))
            region = Region.INPUT if name in inputs else Region.OUTPUT if name == self.graph.output else Region.SCRATCH
            if region is Region.OUTPUT and name in used:
                raise CompileError(f"{self.graph.name}: its output {name!r} is also used inside, which is not supported")
            self.layouts[name], self.regions[name] = layout, (region, sizes[region])
            sizes[region] += layout.size * (2 if region is Region.OUTPUT and self.wide else 1)
        self.sizes = sizes

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
                stretches += [(layout.position(sample, y, tile, layout.tensor.width), layout.beside)
                              for sample in range(self.batch) for y in range(layout.tensor.height)
                               for tile in range(layout.tiles)]
            for position, count in stretches:
                for first in range(0, count, self.zeros):
                    self.emitter.move(Opcode.STORE, name, position + first, 0, min(self.zeros, count - first))

    # A stage

    def _partial(self, stage, plan):
        """Whether a job makes parts of rows, which are stored piece by piece and without the margin."""
        return plan.columns < self.layouts[stage.output].tensor.width

    def _is_wide(self, stage):
        return self.wide and stage.output == self.graph.output

    def _run_stage(self, stage, plan):
        layout, partial = self.layouts[stage.output], self._partial(stage, plan)
        staging = self.config.unified_buffer_depth - plan.slots * plan.staging
        self.operands = Ring(self.zeros, staging - self.zeros)
        results = Results(self.emitter, stage, layout, partial=partial, pitch=plan.columns if partial else layout.pitch,
                          wide=self._is_wide(stage))
        if is_table(stage.function):
            self.emitter.load_table(stage.function, self.operands)
        if layout.beside and not partial:
            self.emitter.load_zeros(staging, plan.slots * plan.staging)
        for job, rectangle in enumerate(plan.rectangles(stage, self.batch)):
            place = staging + job % plan.slots * plan.staging
            self._job(stage, plan, rectangle, results, place)
            results.store(rectangle, place)

    def _job(self, stage, plan, rectangle, results, place):
        """Sums and results of a rectangle. Softmax needs the sums of all column tiles at once."""
        columns, sums = tiles_of(stage.channels, self.n), int(np.prod(rectangle.sums))
        areas = self._load_block(stage, plan, rectangle, plan.blocks[0]) if len(plan.blocks) == 1 else None
        held = self.emitter.acc_ring.take(columns * sums) if stage.softmax else None
        for column in range(0, columns, plan.together):
            count = min(plan.together, columns - column)
            acc = held + column * sums if stage.softmax else self.emitter.acc_ring.take(count * sums)
            last = self._sum(stage, plan, rectangle, column, count, acc, sums, areas)
            for c in range(0 if stage.softmax else count):
                results.activate(rectangle, column + c, acc + c * sums, place, last.get(_FACTOR))
        if stage.softmax:
            results.softmax(rectangle, held, sums, place)

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
                self.emitter.move(Opcode.LOAD, stage.times if source is _FACTOR else source, host, place + offset, count)
            found[source] = area, place
            place += area.size
        return found

    def _sum(self, stage, plan, rectangle, column, count, acc, sums, areas):
        """All passes of `count` column tiles. Returns the areas of operands that are there at the end."""
        passes = passes_of(stage, self.n, column, self.layouts)
        of_term = {}
        for one in passes:
            of_term.setdefault(one[0], []).append(one)
        group, before, bias = (self.emitter.stage, column, count), 0, self.emitter.bias(column, count)
        for block in plan.blocks:
            if len(plan.blocks) > 1:
                areas = self._load_block(stage, plan, rectangle, block)
            for index, ky, end_ky, tile, end_tile in block:
                mine = [p for p in of_term.get(index, ()) if ky <= p[1] < end_ky and tile <= p[3] < end_tile]
                if not mine:
                    continue
                places, rows = self._operands(stage.terms[index], rectangle, mine, areas)
                first = 0
                if before == 0:
                    self._matmul(group, count, before, (places[0], 1, 0, 1, 0), rows, acc, sums, len(passes), bias)
                    first = before = 1
                for loops in self._passes(places[first:], count):
                    self._matmul(group, count, before, loops, rows, acc, sums, len(passes))
                    before += loops[1] * loops[3]
        assert before == len(passes)
        return areas

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
        self.emitter.emit(Opcode.MATMUL, fields, accesses, (*group, before * count, count0 * count1 * count), passes * count)
