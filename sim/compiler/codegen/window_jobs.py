"""Code generation for products of windows, in the jobs of :class:`sim.compiler.codegen.jobs.SumCode`."""

from itertools import groupby

import numpy as np

from ..memory.matrices import stretches
from ..memory.windows import merged_loops, segments_of
from ..tuning import IMAGE_SHARE, LOAD_COST, WINDOW_PART
from .tile_runs import alike, steps_of

__all__ = ["WindowCode"]


class WindowCode:
    """Emits the passes of one product of kind `"window"` in one job of a :class:`.SumCode`.

    Members
    -------
    segments : list of (int, int, int, int)
        See :func:`.segments_of`.
    shown : list of (int, int, int)
        Sample, first line and lines of each image: the segments, or all lines of the only sample.
    ends : list of int
        First row of each segment in the images, and the rows of all images.
    windows : list of Window
        The window, or that of each line of the kernel, if the images of all tiles are not on the chip together.
    down : int
        Row of the images for the first line of the only segment.
    """

    def __init__(self, code, product):
        self.code, self.product, self.window, self.emitter = code, product, product.window, code.emitter
        self.segments = segments_of(code.row, code.rows, code.geometry)
        self.shown = [tuple(lines) for _, *lines in self.segments]
        height, size = self.window.size[0], self.emitter.memories.operands.size
        tiles, rows_of = product.source.tiles, self.window.rows
        if len(self.segments) == 1 and self.segments[0][3] < height and tiles * rows_of(height) <= size // IMAGE_SHARE:
            self.shown = [(self.segments[0][1], 0, height)]  # jobs of a sample share its image
        self.windows = [self.window]
        if product.weights.form == "turned" and tiles * sum(rows_of(lines) for *_, lines in self.shown) > size:
            self.windows = [self.window.kernel_line(y) for y in range(self.window.kernel[0])]
        self.ends = np.cumsum([0, *(self.windows[0].rows(lines) for *_, lines in self.shown)]).tolist()
        self.down = sum((one[2] - first) * self.window.loops(1)[0][1] for one, (_, first, _) in zip(self.segments, self.shown))

    def add(self):
        """Adds the products of all kernel positions to the sums of the job. Yields between parts of the passes."""
        code, product = self.code, self.product
        if not self.segments:
            return
        if not code.started and code.sums.start_rows not in ("zeros", "one"):
            code.begin_with_nothing()
        begun, columns = code.started, range(code.columns)
        if product.weights.form == "turned":
            for first, count, inputs in alike(code.columns, self._inputs_of):
                for number, some in enumerate(self._fitting(inputs) if inputs else ()):
                    tiles = [self._tiles(position, k, range(first, first + count)) for position, k in some]
                    yield from self._pass(tiles, some, first, begun or number > 0)
        elif self._loops() and self._is_one_number():
            self._sum(begun)
        else:
            for c in columns:
                inputs = [(position, self.code.column + c) for position in self._positions()]
                yield from self._pass([[self._diagonal(position, c)] for position, _ in inputs], inputs, c, begun)
        code.started = True

    # Kernel positions and tiles

    def _positions(self):
        """Returns the kernel positions that are added. Positions whose operands are all zero are left out."""
        window = self.window
        read = [
            position
            for position in range(window.positions)
            if any(self.window.reach(position, first, lines) for *_, first, lines in self.segments)
        ]
        return read or [0]

    def _fitting(self, inputs):
        """Divides inputs into lists with one of `windows`, whose images of all tiles are on the chip together."""
        most, some, tiles = max(1, self.emitter.memories.operands.size // self.ends[-1]), [], set()
        for position, k in inputs:
            if len(tiles | {k}) > most or some and self._window(position) != self._window(some[0][0]):
                yield some
                some, tiles = [], set()
            some.append((position, k))
            tiles.add(k)
        yield some

    def _window(self, position):
        return self.windows[position // self.windows[0].positions]

    def _inputs_of(self, column):
        weights, lowered = self.product.weights, self.emitter.constants.lowered
        inputs = [(position, k) for position in self._positions() for k in range(self.product.source.tiles)]
        if self.product.by_rows or not lowered.is_weights(weights):
            return inputs
        each, row = weights.each, (self.code.column + column) * self.code.n
        own = [(position, k) for position, k in inputs if not lowered.is_nothing(weights, position * each + k, row)]
        return own or inputs[: not self.code.started]

    def _tiles(self, position, k, columns):
        """Returns the weight tile of column tiles, for a kernel position and a tile of channels of the source."""
        code, weights, each = self.code, self.product.weights, self.product.weights.each
        if self.product.by_rows:
            position = self.window.positions - 1 - position
            return [self.emitter.tile(weights, k, position * each + code.column + c, True) for c in columns]
        return [self.emitter.tile(weights, position * each + k, code.column + c, False) for c in columns]

    def _diagonal(self, position, column):
        emitter, weights, n = self.emitter, self.product.weights, self.code.n
        position = self.window.positions - 1 - position if self.product.by_rows else position
        number = position * self.product.source.tiles + self.code.column + column
        return emitter.tile_at(weights, 0, 0 if weights.form == "number" else number * n)

    # Passes

    def _is_one_number(self):
        values = self.emitter.constants.lowered.step.constants.get(self.product.weights.name)
        return values is not None and bool((values == values.flat[0]).all())

    def _sum(self, begun):
        """Emits the passes of all kernel positions with one weight tile, which stays in the array. Column tiles are together if
        their images are on the chip together, at one distance from each other."""
        code, column = self.code, 0
        self.emitter.bring([self._diagonal(0, 0)])
        while column < code.columns:
            most = max(1, min(code.columns - column, self.emitter.memories.operands.size // self.ends[-1]))
            tiles = [code.column + c for c in range(column, column + most)]
            images = self._images(tiles, self.window)
            first = [images[tile] + self.down for tile in tiles]
            count = steps_of(first)
            self._sum_of(first[0], first[1] - first[0] if count > 1 else 0, column, count, begun)
            column += count

    def _sum_of(self, place, step, column, count, begun):
        """Emits the passes for `count` column tiles whose images begin at `place`, at the distance `step`."""
        code, window, loops = self.code, self.window, self._loops()
        start = {} if begun else {"start": 1, "bias": code.biases[column]}
        code.matmul(place, loops, 0, column, keep=int(column > 0), **start)
        if count > 1:
            start = start and {"start": 1, "bias": code.biases[column + 1]}
            code.matmul(place + step, loops, 0, column + 1, keep=1, tiles0=count - 1, tiles0_stride=step, **start)
        offsets = [window.offset(position) for position in range(1, window.positions)]
        while offsets:
            some = steps_of(offsets)
            stride = offsets[1] - offsets[0] if some > 1 else 0
            fields = {"tiles1": some, "tiles1_stride": stride, "tiles0": count, "tiles0_stride": step}
            code.matmul(place + offsets[0], loops, 0, column, keep=1, **fields)
            offsets = offsets[some:]

    def _pass(self, tiles, inputs, column, begun):
        """Emits passes over `inputs`, pairs of a kernel position and a tile of the source. Yields between parts. `tiles` has the
        weight tiles of the column tiles from `column` on, for each input."""
        code, window = self.code, self._window(inputs[0][0])
        images = self._images(sorted({k for _, k in inputs}), window)
        places = [images[k] + self.down + window.offset(position % window.positions) for position, k in inputs]
        passes, loops = [*zip((position for position, _ in inputs), places, tiles)], self._loops()
        each = -(-WINDOW_PART // (len(tiles[0]) * max(code.rows, code.n)))
        if not begun and loops:
            code.begin(places[0], loops, tiles[0], 0, code.rows, column)
            passes, begun = passes[1:], True
        left = len(passes)
        for some in self._groups(passes, each, bool(loops)):
            if loops:
                self._add(some, column)
            else:
                for position, place, weights in some:
                    for c, tile in enumerate(weights, column):
                        self._one(position, place, tile, c, begun)
                    begun = True
            left -= len(some)
            if left:
                yield

    def _groups(self, passes, most, alike):
        """Divides passes into lists of at most `most`. If `alike`, the passes of a list add to the same rows."""
        for _, alike_ones in groupby(passes, lambda one: self._reaches(one[0]) if alike else None):
            some = [*alike_ones]
            yield from (some[first : first + most] for first in range(0, len(some), most))

    def _add(self, passes, column):
        (position, *_), *_ = passes
        loops, down, row = self._loops(), 0, 0
        if len(self.segments) == 1:
            ((first, end),) = self._reaches(position)
            (_, pitch), (width, _) = self.window.loops(1)
            loops, down, row = merged_loops(self.window.loops(end - first)), first * pitch, first * width
        self.code.add([place + down for _, place, _ in passes], loops, [tiles for *_, tiles in passes], row, column)

    def _reaches(self, position):
        """Returns the lines of each segment, (first, end), that a pass after the first adds to: those with operands that are not
        zero. With finite weights, the others change no sum."""
        return tuple(self.window.reach(position, first, lines) or (0, lines) for *_, first, lines in self.segments)

    def _loops(self):
        lines, geometry = {lines for *_, lines in self.segments}, self.code.geometry
        if len(lines) > 1 or len(self.segments) > 1 and geometry.period > geometry.positions:
            return None
        return merged_loops([(len(self.segments), self.ends[1]), *self.window.loops(*lines)])

    def _one(self, position, place, tile, column, begun):
        code, window = self.code, self.window
        self.emitter.bring([tile])
        start = {} if begun else {"start": 1, "bias": code.biases[column]}
        (_, pitch), (width, _) = window.loops(1)
        parts = zip(self.ends, self.segments, self._reaches(position))
        for number, (image, (row, *_, lines), (first, end)) in enumerate(parts):
            low, high = (first, end) if begun else (0, lines)
            loops = window.loops(high - low)
            code.matmul(place + image + low * pitch, loops, row + low * width, column, keep=int(number > 0), **start)

    # Images

    def _images(self, tiles, window):
        """Loads the images of tiles of the source, unless the store of this job has them: jobs of updates write into their own
        store before this job is complete. Returns {tile: first row}."""
        source, tiles = self.product.source, [*tiles]
        keys = [(source.name, source.form, tile, *self.shown, window) for tile in tiles]
        store, load = self.emitter.memories.operands, lambda index, place: self._load(tiles[index], place, window)
        return dict(zip(tiles, store.place(keys, self.ends[-1], load)))

    def _load(self, tile, place, window):
        emitter, source, period = self.emitter, self.product.source, self.product.source.geometry.period
        images = [window.image(first, lines) for _, first, lines in self.shown]
        images = [np.where(image < 0, -1, image + sample * period) for image, (sample, *_) in zip(images, self.shown)]
        rows = np.concatenate(images)
        zeros, there = [*stretches(np.flatnonzero(rows < 0))], np.flatnonzero(rows >= 0)
        apart = sum(count + LOAD_COST for _, count in zeros) < self.ends[-1] + LOAD_COST
        for first, count in zeros if apart else [(0, self.ends[-1])]:
            emitter.load_zeros(place + first, count)
        for first, row, count in stretches(there, rows[there]):
            emitter.load(source, tile, row, count, place + first)
