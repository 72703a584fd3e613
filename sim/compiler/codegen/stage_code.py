"""Code generation for one stage: its jobs, the loads of their operands, and their sums."""

from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.spec.isa import Opcode

from ..memory.areas import Placed, whole_area
from ..memory.data_tiles import ends_with_zeros
from ..tiling.stage_tiling import reads_transposed
from ..tiling.weight_passes import count_passes, loaded_tiles, passes_of, tile_steps
from ..timing.model import turnaround
from .matmuls import Group
from .results import Results

__all__ = ["StageCode"]

#: Row of the unified buffer that holds zeros, if there are margins.
ZERO_ROW = 0

#: Key of the tensor that is read at the results' positions, among the operands.
_BESIDE = object()
_PIECES = 8  # loads of a chunk's operands, so that loads overlap with passes


class StageCode:
    """Generates the instructions of one stage.

    Parameters
    ----------
    emitter : Emitter
    batched : Batched
    layouts : dict of str to Layout
    run : RunPlan
    number : int
        Index of the stage in `batched.stages`.
    homes : dict of str to (int, int)
        Resident tensors: first row in the unified buffer, and number of samples (or chunks) whose values fit there at the same
        time.
    operands, staging, acc : Ring
        Allocators for operands and staged results in the unified buffer, and for sums in the accumulators.
    """

    def __init__(self, emitter, batched, layouts, run, number, homes, operands, staging, acc):
        self.emitter, self.batched, self.layouts, self.run, self.n = emitter, batched, layouts, run, emitter.n
        self.number, self.stage, self.plan = number, batched.stages[number], run.plans[number - run.stages[0]]
        self.homes, self.operands, self.staging, self.acc = homes, operands, staging, acc
        self.layout, self.rectangles = layouts[self.stage.output], self.plan.rectangles(self.stage, batched)
        self.zeroed, self.forms = set(), {}
        self.shared, self.shares = {}, False
        self.results = Results(emitter, self.stage, batched.vectors(self.stage.output))
        self.passes, self.lists = count_passes(self.stage, self.n), {}

    def share(self, shared, shares):
        """Sets `shared`, which maps `(tensor, Area)` to the :class:`.Placed` operands that jobs of all stages have loaded and
        that are still in the buffer. If `shares` is True, the next job uses these operands and adds its own."""
        self.shared, self.shares = shared, shares and len(self.plan.blocks) == 1

    def prepare(self):
        """Emits the instructions that precede all jobs. They load the table of the stage's function, and write zeros to the
        columns after the staged results."""
        if self.stage.function.is_table:
            self.emitter.load_table(self.stage.function, self.operands)
        if self.stage.output in self.homes:
            return
        whole = self.stage.reflow or self.plan.columns == self.layout.tensor.width
        if whole and self.layout.beside:
            self.emitter.load_zeros(self.staging.base, self.staging.size)

    # Jobs. They, and the methods that they call, yield where jobs of other stages may be inserted: True between groups.

    def job(self, rectangle, *, first=False, last=False):
        """Emits the instructions of one job: the sums and results of a rectangle. With samples along x, the results of each group
        of column tiles are written as soon as its sums are complete. Softmax needs the sums of all column tiles at once. It is a
        generator: it yields where jobs of other stages may be inserted, True between groups and False within a group.

        Parameters
        ----------
        first, last : bool
            For samples along x: True for the first and for the last job of the program.
        """
        stage, sums, home = self.stage, rectangle.volume, self.stage.output in self.homes
        whole = stage.softmax or not self.layout.along_x
        if home:
            result = self._home(stage.output, rectangle)
            self._zero_margins(result)
        else:
            result = Placed(self.plan.result(stage, rectangle, self.layouts), 0, self.results.size)
            if whole:
                result.place = self.staging.take(self.plan.staging or result.area.size * self.results.size)
        begin, end = rectangle.tiles or (0, self.layout.tiles)
        cuts, column = {} if whole else self._cuts(first), begin
        operands = self._load_block(rectangle, self.plan.blocks[0], cuts) if len(self.plan.blocks) == 1 else None
        held = self.acc.take(self.layout.tiles * sums) if stage.softmax else None
        transposed = reads_transposed(stage, self.layouts)
        for count in self.plan.groups:
            if column > begin:
                yield True
            ends = column + count == self.layout.tiles
            size = -(-sums // self.run.tail) if last and ends and not whole and not stage.times else sums
            parts = [(begin, min(size, sums - begin)) for begin in range(0, sums, size)]
            acc = self.acc.take(count * sums) if held is None else held + column * sums
            operands = yield from self._sum(rectangle, (column, count), acc, sums, operands, cuts, parts)
            factor = operands.get(_BESIDE)
            if not whole:
                self.results.write_group(
                    rectangle,
                    (column, count),
                    acc,
                    parts,
                    area=result.area,
                    home=result.place if home else None,
                    staging=self.staging,
                    factor=factor,
                    single=ends and home,
                )
            elif transposed and count > 1:
                self.results.activate_across(rectangle, (column, count), acc, result)
            elif not stage.softmax:
                for c in range(count):
                    self.results.activate(rectangle, column + c, acc + c * sums, result, factor)
            column += count
        if stage.softmax:
            self.results.softmax(rectangle, held, sums, result)
        if whole and not home:
            self.results.store(result)

    def _home(self, name, rectangle):
        """Returns the :class:`.Placed` area, in the home of the resident tensor `name`, of the rectangle's sample or chunk. The
        samples use the home's areas in turn."""
        area, (place, samples) = whole_area(self.layouts[name], rectangle.samples), self.homes[name]
        return Placed(area, place + self.turns(rectangle)[0] % samples * area.size)

    def turns(self, rectangle):
        """Returns the turns (first, end) of a job; see :meth:`.RunPlan.turns`."""
        return self.run.turns(self.number, rectangle.samples, self.batched.batch)

    def _zero_margins(self, home):
        """Loads zeros around a sample of a resident tensor. Does nothing if this part of the tensor's home has been used before,
        as the zeros are then still there."""
        if home.place not in self.zeroed:
            self.zeroed.add(home.place)
            for first, count in home.area.margins():
                self.emitter.load_zeros(home.place + first, count)

    def cycles(self, rectangles):
        """Returns the array cycles of the jobs for these rectangles."""
        return self.passes / (len(self.plan.tiles) or 1) * sum(max(self.n, rectangle.volume) for rectangle in rectangles)

    def work(self, rectangles):
        """Returns the cycles of these jobs on the array or, if softmax takes longer, on the activation unit."""
        if not self.stage.softmax:
            return self.cycles(rectangles)
        rows = sum(rectangle.volume for rectangle in rectangles)
        fields = {"rows": rows, "tiles": self.layout.tiles, **self.results.fields(self.layout.tiles - 1)}
        return max(self.cycles(rectangles), result_cycles(self.emitter.config, Opcode.SOFTMAX, fields)[0])

    # Operands

    def _cuts(self, first):
        """Returns `{source: [tile, ...]}`: the channel tiles at which the passes over a source with samples along x are split, so
        that passes over one part overlap with the loads (or the writing) of the next part. `first` is True if nothing has been
        loaded yet; the first parts are then small."""
        cuts = {}
        if len(self.plan.blocks) > 1:
            return cuts
        for source in {term.source for term in self.stage.terms}:
            tiles = self.layouts[source].tiles
            if not self.layouts[source].along_x:
                continue
            if source in self.homes:
                group = max(
                    (
                        plan.groups[-1]
                        for number, plan in zip(self.run.stages, self.run.plans)
                        if self.batched.stages[number].output == source
                    ),
                    default=1,
                )
                cuts[source] = list(range(tiles - group, tiles))
            elif first:
                sizes, cuts[source] = [*self.run.first], [0]
                while cuts[source][-1] < tiles:
                    cuts[source].append(cuts[source][-1] + (sizes.pop(0) if len(sizes) > 1 else sizes[0]))
            else:
                cuts[source] = list(range(0, tiles, -(-tiles // _PIECES)))
        return cuts

    def _load_block(self, rectangle, block, cuts=None):
        """Allocates the operands of a block and loads them. Returns `{source: Placed}`. Sources in `cuts` are loaded later, part
        by part, before the passes that need them."""
        stage, areas, found = self.stage, self.plan.areas(self.stage, rectangle, block, self.layouts), {}
        if stage.times and block is self.plan.blocks[-1]:
            areas[_BESIDE] = self.plan.beside(stage, rectangle, self.layouts)
        names = {source: stage.times if source is _BESIDE else source for source in areas}
        for source, area in areas.items():
            if self.shares and (names[source], area) in self.shared and source is not _BESIDE:
                found[source] = self.shared[names[source], area]
        taken = [area.size for source, area in areas.items() if names[source] not in self.homes and source not in found]
        place = self._take(sum(taken)) if taken else 0
        for source, area in areas.items():
            name = names[source]
            if source in found:
                continue
            if name in self.homes:
                found[source] = self._home(name, rectangle)
                continue
            ends = [end for end in (cuts or {}).get(source, ()) if area.tiles[0] < end < area.tiles[1]]
            found[source] = operand = Placed(area, place, loads=area.loads(ends))
            if self._has_margins(place, area) and area.layout.splits == {"tile"}:
                operand.loads = [(area.tiles[0], area.inner_transfers())]
            if not ends:
                self._load(name, operand, area.tiles[1])
                if self.shares:
                    self.shared[name, area] = operand
            place += area.size
        return found

    def _take(self, count):
        """Allocates `count` rows for operands, and removes the operands that were in these rows from `shared`."""
        place = self.operands.take(count)
        over = [key for key, old in self.shared.items() if place < old.place + old.area.size and old.place < place + count]
        for key in over:
            del self.shared[key]
        return place

    def _has_margins(self, place, area):
        """Checks whether the previous operand at this address had the same shape. The zeros around it are then still in the
        buffer."""
        form = area.size, area.rows, area.tiles[1] - area.tiles[0]
        if self.forms.get(place) == form:
            return True
        self.forms = {at: other for at, other in self.forms.items() if at + other[0] <= place or place + area.size <= at}
        self.forms[place] = form
        return False

    def _load(self, name, operand, tiles):
        """Emits the pending loads of the operand's channel tiles with an index below `tiles`."""
        transposed = {"transpose": 1} if self.layouts[name].tensor.view else {}
        while operand.loads and operand.loads[0][0] < tiles:
            for host, offset, count in operand.loads.pop(0)[1]:
                self.emitter.move(Opcode.LOAD, name, host, operand.place + offset, count, **transposed)

    def _operands(self, term, rectangle, passes, operand):
        """Returns the addresses and loops of passes for MATMUL: the first buffer row of each pass, and the two loops over the
        rows of a pass."""
        area, (samples, rows, columns) = operand.area, rectangle.sums
        y, x = (
            first * stride - padding
            for first, stride, padding in zip((rectangle.sum_rows[0], rectangle.sum_columns[0]), term.stride, term.padding)
        )
        first = area.samples[0]
        places = [operand.at(first, y + ky * term.dilation[0], tile, x + kx * term.dilation[1]) for _, ky, kx, tile in passes]
        strides = area.sample, term.stride[0] * area.row, term.stride[1] * area.column
        if rectangle.batch and not area.layout.along_x:
            strides = 0, 0, area.sample
        loops = []
        for count, stride in zip((samples, rows, columns), strides):
            if loops and loops[-1][1] == count * stride:
                loops[-1] = loops[-1][0] * count, stride
            elif count > 1:
                loops.append((count, stride))
        return places, [(1, 0)] * (2 - len(loops)) + loops

    # Sums

    def _sum(self, rectangle, columns, acc, sums, operands, cuts, parts):
        """Emits all passes of a group of column tiles, (first, count). Returns `{source: Placed}` with the operands of the last
        block."""
        passes = self._passes(columns[0])
        tiles = self.emitter.tiles(columns, passes, rectangle.samples[0])
        count = len(passes) + ends_with_zeros(self.stage, self.n)
        whole = self._whole(count, sums, parts)
        steps, rows = tile_steps(self.stage, self.n) if columns[1] > 1 else {}, None
        if self.stage.has_bias_rows:
            rows = [self.emitter.bias_rows(columns[0] + c, rectangle) for c in range(columns[1])]
        loads = None if tiles else loaded_tiles(self.stage, self.n, *columns)
        first, together = columns
        group = Group(self.emitter, first, together, acc, sums, count, parts, whole, bias_rows=rows, tiles=tiles, loads=loads)
        for block in self.plan.blocks:
            if len(self.plan.blocks) > 1:
                operands = self._load_block(rectangle, block)
            for part in block:
                term = self.stage.terms[part[0]]
                operand = operands[term.source]
                step = steps.get(part[0], 0)
                for some in _cut(self._passes(columns[0], part), self._ends(term.source, columns[0], cuts)):
                    self._load(term.source, operand, some[-1][3] + 1 + step * (columns[1] - 1))
                    across = operand.at(0, 0, some[0][3] + step, 0) - operand.at(0, 0, some[0][3], 0)
                    places, loops = self._operands(term, rectangle, some, operand)
                    yield from group.add(places, loops, across)
        if group.done < count:
            yield from group.add([ZERO_ROW], [(1, 0), (sums, 0)])
        assert group.done == count
        return operands

    def _passes(self, column, part=None):
        """Returns the passes of a column tile. `part` selects a part of a block: (term, first and end row of the kernel, first
        and end channel tile)."""
        key = 0 if self.stage.is_uniform else column, part
        if key not in self.lists:
            passes = passes_of(self.stage, self.n, column) if part is None else self._passes(column)
            if part is not None:
                index, ky, end_ky, tile, end_tile = part
                passes = [p for p in passes if p[0] == index and ky <= p[1] < end_ky and tile <= p[3] < end_tile]
            self.lists[key] = passes
        return self.lists[key]

    def _ends(self, source, column, cuts):
        """Returns the channel tiles at which the passes over a source are split for column tile `column`. They are split in the
        first group. They are split in all groups if the loads of the next chunk must wait for the memory of these operands."""
        if source not in cuts:
            return ()
        waited = source not in self.homes and self.batched.chunks > 1 and 2 * self.layouts[source].sample > self.operands.size
        return cuts[source] if column == 0 or waited else ()

    def _whole(self, passes, rows, parts):
        """Returns the number of passes that compute all rows at once. The passes after them are split into `parts`. There are
        just enough split passes to hide the time until a part's sums can be read."""
        return passes if len(parts) == 1 else max(0, passes - 1 - -(-turnaround(self.emitter.config) // max(rows, self.n)))


def _cut(passes, ends):
    """Splits passes into consecutive lists and yields them. A new list begins at the first pass of each channel tile in
    `ends`."""
    stretch = []
    for one in passes:
        if stretch and one[3] in ends:
            yield stretch
            stretch = []
        stretch.append(one)
    if stretch:
        yield stretch
