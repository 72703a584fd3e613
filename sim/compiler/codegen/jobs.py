"""Code generation for sums of matrix products, job by job."""

from dataclasses import replace
from functools import partial
from math import inf

from amaranth_tpu.hw.spec.isa import Region

from ..timing.units import MATMUL, turnaround
from ..tuning import FIRST_LOADS, LAST_LOADS, LAST_PART, SHORT_ROWS
from .band_jobs import positions_of, write_band_job
from .copy_jobs import add_copies
from .results import is_plain, key_of, write_results, write_update
from .tile_runs import Tile, alike, steps_of
from .window_jobs import WindowCode

__all__ = ["PIECE", "SumCode", "expand"]

PIECE = "piece"  # of a step


class SumCode:
    """Emits the jobs of a :class:`.MatrixSum` by its :class:`.SumPlan`. `take` allocates rows of the unified buffer for results,
    except results of Softmax and pooling. Default: the emitter's."""

    def __init__(self, emitter, sums, plan, take=None):
        self.take = take or emitter.memories.results.take
        self.emitter, self.sums, self.plan, self.n = emitter, sums, plan, emitter.n
        self.geometry = sums.shape.geometry

    def steps(self, row, rows, column, columns):
        """Emits the instructions of one job, which computes these rows and column tiles. Yields None between its steps, and
        `PIECE` between pieces of a step."""
        self.row, self.rows, self.column, self.columns = row, rows, column, columns
        self.each = min(rows, self.geometry.period)  # rows of a sample in the job
        if self.sums.products and self.sums.products[0].kind == "bands":
            self.biases = self._biases()
            yield from (PIECE for _ in write_band_job(self, self.sums.products[0], self.sums.results[0]))
            return
        self.is_only = self._is_only()
        self.parts = self._parts()
        self.acc = self.emitter.memories.sums_of(self.sums).take(rows * columns)
        self.started, last = False, next((one for one in reversed(self.sums.products) if one.kind != "diagonal"), None)
        if last is None:
            self._join()
        self.biases = self._biases()
        for number, phase in enumerate(self.sums.phases):
            if number and self.sums.phases[number - 1].results:
                yield
            for product in phase.products:
                if product.kind == "matrix":
                    yield from self._matrix(product)
                elif product.window:
                    yield from WindowCode(self, product).add()
                elif product.kind == "copied":
                    add_copies(self, product)
                else:
                    {"diagonal": self._diagonal, "total": self._total}[product.kind](product)
                if product is last:
                    self._join()
            if (phase.results or phase.update) and not self.started:
                self.begin_with_nothing()
            write_results(self, phase.results)
            if phase.update:
                write_update(self, phase.update)

    def _join(self):
        """Joins the column tiles of a parameter to one tile, if its rows follow each other in memory and in the accumulators, and
        if all results fit the unified buffer at once. All instructions that follow are then one for all column tiles."""
        shape, emitter, rows = self.sums.shape, self.emitter, self.rows * self.columns
        most = emitter.memories.results.size
        results = max(sum(one.rows(rows, most) for one in phase.results) for phase in self.sums.phases)
        if results > most or rows > emitter.memories.passing.size:
            return
        full = all(shape.lanes(self.column + c) == self.n for c in range(self.columns))
        diagonal = any(one.kind == "diagonal" and one.weights.form != "number" for one in self.sums.products)
        if shape.form == "turned" and self.rows == shape.rows and full and not diagonal:
            self.rows, self.columns = self.rows * self.columns, 1
            self.parts = [(0, 1, 0, self.rows)]

    def _parts(self):
        """Returns the parts `(first column tile, column tiles, first row, rows)` in which the last inputs are added and results
        are written. The results of a part are written beside the passes of the next."""
        rows, columns, results = self.rows, self.columns, self.sums.results
        if self.is_only and columns > LAST_PART:
            return [(0, columns - LAST_PART, 0, rows), (columns - LAST_PART, LAST_PART, 0, rows)]
        if self.is_only and rows >= 2 * SHORT_ROWS and is_plain(results) and results[0].matrix.wide:
            half = rows // 2
            return [(0, columns, 0, half), (0, columns, half, rows - half)]
        return [(0, columns, 0, rows)]

    def _is_only(self):
        """Returns True for the only job of a product with constant weights: no other job of the sums overlaps with its end."""
        products = self.sums.products
        is_constant = len(products) == 1 and products[0].is_constant(self.emitter.constants.lowered)
        return is_constant and self.rows == len(self.sums.rows) and self.columns == self.sums.shape.tiles

    # Initial sums

    def _biases(self):
        """Loads the initial sums. Returns the first bias row of each column tile."""
        start, emitter, column = self.sums.start, self.emitter, self.column
        kind = self.sums.start_rows
        if kind == "zeros":
            return [0] * self.columns
        if kind == "one":
            tiles = [(column + c, 0, 1) for c in range(self.columns)]
            first = emitter.bias_rows(start, [(0, column, self.columns)] if start.form == "vector" else tiles)
            return [first + c for c in range(self.columns)]
        row, rows = (self.row, self.rows) if kind == "rows" else (self.row % self.geometry.period, self.each)
        first = emitter.bias_rows(start, [(column + c, row, rows) for c in range(self.columns)])
        return [first + c * rows for c in range(self.columns)]

    def begin(self, place, loops, tiles, first, size, column=0):
        """Emits the first pass over `size` rows, starting at row `first` of the job. `tiles` has a weight tile for each column
        tile from `column` on. `place` is the first operand, `loops` the two loops over the rows."""
        kind, emitter = self.sums.start_rows, self.emitter
        if kind == "zeros" or kind == "one":
            emitter.bring(tiles)
            self.matmul(place, loops, first, column, tiles0=len(tiles), start=1, bias=self.biases[column])
            return
        (outer, _), (inner, inner_stride) = loops
        for c, tile in enumerate(tiles, column):
            if kind == "rows":
                emitter.bring([tile])
                self.matmul(place, loops, first, c, start=1, bias=self.biases[c] + first, bias_rows=1)
                continue
            assert outer == 1, "rows of transposed operands start from zeros"
            for sample in range(0, size, self.each):
                if sample == 0:
                    emitter.bring([tile])
                rows = (1, 0), (min(self.each, size - sample), inner_stride)
                fields = {"start": 1, "bias": self.biases[c], "bias_rows": 1, "keep": int(sample > 0)}
                self.matmul(place + sample * inner_stride, rows, first + sample, c, **fields)

    def begin_with_nothing(self):
        """Emits a pass that leaves the initial sums unchanged."""
        nothing = Tile(Region.MODEL, self.emitter.constants.nothing)
        self.begin(self.emitter.zeros, [(1, 0), (self.rows, 0)], [nothing] * self.columns, 0, self.rows)
        self.started = True

    # Products

    def matmul(self, place, loops, first, column=0, **fields):
        """Emits a MATMUL whose sums start at row `first` of a column tile, or of consecutive column tiles."""
        if fields.get("tiles0", 1) > 1:
            fields.setdefault("tiles0_acc_stride", self.rows)
        self.emitter.matmul(self.acc + column * self.rows + first, place, loops, **fields)

    def add(self, places, loops, tiles, first, column=0):
        """Emits passes over the operands at `places`, for each input tile. `tiles` has the weight tiles of each input tile."""
        while places:
            count = len(tiles[0])
            flat = [tile for some in tiles for tile in some]
            together = max(
                1, min(steps_of(places, inf if self.emitter.memories.is_step else self.rows), self.emitter.fit(flat) // count)
            )
            self.emitter.bring(flat[: together * count])
            stride = places[1] - places[0] if together > 1 else 0
            self.matmul(places[0], loops, first, column, tiles0=count, tiles1=together, tiles1_stride=stride)
            places, tiles = places[together:], tiles[together:]

    def _matrix(self, product):
        begun = self.started
        for first, count, inputs in [*alike(self.columns, partial(self._inputs_of, product))]:
            self.started = begun
            yield from self._add_inputs(product, inputs, first, count)

    def _inputs_of(self, product, column):
        lowered, inputs, row = self.emitter.constants.lowered, range(product.inputs), (self.column + column) * self.n
        if product.by_rows or product.turned or not lowered.is_weights(product.weights):
            return inputs
        return [k for k in inputs if not lowered.is_nothing(product.weights, k, row)] or [*inputs[: not self.started]]

    def _add_inputs(self, product, chosen, column, columns):
        """Adds the products of some tiles of inputs to column tiles."""
        emitter, period = self.emitter, self.geometry.period
        samples = range(self.row, self.row + self.rows, self.each) if product.own else (self.row,)
        size = self.each if product.own else self.rows
        begun, starts = self.started, self._starts(product, len(chosen))
        for first, end in zip(starts, [*starts[1:], len(chosen)]):
            inputs = chosen[first:end]
            operands = self._operands(product, inputs)
            for row in samples:
                self.started = begun or first > 0
                places, loops = self._places(product, operands, row, size, inputs)
                at = row // period * product.weights.geometry.period if product.own else 0
                outputs = range(self.column + column, self.column + column + columns)
                tiles = [[emitter.tile(product.weights, k, c, product.by_rows, at) for c in outputs] for k in inputs]
                first_row = row - self.row
                if not self.started:
                    self.begin(places[0], loops, tiles[0], first_row, size, column)
                    places, tiles = places[1:], tiles[1:]
                if product.by_rows and 2 * max(size, self.n) >= turnaround(emitter.config):
                    for c in range(columns):  # the tiles of an output are contiguous
                        self.add(places, loops, [some[c : c + 1] for some in tiles], first_row, column + c)
                        yield PIECE
                else:
                    in_parts = self.is_only and end == len(chosen) and columns == self.columns
                    for c, count, at, height in self.parts if in_parts else [(0, columns, 0, size)]:
                        some = [each[c : c + count] for each in tiles]
                        part = loops if height == size else [(1, 0), (height, 1)]
                        self.add([place + at for place in places], part, some, first_row + at, column + c)
                    yield PIECE
        self.started = True

    def _starts(self, product, inputs):
        step = max(1, self.plan.piece // product.held_rows(self.plan.rows, self.geometry.period))
        if self.is_only and self.emitter.issued[MATMUL] and inputs > LAST_PART:
            return [*range(0, inputs - LAST_PART, step), inputs - LAST_PART]  # they wait for the last results
        if self.emitter.issued[MATMUL] or product.turned:
            return [*range(0, inputs, step)]
        step = min(step, FIRST_LOADS[-1])
        starts = [*(one for one in FIRST_LOADS[:-1] if one < inputs and one < step), *range(step, inputs, step)]
        ends = [inputs - count for count in LAST_LOADS if count < inputs and self.columns == 1 < self.rows]
        return [one for one in starts if one < min(ends, default=inputs)] + ends

    def _operands(self, product, inputs):
        """Loads the operands of these input tiles, unless they are on the chip. Returns the first buffer row of each."""
        source, emitter = product.source, self.emitter
        if product.lanes:
            return positions_of(self, product, inputs)
        if not product.turned:
            return self.loaded(source, inputs, self.row, self.rows, emitter.memories.operands)
        if product.own:  # the tiles of channels are rows of the sums
            row, rows = (count // self.geometry.period * source.geometry.period for count in (self.row, self.rows))
            return self.loaded(source, range(source.tiles), row, rows, emitter.memories.operands, True)
        tiles, first, count = range(self.row // self.n, -(-(self.row + self.rows) // self.n)), inputs[0] * self.n, len(inputs)
        return self.loaded(source, tiles, first, count * self.n, emitter.memories.operands, True)

    def loaded(self, matrix, tiles, row, rows, store, turned=False):
        """Returns the buffer rows of tiles of a matrix. Loads those that are not on the chip, or, of transposed tiles, in
        `store`."""
        emitter, keys = self.emitter, [key_of(matrix, tile, row, rows, turned) for tile in tiles]
        there = store.has if turned else emitter.kept.__contains__
        while missing := [index for index, key in enumerate(keys) if not there(key)]:
            missing = [*range(len(keys))] if turned else missing
            place = store.take(len(missing) * rows)  # may forget others of these tiles
            for some in _together(missing, tiles, rows == matrix.stride):
                emitter.load(matrix, tiles[some[0]], row, rows * len(some), place, turned)
                for index in some:
                    emitter.kept[keys[index]] = place, rows
                    place += rows
        return [emitter.kept[key][0] for key in keys]

    def _places(self, product, operands, row, size, inputs):
        """Returns the first operand of each input tile, and the loops over the rows, for the rows of a job or of a sample."""
        n = self.n
        if product.lanes:
            return operands
        if not product.turned:
            return [place + row - self.row for place in operands], [(1, 0), (size, 1)]
        stride = operands[1] - operands[0] if len(operands) > 1 else 0
        loops = [(size // n, stride), (n, 1)]
        if product.own:
            first = (row - self.row) // self.geometry.period * product.source.geometry.period
            return [operands[0] + first + k * n for k in inputs], loops
        return [operands[0] + (k - inputs[0]) * n for k in inputs], loops

    def _diagonal(self, product):
        """Adds channels times factors. If possible, the rows of the source are loaded as weight tiles, which do not pass the
        port of the unified buffer."""
        emitter, source, weights, n = self.emitter, product.source, product.weights, self.n
        by_rows = emitter.config.attention and self.rows % n == 0 and (self.started or self.sums.start_rows in ("zeros", "one"))
        near = all(key_of(source, self.column + c, self.row, self.rows) in emitter.kept for c in range(self.columns))
        resident = emitter.resident(weights.name) if by_rows and not near else None
        if resident is not None:
            for c in range(self.columns):
                vector = emitter.offset(source, self.column + c, self.row)
                emitter.bring([Tile(source.region, vector + k * n, 1) for k in range(self.rows // n)])
                loop = "tiles1"  # the sums of all its passes start from the same bias row
                start = {"start": 1, "bias": self.biases[c]}
                if self.started:
                    loop, start = "tiles0", {}
                self.matmul(resident, [(1, 0), (n, 1)], 0, c, **{loop: self.rows // n, f"{loop}_acc_stride": n}, **start)
            self.started = True
            return
        begun = self.started
        for c in range(self.columns):
            (place,) = self.loaded(source, [self.column + c], self.row, self.rows, emitter.memories.passing)
            number = 0 if weights.form == "number" else self.column + c
            tile = emitter.tile_at(weights, 0, number * n)
            if begun:
                emitter.bring([tile])
                self.matmul(place, [(1, 0), (self.rows, 1)], 0, c)
            else:
                self.begin(place, [(1, 0), (self.rows, 1)], [tile], 0, self.rows, c)
        self.started = True

    def _total(self, product):
        """Adds the sums of the rows of a matrix. Its tile t of channels is row t of the sums."""
        emitter, ones, each = self.emitter, self.emitter.resident("ones"), int(self.sums.start is not None)
        for row in range(self.rows):
            tiles = [emitter.tile(product.weights, k, self.row + row, True) for k in range(product.inputs)]
            if not self.started:
                emitter.bring(tiles[:1])
                emitter.matmul(self.acc + row, ones, [(1, 0), (1, 0)], start=1, bias=self.biases[0] + row * each)
                tiles = tiles[1:]
            if tiles:
                emitter.bring(tiles)
                emitter.matmul(self.acc + row, ones, [(1, 0), (1, 0)], tiles1=len(tiles))
        self.started = True


def _together(indices, tiles, are_whole):
    """Returns the indices in lists. The tiles of a list follow each other in memory, if all rows are read."""
    lists = []
    for index in indices:
        if lists and are_whole and tiles[index] == tiles[lists[-1][-1]] + 1:
            lists[-1].append(index)
        else:
            lists.append([index])
    return lists


def expand(emitter, expansion):
    """Emits the writing of a vector of factors as diagonals of tiles: each row of a tile is the factors times a row of the
    identity."""
    vector, diagonal, n = expansion.source, expansion.made, emitter.n
    for row in range(vector.rows):
        acc, bias = emitter.memories.sums.take(n), emitter.bias_rows(replace(vector, wide=False), [(0, row, 1)])
        emitter.bring([Tile(Region.MODEL, emitter.constants.nothing)])
        emitter.matmul(acc, emitter.zeros, [(1, 0), (n, 0)], start=1, bias=bias)
        place = emitter.memories.results.take(n)
        emitter.multiply(n, n, acc, emitter.resident("identity"), place)
        emitter.store(diagonal, 0, row * n, n, place)
