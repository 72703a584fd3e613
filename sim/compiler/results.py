"""The way out of the accumulators: activation, pooling, softmax, products, and the way back to host memory."""

from amaranth_tpu.hw.spec.isa import Format, Function, Opcode

from ..ir.tiles import tiles_of
from .tiling import runs_of_windows

__all__ = ["Results"]


def _code(function):
    return Function.TABLE if function.is_table else Function[function.name.upper()]


class Results:
    """Writes the results of one stage.

    Parameters
    ----------
    emitter : Emitter
    stage : Stage
    layout : Layout
        Of its output.
    partial : bool
        Whether a job makes parts of rows, which are stored piece by piece and without the margin.
    pitch : int
        Positions between two rows of a tile in the unified buffer.
    wide : bool
        Whether results are binary32: two vectors a position.
    """

    def __init__(self, emitter, stage, layout, *, partial, pitch, wide):
        self.emitter, self.stage, self.layout, self.n = emitter, stage, layout, emitter.n
        self.partial, self.pitch = partial, pitch
        self.size = 2 if wide else 1            # vectors of a position
        self.format = Format.BINARY32 if wide else Format.BFLOAT16

    def activate(self, rectangle, column, acc, result, factor):
        """Sums of a column tile at `acc` -> its positions of the job's place `result` in the unified buffer. `factor` is the area
        that products are made with, and its place."""
        stage = self.stage
        if stage.times:
            self._multiply(rectangle, column, acc, result, factor)
            return
        fields = {"function": _code(stage.function), "format": self.format, "lanes": self._lanes(column)}
        if stage.pool:
            self._pool_windows(rectangle, column, acc, result, fields)
            return
        # Runs of rows that follow each other in the accumulators, and their distance in the result.
        samples, rows, columns = rectangle.sums
        runs = (samples, 1, self._place(rectangle, 1, 0)) if rows == columns == 1 else \
            (samples * rows, columns, self._place(rectangle, 0, 1))
        self._write(fields, acc, *runs, result + self._place(rectangle, 0, 0, column) * self.size)

    def softmax(self, rectangle, acc, sums, result):
        """Sums of all column tiles, `sums` rows each: a row of positions at a time, unless one tile holds all channels."""
        samples, rows, columns = rectangle.sums
        tiles, parts = tiles_of(self.stage.channels, self.n), samples * rows
        if tiles == 1 and (self.pitch == columns or parts == 1):
            parts, columns = 1, parts * columns
        stride = self.pitch * self.size
        for part in range(parts):
            first, buffer = acc + part * columns, result + part * tiles * stride
            self.emitter.emit(
                Opcode.SOFTMAX, {"format": self.format, "rows": columns, "lanes": self._lanes(tiles - 1), "buffer": buffer,
                                 "acc": first, "tiles": tiles, "acc_stride": sums, "buffer_stride": stride},
                [("acc", first, (tiles - 1) * sums + columns, False),
                 ("buffer", buffer, (tiles - 1) * stride + columns * self.size, True)])

    def write_group(self, rectangle, group, acc, parts, *, home, staging, factor, single):
        """A flat result's group of column tiles, to its home, or by way of the ring `staging` to host memory at once.

        Parameters
        ----------
        group : (first column tile, column tiles)
        parts : sequence of (first row, rows)
            That are activated one after the other.
        home : int or None
            Place of the whole result.
        single : bool
            Whether one column tile is to be there before the next one.
        """
        (column, count), rows, pitch = group, rectangle.sums[2], self.layout.pitch
        c = 0
        while c < count:
            together = 1
            if len(parts) == 1 and not single and not self.stage.times and rows == pitch:
                full = self.stage.channels // self.n - column - c
                most = staging.size // 2 // (rows * self.size) if home is None else count
                together = max(1, min(count - c, full, most))
            for begin, part in parts:
                size, first = together * part, acc + c * rows + begin
                at = (column + c) * pitch + begin
                place = home + at * self.size if home is not None else staging.take(size * self.size)
                if self.stage.times:
                    self._multiply(rectangle, column + c, first, place - at, factor)
                else:
                    self._write({"function": _code(self.stage.function), "format": self.format, "lanes": self._lanes(column + c)},
                                first, 1, size, 0, place)
                if home is None:
                    position = self.layout.position(rectangle.samples[0], 0, column + c, begin)
                    self.emitter.move(Opcode.STORE, self.stage.output, position, place, size, self.size)
            c += together

    def store(self, rectangle, place):
        """A job's results -> host memory."""
        layout, (top, left) = self.layout, self.stage.origin
        rows, (x, end_x) = rectangle.rows[1] - rectangle.rows[0], rectangle.columns
        if self.partial:
            step = self.pitch
            stretches = [(layout.position(sample, top + y, tile, left + x), end_x - x) for sample in range(*rectangle.samples)
                         for y in range(*rectangle.rows) for tile in range(layout.tiles)]
        else:
            step = rows * layout.row
            stretches = [(layout.position(sample, top + rectangle.rows[0]), step) for sample in range(*rectangle.samples)]
        merged = []
        for index, (position, count) in enumerate(stretches):
            offset = index * step
            if merged and merged[-1][0] + merged[-1][2] == position and merged[-1][1] + merged[-1][2] == offset:
                merged[-1][2] += count
            else:
                merged.append([position, offset, count])
        for position, offset, count in merged:
            self.emitter.move(Opcode.STORE, self.stage.output, position, place + offset * self.size, count, self.size)

    def _place(self, rectangle, sample, y, column=0, x=0):
        """Position of a result within a job's place."""
        rows = rectangle.rows[1] - rectangle.rows[0]
        return ((sample * rows + y) * self.layout.tiles + column) * self.pitch + x

    def _lanes(self, column):
        return min(self.n, self.stage.channels - column * self.n)

    def _multiply(self, rectangle, column, acc, result, factor):
        """A row of positions at a time: the rows of both factors and of the product lie apart in their own ways."""
        (area, place), (samples, rows, columns) = factor, rectangle.sums
        for sample in range(samples):
            for y in range(rows):
                first = acc + (sample * rows + y) * columns
                operand = place + area.place(rectangle.samples[0] + sample, rectangle.rows[0] + y, column, rectangle.columns[0])
                buffer = result + self._place(rectangle, sample, y, column)
                low, high = min(operand, buffer), max(operand, buffer)
                self.emitter.emit(
                    Opcode.MULTIPLY, {"rows": columns, "lanes": self._lanes(column), "buffer": buffer, "acc": first,
                                      "operand": operand},
                    [("acc", first, columns, False), ("buffer", low, high - low + columns, True)])

    def _pool_windows(self, rectangle, column, acc, result, fields):
        """A POOL for each part of the rectangle whose windows are cut alike by the edges of the sums."""
        pool, width = self.stage.pool, rectangle.sums[2]
        for y, rows, wy, high in runs_of_windows(self.stage, 0, *rectangle.rows):
            for x, columns, wx, broad in runs_of_windows(self.stage, 1, *rectangle.columns):
                top = y * pool.stride[0] - pool.padding[0] + wy * pool.dilation[0] - rectangle.sum_rows[0]
                left = x * pool.stride[1] - pool.padding[1] + wx * pool.dilation[1] - rectangle.sum_columns[0]
                place = self._place(rectangle, 0, y - rectangle.rows[0], column, x - rectangle.columns[0])
                self._pool(fields, acc + top * width + left, rows, columns, self._place(rectangle, 0, 1),
                           result + place * self.size, (pool.stride[0] * width, pool.stride[1]), (high, broad),
                           (pool.dilation[0] * width, pool.dilation[1]))

    def _write(self, fields, acc, outer, inner, step, buffer):
        """`outer` runs of `inner` sums, `step` positions apart in the result: one instruction where it can be."""
        if outer == 1 or step == inner:
            rows = outer * inner
            self.emitter.emit(Opcode.ACTIVATE, {**fields, "rows": rows, "acc": acc, "buffer": buffer},
                              [("acc", acc, rows, False), ("buffer", buffer, rows * self.size, True)])
        elif self.emitter.config.pooling:
            self._pool(fields, acc, outer, inner, step, buffer, (inner, 1), (1, 1), (0, 0))
        else:
            for index in range(outer):
                self._write(fields, acc + index * inner, 1, inner, 0, buffer + index * step * self.size)

    def _pool(self, fields, acc, outer, inner, step, buffer, strides, window, window_strides):
        self.emitter.emit(
            Opcode.POOL, {**fields, "acc": acc, "buffer": buffer, "rows0": inner, "rows0_stride": strides[1], "rows1": outer,
                          "rows1_stride": strides[0], "buffer_stride": step * self.size, "window0": window[1],
                          "window0_stride": window_strides[1], "window1": window[0], "window1_stride": window_strides[0]},
            [("acc", acc, 1 + sum((count - 1) * stride for count, stride in zip(
                (outer, inner, *window), (*strides, *window_strides))), False),
             ("buffer", buffer, ((outer - 1) * step + inner) * self.size, True)])
