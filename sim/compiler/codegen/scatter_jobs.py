"""Code generation for copies of a matrix with a row for each sample to a row for each position, in the jobs of
:class:`sim.compiler.codegen.jobs.SumCode`."""

from amaranth_tpu.hw.spec.isa import Opcode, Region

from ..memory.windows import segments_of
from .tile_runs import Tile

__all__ = ["scatter"]


def scatter(code, product):
    """Emits the passes of a job. They are the first passes of its sums.

    Parameters
    ----------
    code : SumCode
    product : Product
        Of kind `"scatter"`.
    """
    parts = _parts(code)
    if not parts:  # the job has only rows of padding
        return
    for column in range(code.columns):
        code.emitter.bring([Tile(Region.MODEL, code.emitter.constants.identity)])
        number = 0
        for part in parts:
            for place, loops, row in _passes(code, product.source, column, *part):
                code.matmul(place, loops, row, column, start=1, keep=int(number > 0))
                number += 1
    code.started = True


def _parts(code):
    """Returns `(row of the job, first sample, samples, first line, lines)` of rows whose samples are in one group of n samples.
    Samples that the job has as a whole follow each other."""
    geometry, segments, parts = code.geometry, segments_of(code.row, code.rows, code.geometry), []
    whole = geometry.period == geometry.positions and len({one[2:] for one in segments}) == 1
    for row, sample, *lines in segments:
        if parts and whole and sample % code.n:
            parts[-1][2] += 1
        else:
            parts.append([row, sample, 1, *lines])
    return parts


def _passes(code, source, column, row, sample, samples, first, lines):
    """Yields `(first operand, loops, row of the job)` of the passes that copy some lines of samples, and loads their vectors.
    Consecutive positions are loaded together, for a group of n samples."""
    width, n = code.geometry.width, code.n
    most = max(1, code.emitter.memories.operands.size // 2 // n)
    for start in range(0, lines * width, most):
        count = min(most, lines * width - start)
        place = _loaded(code, source, first * width + start, count, code.column + column, sample // n * n) + sample % n
        if count == lines * width:
            yield place, [(samples, 1), (count, n)], row
        else:
            for number in range(samples):
                at = row + number * lines * width + start
                yield place + number, [(1, 0), (count, n)], at


def _loaded(code, source, position, count, tile, sample):
    """Loads a tile of `count` positions of a group of n samples, unless it is on the chip. Returns the first row in the unified
    buffer."""
    emitter, n = code.emitter, code.n
    key = source.name, source.form, position, count, tile, sample
    if key not in emitter.kept:
        place = emitter.memories.operands.take(count * n, key)
        vector = emitter.offset(source, position * source.each + tile, sample)
        emitter.transfer(Opcode.LOAD, source.region, vector, count * n, buffer=place)
    return emitter.kept[key][0]
