"""Code generation for depthwise convolutions with positions in the lanes (:mod:`sim.compiler.passes.depthwise`), in the jobs of
:class:`sim.compiler.codegen.jobs.SumCode`.

LOAD transposes n positions of n channels to a row of n positions for each channel. A job has n channels, each with its own
weights. The next convolution loads the results transposed again.
"""

from itertools import product as product_of

import numpy as np

from amaranth_tpu.hw.spec.isa import Format, Opcode

from ..memory.matrices import stretches
from ..memory.windows import merged_loops, segments_of
from ..tiling.job_sizes import TOGETHER
from .instructions import function_code

__all__ = ["positions_of", "write_band_job"]


def write_band_job(code, product, result):
    """Emits a job of a product of kind `"bands"`, and its result. Each pass reads a vector of positions of all windows. Yields
    after some channels."""
    window, emitter, n, across, together = product.window, code.emitter, code.n, len(product.blocks), min(TOGETHER, code.n)
    segments = segments_of(code.row, code.rows, code.geometry)
    ((lines, count),) = {(one[3], window.rows(one[3])) for one in segments}
    follow = code.geometry.period == code.geometry.positions  # the samples of a job follow each other
    samples = len(segments) if follow else 1
    loops, rows = merged_loops([(samples, count * n), (lines, window.stride[0] * n)]), samples * lines
    emitter.load_table(result.function)
    for column in range(code.column, code.column + code.columns, n):
        place = code.take(code.rows * n)
        for block, (start, number) in enumerate(product.blocks):
            images = _images(code, product, column // n, segments, start)
            for first, sample in product_of(range(0, n, together), range(0, len(segments), samples)):
                acc = emitter.memories.sums.take(rows * together)
                _add(code, product, acc, number, column + first, images + sample * count * n + first, loops)
                _write(code, result, acc, place + (segments[sample][0] + block) * n + first, across, rows)
                yield
        vector = emitter.offset(result.matrix, column, code.row)
        emitter.transfer(Opcode.STORE, result.matrix.region, vector, code.rows * n, buffer=place)


def _add(code, product, acc, number, column, place, loops):
    """Emits the passes of some channels, whose vectors begin at `place`. `number` counts the weights of a line's vectors."""
    window, emitter, n, together = product.window, code.emitter, code.n, min(TOGETHER, code.n)
    first, rows = number * window.positions, loops[0][0] * loops[1][0]
    passes = [
        [emitter.tile_at(product.weights, first + position, (column + c) * n) for c in range(together)]
        for position in range(window.positions)
    ]
    emitter.bring(passes[0])
    fields = {"tiles0": together, "tiles0_stride": 1, "tiles0_acc_stride": rows}
    emitter.matmul(acc, place, loops, start=1, bias=code.biases[column - code.column], **fields)
    if rest := [tile for tiles in passes[1:] for tile in tiles]:
        emitter.bring(rest)
        step = window.offset(1) * n
        emitter.matmul(acc, place + step, loops, tiles1=len(passes) - 1, tiles1_stride=step, **fields)


def _write(code, result, acc, place, across, rows):
    """Writes the results of some channels at every n-th row: the vectors of a position follow each other, as they are later
    loaded transposed."""
    n = code.n
    fields = {"function": function_code(result.function), "format": Format.BFLOAT16, "lanes": n, "buffer_step": 0}
    fields |= {"acc": acc, "buffer": place, "rows0": min(TOGETHER, n), "rows0_stride": rows, "rows1": rows}
    fields |= {
        "rows1_stride": 1,
        "buffer_stride": across * n,
        "window0": 1,
        "window0_stride": 0,
        "window1": 1,
        "window1_stride": 0,
    }
    code.emitter.emit(Opcode.POOL, fields)


def _images(code, product, tile, segments, start):
    """Loads the vectors of a tile of channels that the windows of a job read, from position `start` of each line on. Returns the
    first row in the unified buffer."""
    emitter, source, n, window = code.emitter, product.source, code.n, product.window
    key = source.name, "bands", tile, window, start, tuple(one[1:] for one in segments)
    if key not in emitter.kept:
        parts = []
        for _, sample, first, lines in segments:
            image = window.image(first, lines)
            parts.append(np.where(image < 0, -1, image * product.lanes + start + sample * source.geometry.period))
        rows = np.concatenate(parts)
        place = emitter.memories.operands.take(len(rows) * n, key)
        for first, count in stretches(np.flatnonzero(rows < 0)):
            emitter.load_zeros(place + first * n, count * n)
        there = np.flatnonzero(rows >= 0)
        for first, _, count in stretches(there, rows[there] / n):  # vectors follow each other if they have n positions
            emitter.load(source, tile, int(rows[first]), count * n, place + first * n, True)
    return emitter.kept[key][0]


def positions_of(code, product, inputs):
    """Loads tiles of channels, transposed: the positions of a job's rows. Returns the first buffer row of each, and the loops
    over the rows."""
    emitter, source, n, geometry = code.emitter, product.source, code.n, code.geometry
    sample, position = divmod(code.row, geometry.period)
    blocks, first = source.geometry.period, position // product.lanes
    count = -(-code.rows // product.lanes)
    if geometry.period != blocks * product.lanes:  # a job of one sample
        count = min(count, source.geometry.positions - first)
    first += sample * blocks
    keys = [(source.name, "positions", tile, first, count) for tile in inputs]

    def load(index, place):
        emitter.load(source, inputs[index] * n, first, count * n, place, True)

    return emitter.memories.operands.place(keys, count * n, load), [(count, n), (product.lanes, 1)]
