"""Code generation for results of another size than their sums: max pooling, and its gradient."""

from amaranth_tpu.hw.spec.isa import Condition, Format, FunctionCode, Opcode

from ...functions.functions import RELU
from ..codegen.results import function_code
from .windows import segments_of

__all__ = ["write_pooled"]


def write_pooled(code, results):
    """Writes and stores results of pooling, and gradients of such results, in a job of a :class:`.SumCode`."""
    for result in results:
        code.emitter.load_table(result.function)
        for column in range(code.columns):
            for piece in _pieces(code, result):
                (_write_largest if result.pool else _write_places)(code, result, column, *piece)


def _pieces(code, result):
    """Returns `(first row of the job, sample, first line, lines)` of the lines that are written together. Samples without
    padding follow each other."""
    geometry, made = code.geometry, result.matrix.geometry
    pieces = segments_of(code.row, code.rows, geometry)
    (height, _), (each, _) = (divmod(one.positions, one.width) for one in (geometry, made))
    down, _ = result.steps if result.pool else result.spread
    fits = height == each * down if result.pool else each == height * down
    if fits and pieces and all(one.period == one.positions for one in (geometry, made)):
        row, sample, first, _ = pieces[0]
        return [(row, sample, first, sum(lines for *_, lines in pieces))]
    most = each * down if result.pool else height  # the last lines may be in no window
    clipped = [(row, sample, first, min(lines, most - first)) for row, sample, first, lines in pieces]
    return [piece for piece in clipped if piece[3] > 0]


def _write_largest(code, result, column, row, sample, first, lines):
    """Writes the largest sums of windows, or their places."""
    emitter, matrix, pool, wide = code.emitter, result.matrix, result.pool, code.geometry.width
    (down, across), width = result.steps, matrix.geometry.width
    start, count = first // down, lines // down
    place, tile = emitter.results.take(count * width), code.column + column
    function = function_code(result.function)
    if result.index:
        function = FunctionCode.RELU if result.function == RELU else FunctionCode.NONE
    fields = {"function": function, "format": Format.INDEX if result.index else Format.BFLOAT16, "lanes": matrix.lanes(tile)}
    fields |= {"acc": code.acc + column * code.rows + row, "buffer": place, "buffer_stride": width, "buffer_step": 1}
    fields |= {"rows0": width, "rows0_stride": across, "rows1": count, "rows1_stride": down * wide}
    fields |= {"window0": pool.window[1], "window0_stride": 1, "window1": pool.window[0], "window1_stride": wide}
    emitter.emit(Opcode.POOL, fields)
    emitter.store(matrix, tile, sample * matrix.geometry.period + start * width, count * width, place)


def _write_places(code, result, column, row, sample, first, lines):
    """Writes sums to the places of the maxima in their windows, and +0 to all other places."""
    emitter, matrix, index = code.emitter, result.matrix, result.select
    (down, across), width, made = result.spread, code.geometry.width, matrix.geometry
    tile, rows = code.column + column, lines * width
    operand = emitter.results.take(rows * (1 + down * across))  # one range of rows, as interlocks see a SELECT
    emitter.load(index, tile, sample * code.geometry.period + first * width, rows, operand)
    place = operand + rows
    fields = {"condition": Condition.EQUAL, "rows0": width, "rows0_stride": 1, "rows1": lines, "rows1_stride": width}
    fields |= {"acc": code.acc + column * code.rows + row, "operand": operand, "operand_stride": width}
    fields |= {"buffer_stride": down * made.width, "buffer_step": across}
    for number in range(down * across):
        y, x = divmod(number, across)
        emitter.emit(Opcode.SELECT, fields | {"number": number, "buffer": place + y * made.width + x})
    emitter.store(matrix, tile, sample * made.period + first * down * made.width, rows * down * across, place)
