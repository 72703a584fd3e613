"""Code generation for the results of a job of sums of matrix products."""

from amaranth_tpu.hw.spec.isa import Condition, Format, FunctionCode, Opcode, Region

from ...functions.functions import RELU
from ..memory.windows import segments_of
from ..tuning import SHORT_ROWS
from .instructions import function_code

__all__ = ["is_plain", "key_of", "write_results", "write_update"]


def key_of(matrix, tile, row, rows, turned=False):
    """Returns the key of rows of a matrix in `Memories.kept`."""
    return matrix.name, matrix.form, tile, row, rows, turned


def write_results(code, results):
    """Writes and stores the results of all column tiles, in a job of a :class:`.SumCode`."""
    emitter, rows = code.emitter, code.rows
    tables = sorted(
        dict.fromkeys(one.function.key for one in results if one.function.is_table), key=lambda key: key != emitter.slots.selected
    )
    groups = [[one for one in results if one.function.is_table and one.function.key == key] for key in tables]
    for group in ([one for one in results if not (one.softmax or one.function.is_table)], *groups):
        some = [one for one in group if not one.has_own_size]
        sizes = [result.rows(rows, emitter.memories.results.size) for result in some]
        together = _together(code, some)
        in_parts = together > 1 or some and code.parts[0][3] < rows
        for column, count, row, height in code.parts if in_parts else ():
            for c in range(column, column + count, together):
                _write_part(code, some[0], c, min(together, column + count - c), row, height)
        for c in range(code.columns if some and not in_parts else 0):
            emitter.load_table(some[0].function)
            place = code.take(sum(sizes))
            written = {}
            for result, size in zip(some, sizes):
                operand = _last_read(code, result, c)
                written.pop(operand, None)  # the result replaces the operand, which nobody reads again
                written[place if operand is None else operand] = result
                _write_tile(code, result, c, place, operand)
                place += size
            for place, result in written.items():  # an instruction whose operand is a result would wait for its STORE
                _store(code, result, c, place)
        _write_pooled(code, [one for one in group if one.has_own_size])
    for result in results:
        if result.softmax:
            _softmax(code, result)


def _together(code, results):
    if not is_plain(results) or results[0].matrix.wide:
        return 1
    result = results[0]
    lanes = {result.matrix.lanes(code.column + c) for c in range(code.columns)}
    return max(1, min(SHORT_ROWS, code.emitter.memories.results.size) // code.rows) if len(lanes) == 1 else 1


def is_plain(results):
    """Returns True if there is one result, without a table and without another operand, of the size of its sums."""
    result, *others = results or [None]
    special = others or result is None or result.softmax or result.has_own_size or result.beside or result.function.is_table
    return not special


def _write_part(code, result, column, count, row, rows):
    """Writes the results of `rows` rows of `count` column tiles by one ACTIVATE, and stores them."""
    matrix, place = result.matrix, code.take(count * rows * result.matrix.halves)
    fields = {"function": function_code(result.function), "format": _format_of(matrix), "rows": count * rows}
    fields |= {"lanes": matrix.lanes(code.column + column), "buffer": place, "acc": code.acc + column * code.rows + row}
    code.emitter.emit(Opcode.ACTIVATE, fields)
    for c in range(column, column + count):
        if rows == code.rows:
            _keep(code, result, c, place)
        code.emitter.store(matrix, code.column + c, code.row + row, rows, place)
        place += rows * matrix.halves


def write_update(code, update):
    """Updates a parameter and its momentum by UPDATE, in a job of a :class:`.SumCode`. The sums are the gradient."""
    emitter, rows, master = code.emitter, code.rows, update.master
    for c in range(code.columns):
        place = code.column + c, code.row
        halves = [emitter.offset(master, *place, half) for half in range(master.halves)]
        emitter.update(code.acc + c * rows, rows, halves, emitter.offset(update.momentum, *place))


def _softmax(code, result):
    emitter, matrix, rows = code.emitter, result.matrix, code.rows
    place, each = emitter.memories.results.take(matrix.halves * rows * code.columns), matrix.halves * rows
    used = rows
    if code.geometry.period == code.geometry.positions:  # nobody reads the rows after the last sample
        used = max((first + count - code.row for first, count in matrix.stored(code.row, rows)), default=1)
    form = Format.BINARY32 if matrix.wide else Format.BFLOAT16
    fields = {"format": form, "rows": used, "lanes": matrix.lanes(matrix.tiles - 1), "acc": code.acc}
    fields |= {"buffer": place, "tiles": code.columns, "acc_stride": rows, "buffer_stride": each}
    if result.softmax is True:
        emitter.emit(Opcode.SOFTMAX, fields)
    else:
        emitter.emit(Opcode.NORMALIZE, fields | result.softmax.fields((code.columns - 1) * emitter.n + fields["lanes"]))
    for c in range(code.columns):
        _keep(code, result, c, place + c * each)
        _store(code, result, c, place + c * each)


def _last_read(code, result, column):
    """Returns the buffer row of the operand of a product that no other instruction reads, if it is on the chip. Else returns
    None. The result then overwrites the operand."""
    operand, emitter = result.times, code.emitter
    if operand is None or operand.region is not Region.SCRATCH or emitter.readers[operand.name] != 1:
        return None
    if operand.tiles != result.matrix.tiles:
        return None
    return emitter.kept.pop(key_of(operand, code.column + column, code.row, code.rows), (None, 0))[0]


def _write_tile(code, result, column, place, operand):
    emitter, matrix, rows = code.emitter, result.matrix, code.rows
    if operand is not None:
        place = operand
    elif result.beside:
        # An instruction holds up accesses between its operand and its result. It overwrites an operand that is not the result
        # before it.
        tile = 0 if result.beside.tiles == 1 else code.column + column  # the same factor for all channels
        operand, _ = emitter.kept.get(key_of(result.beside, tile, code.row, rows), (None, 0))
        if operand != place - rows:
            operand = place
            emitter.load(result.beside, tile, code.row, rows, place)
    acc, lanes = code.acc + column * rows, matrix.lanes(code.column + column)
    if result.times:
        emitter.multiply(lanes, rows, acc, operand, place)
    elif result.select:
        _select(code, acc, operand, place)
    else:
        fields = {"function": function_code(result.function), "format": _format_of(matrix), "rows": rows, "lanes": lanes}
        emitter.emit(Opcode.ACTIVATE, fields | {"buffer": place, "acc": acc})
    _keep(code, result, column, place)


def _format_of(matrix):
    wide = Format.BINARY32 if matrix.has_numbers else Format.PLANES
    return wide if matrix.wide else Format.BFLOAT16


def _select(code, acc, operand, place):
    fields = {"condition": Condition.POSITIVE, "number": 0, "rows0": code.rows, "rows0_stride": 1, "rows1": 1}
    fields |= {"rows1_stride": 0, "buffer": place, "buffer_stride": 0, "buffer_step": 0, "acc": acc}
    code.emitter.emit(Opcode.SELECT, fields | {"operand": operand, "operand_stride": 0})


def _keep(code, result, column, place):
    matrix, tile = result.matrix, code.column + column
    code.emitter.kept[key_of(matrix, tile, code.row, code.rows)] = place, code.rows * matrix.halves


def _store(code, result, column, place):
    code.emitter.store(result.matrix, code.column + column, code.row, code.rows, place)


# Results of another size than their sums: max pooling, and its gradient


def _write_pooled(code, results):
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
    if result.has_any_windows:
        return pieces
    down, _ = result.steps if result.pool else result.spread
    fits = height == each * down if result.pool else each == height * down
    if fits and pieces and all(one.period == one.positions for one in (geometry, made)):
        row, sample, first, _ = pieces[0]
        return [(row, sample, first, sum(lines for *_, lines in pieces))]
    most = each * down if result.pool else height  # the last lines may be in no window
    clipped = [(row, sample, first, min(lines, most - first)) for row, sample, first, lines in pieces]
    return [piece for piece in clipped if piece[3] > 0]


def _write_largest(code, result, column, row, sample, first, lines):
    """Writes the largest sums of windows, or their places. Windows that are clipped have instructions of their own."""
    if not result.has_any_windows:
        down, _ = result.steps
        return _write_windows(code, result, column, row, sample, lines, first // down, first // down + lines // down)
    height, most = result.pool.size[0], result.lines(code.emitter.memories.results.size)
    for top in range(0, height, most):
        _write_windows(code, result, column, row, sample, lines, top, min(height, top + most))


def _write_windows(code, result, column, row, sample, lines, first, end):
    """Writes the lines `first` to `end` of the results of a sample."""
    emitter, matrix, pool, wide = code.emitter, result.matrix, result.pool, code.geometry.width
    width, each = matrix.geometry.width, matrix.halves
    place, tile = emitter.memories.results.take(each * (end - first) * width), code.column + column
    function = function_code(result.function)
    if result.index:
        function = FunctionCode.RELU if result.function == RELU else FunctionCode.NONE
    form = Format.INDEX if result.index else Format.BINARY32 if matrix.wide else Format.BFLOAT16
    fields = {"function": function, "format": form, "lanes": matrix.lanes(tile), "buffer_step": 0, "buffer_stride": each * width}
    for y, down, high, rows, top in _windows(code, result, 0, first, end, lines):
        for x, across, broad, columns, left in _windows(code, result, 1, 0, width, wide):
            at = {"acc": code.acc + column * code.rows + row + top * wide + left, "buffer": place + each * (y * width + x)}
            at |= {"rows0": columns, "rows0_stride": across, "rows1": rows, "rows1_stride": down * wide}
            at |= {
                "window0": broad,
                "window0_stride": pool.dilation[1],
                "window1": high,
                "window1_stride": pool.dilation[0] * wide,
            }
            emitter.emit(Opcode.POOL, fields | at)
    emitter.store(matrix, tile, sample * matrix.geometry.period + first * width, (end - first) * width, place)


def _windows(code, result, axis, first, end, have):
    """Returns `(result, distance, window positions, results, first sum)` of ranges of the windows `first` to `end` along an axis
    with `have` sums. `result` counts from `first`."""
    if not result.has_any_windows:
        return [(0, result.steps[axis], result.pool.window[axis], end - first, 0)]
    runs = _runs_of_windows(result.pool, have, axis, first, end)
    return [(place - first, distance, size, results, start) for place, results, start, distance, size in runs]


def _runs_of_windows(pool, have, axis, first, end):
    """Divides the results `first` to `end` along an axis into ranges whose pooling windows, clipped at the edges of `have` sums,
    have the same size and the same distance. Returns `[first result, results, first sum, distance, window positions]` for each
    range. The distance of windows larger than the sums can be 0."""
    runs = []
    for index in range(first, end):
        start = index * pool.stride[axis] - pool.padding[axis]
        inside = [at for w in range(pool.window[axis]) if 0 <= (at := start + w * pool.dilation[axis]) < have]
        if runs and _continues(runs[-1], inside):
            runs[-1][1] += 1
            runs[-1][3] = (inside[0] - runs[-1][2]) // (runs[-1][1] - 1)
        else:
            runs.append([index, 1, inside[0], pool.stride[axis], len(inside)])
    return runs


def _continues(run, inside):
    _, count, first, distance, size = run
    after = inside[0] - first
    return len(inside) == size and (after >= 0 if count == 1 else after == count * distance)


def _write_places(code, result, column, row, sample, first, lines):
    """Writes sums to the places of the maxima in their windows, and +0 to all other places."""
    emitter, matrix, index = code.emitter, result.matrix, result.select
    (down, across), width, made = result.spread, code.geometry.width, matrix.geometry
    tile, rows = code.column + column, lines * width
    operand = emitter.memories.results.take(rows * (1 + down * across))  # one range of rows, as interlocks see a SELECT
    emitter.load(index, tile, sample * code.geometry.period + first * width, rows, operand)
    place = operand + rows
    fields = {"condition": Condition.EQUAL, "rows0": width, "rows0_stride": 1, "rows1": lines, "rows1_stride": width}
    fields |= {"acc": code.acc + column * code.rows + row, "operand": operand, "operand_stride": width}
    fields |= {"buffer_stride": down * made.width, "buffer_step": across}
    for number in range(down * across):
        y, x = divmod(number, across)
        emitter.emit(Opcode.SELECT, fields | {"number": number, "buffer": place + y * made.width + x})
    emitter.store(matrix, tile, sample * made.period + first * down * made.width, rows * down * across, place)
