"""Instructions that move sums from the accumulators to host memory: activation, pooling, softmax, products, and stores."""

from dataclasses import replace

from amaranth_tpu.hw.spec.isa import Format, FunctionCode, Opcode

from ...ir.tiles import tiles_of
from ..memory.areas import Placed
from ..tiling.pool_windows import runs_of_windows

__all__ = ["Results", "write_rows", "function_code"]


def function_code(function):
    """Returns the FunctionCode, for instructions, of a :class:`sim.functions.functions.Function` or a
    :class:`sim.functions.derivatives.Derivative`."""
    return FunctionCode.TABLE if function.is_table else FunctionCode[function.name.upper()]


class Results:
    """Emits the instructions for the results of one stage.

    Parameters
    ----------
    emitter : Emitter
    stage : Stage
    size : int
        Number of vectors per position of the results: 2 for binary32, 1 for bfloat16.
    """

    def __init__(self, emitter, stage, size):
        self.emitter, self.stage, self.n, self.size, self.function = emitter, stage, emitter.n, size, stage.function
        self.format = Format.BINARY32 if size == 2 else Format.BFLOAT16

    def activate(self, rectangle, column, acc, result, factor):
        """Applies the activation function to one column tile of a job's sums, which start at accumulator row `acc`, and writes it
        to the :class:`.Placed` area `result`. If the stage computes a product, `factor` is the area of the other factor."""
        stage = self.stage
        if stage.times:
            self._multiply(rectangle, column, acc, result, factor)
            return
        fields = self.fields(column)
        if stage.pool:
            self._pool_windows(rectangle, column, acc, result, fields)
            return
        if stage.reflow:
            self._reflow(rectangle, column, acc, result, fields)
            return
        # Ranges of consecutive rows in the accumulators, and the distance of their results.
        samples, rows, columns = rectangle.sums
        if samples > 1 and rows * columns > 1 and result.area.sample != rows * result.area.row:
            for sample in range(samples):
                place = self._at(rectangle, column, result, sample)
                write_rows(self.emitter, fields, acc + sample * rows * columns, rows, columns, result.area.row, place)
            return
        outer, inner, step = (
            (samples, 1, result.area.sample) if rows == columns == 1 else (samples * rows, columns, result.area.row)
        )
        write_rows(self.emitter, fields, acc, outer, inner, step, self._at(rectangle, column, result))

    def _reflow(self, rectangle, column, acc, result, fields):
        """Emits the results of a stage whose output has another row length than its sums: first the output rows that are full,
        then the last row if it is partial."""
        (samples, rows, columns), area = rectangle.sums, result.area
        height, width = area.layout.tensor.shape[:2]
        first = rectangle.rows[0] * columns
        full, rest = divmod(min(first + rows * columns, height * width) - first, width)
        for sample in range(samples):
            sums = acc + sample * rows * columns
            place = [result.at(rectangle.samples[0] + sample, first // width + y, column, 0) for y in (0, full)]
            if full:
                write_rows(self.emitter, fields, sums, full, width, area.row, place[0])
            if rest:
                write_rows(self.emitter, fields, sums + full * width, 1, rest, 0, place[1])

    def activate_across(self, rectangle, columns, acc, result):
        """Emits the activation of several column tiles with one instruction per sample or for all samples. `columns` is (first,
        count). The stage's results must have one column. The sums of the column tiles are consecutive in the accumulators, and so
        are their results in the buffer."""
        samples, rows, _ = rectangle.sums
        fields, strides, area = self.fields(columns[0]), (1, samples * rows), result.area
        together = samples if area.sample == rows * area.row else 1
        for sample in range(0, samples, together):
            place = self._at(rectangle, columns[0], result, sample)
            sums = acc + sample * rows
            _pool(self.emitter, fields, sums, together * rows, columns[1], area.row, place, strides, (1, 1), (0, 0))

    def fields(self, column):
        """Returns the instruction fields that describe the results of a column tile: function, format and number of lanes."""
        assert not self.function.is_table or self.emitter.slots.selected == self.function.key, self.stage.name
        return {"function": function_code(self.function), "format": self.format, "lanes": self._lanes(column)}

    def softmax(self, rectangle, acc, sums, result):
        """Emits SOFTMAX over the channels of all column tiles. Each column tile has `sums` accumulator rows, starting at `acc`.
        One instruction handles one row of positions, or all positions if one column tile holds all channels."""
        samples, rows, columns = rectangle.sums
        tiles, parts, area = tiles_of(self.stage.channels, self.n), samples * rows, result.area
        if tiles == 1 and (area.row == columns or parts == 1):
            parts, columns = 1, parts * columns
        for part in range(parts):
            self.emitter.emit(
                Opcode.SOFTMAX,
                {
                    "format": self.format,
                    "rows": columns,
                    "lanes": self._lanes(tiles - 1),
                    "acc": acc + part * columns,
                    "buffer": self._at(rectangle, 0, result, *divmod(part, rows)),
                    "tiles": tiles,
                    "acc_stride": sums,
                    "buffer_stride": area.plane * self.size,
                },
            )

    def write_group(self, rectangle, group, acc, parts, *, area, home, staging, factor, single):
        """Writes the results of a group of column tiles with samples along x. They go to the output's home, if it is resident,
        else to host memory through the buffer area `staging`.

        Parameters
        ----------
        group : (first column tile, column tiles)
        parts : sequence of (first row, rows)
            Row ranges that are activated one after the other, so that the first stores begin early.
        area : Area
            Area of the stage's whole result for this chunk.
        home : int or None
            First buffer row of a resident output, else None.
        single : bool
            True if each column tile is written before the next one.
        """
        (column, count), (sample, _), rows, c = group, rectangle.samples, rectangle.sums[2], 0
        while c < count:
            together = 1
            if len(parts) == 1 and not single and not self.stage.times and rows == area.plane:
                full = self.stage.channels // self.n - column - c
                most = staging.size // 2 // (rows * self.size) if home is None else count
                together = max(1, min(count - c, full, most))
            for begin, part in parts:
                size, at = together * part, (sample, 0, column + c, begin)
                place = staging.take(size * self.size) - area.place(*at) * self.size if home is None else home
                made = Placed(area, place, self.size)
                piece = replace(rectangle, columns=(begin, begin + size), sum_columns=(begin, begin + size))
                self.activate(piece, column + c, acc + c * rows + begin, made, factor)
                if home is None:
                    self.emitter.move(Opcode.STORE, self.stage.output, area.layout.position(*at), made.at(*at), size, self.size)
            c += together

    def store(self, result):
        """Emits the stores of the results of a job."""
        for position, place, count in result.area.transfers(across_samples=True):
            self.emitter.move(Opcode.STORE, self.stage.output, position, result.place + place * result.size, count, result.size)

    def _at(self, rectangle, column, result, sample=0, y=0, x=0):
        """Returns the buffer row of the result (sample, y, x), counted from the first result of the job's rectangle."""
        top, left = self.stage.origin
        return result.at(rectangle.samples[0] + sample, top + rectangle.rows[0] + y, column, left + rectangle.columns[0] + x)

    def _lanes(self, column):
        return min(self.n, self.stage.channels - column * self.n)

    def _multiply(self, rectangle, column, acc, result, factor):
        """Emits MULTIPLY instructions, one for each row of positions, because the two factors and the product have different row
        pitches. A factor with only one column tile multiplies every column tile of the stage."""
        samples, rows, columns = rectangle.sums
        tile = column % factor.area.layout.tiles
        for sample in range(samples):
            for y in range(rows):
                operand = factor.at(rectangle.samples[0] + sample, rectangle.rows[0] + y, tile, rectangle.columns[0])
                self.emitter.emit(
                    Opcode.MULTIPLY,
                    {
                        "rows": columns,
                        "lanes": self._lanes(column),
                        "acc": acc + (sample * rows + y) * columns,
                        "operand": operand,
                        "buffer": self._at(rectangle, column, result, sample, y),
                    },
                )

    def _pool_windows(self, rectangle, column, acc, result, fields):
        """Emits one POOL instruction for each part of the rectangle in which all windows have the same size after clipping at the
        edges of the sums."""
        pool, width = self.stage.pool, rectangle.sums[2]
        for y, rows, top, down, high in runs_of_windows(self.stage, 0, *rectangle.rows):
            for x, columns, left, across, broad in runs_of_windows(self.stage, 1, *rectangle.columns):
                place = self._at(rectangle, column, result, 0, y - rectangle.rows[0], x - rectangle.columns[0])
                _pool(
                    self.emitter,
                    fields,
                    acc + (top - rectangle.sum_rows[0]) * width + left - rectangle.sum_columns[0],
                    rows,
                    columns,
                    result.area.row,
                    place,
                    (down * width, across),
                    (high, broad),
                    (pool.dilation[0] * width, pool.dilation[1]),
                )


def write_rows(emitter, fields, acc, outer, inner, step, buffer):
    """Emits the activation of `outer` ranges of `inner` consecutive sums, from accumulator row `acc` to buffer row `buffer`. In
    the result, the ranges are `step` positions apart. `fields` are the other fields of ACTIVATE. One instruction is used if
    possible."""
    size = fields["format"].height
    if outer == 1 or step == inner:
        emitter.emit(Opcode.ACTIVATE, {**fields, "rows": outer * inner, "acc": acc, "buffer": buffer})
    elif emitter.config.pooling:
        _pool(emitter, fields, acc, outer, inner, step, buffer, (inner, 1), (1, 1), (0, 0))
    else:
        for index in range(outer):
            write_rows(emitter, fields, acc + index * inner, 1, inner, 0, buffer + index * step * size)


def _pool(emitter, fields, acc, outer, inner, step, buffer, strides, window, window_strides):
    emitter.emit(
        Opcode.POOL,
        {
            **fields,
            "acc": acc,
            "buffer": buffer,
            "rows0": inner,
            "rows0_stride": strides[1],
            "rows1": outer,
            "rows1_stride": strides[0],
            "buffer_stride": step * fields["format"].height,
            "window0": window[1],
            "window0_stride": window_strides[1],
            "window1": window[0],
            "window1_stride": window_strides[0],
        },
    )
