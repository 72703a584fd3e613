"""Chunks of the batch, in steps of dense networks. The last chunk is usually small, because nothing overlaps with its Softmax:
other jobs of the last chunk precede it, and no gradient of a parameter is complete before it."""

from dataclasses import replace

from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.spec.isa import Opcode

from .sums import Expansion, MatrixSum

__all__ = ["chunked", "divisions", "in_time"]

_LEAST = 16  # samples of the last chunk; fewer do not hide the dispatch of instructions
_FEW = 48  # samples, up to which the last chunk may be smaller
_SIZES = ((3, 1), (2, 1), (0, 0), (2, 2), (4, 1))  # of the chunks, and of the last chunk, in units of n or `_LEAST`
_WAIT = 160  # cycles that the array waits for a job of earlier samples
_LATENCY = 150  # cycles from the last row of a job in the array to a job that reads its results


def divisions(sums, n):
    """Returns several divisions of the samples into chunks, each as a list of the first rows. Returns one chunk if samples have
    several positions, or if there are few samples."""
    plain = [one for one in sums if isinstance(one, MatrixSum)]
    if any(one.shape.geometry.period > 1 for one in plain) or any(isinstance(one, Expansion) for one in sums):
        return [(0,)]
    rows, unit, found = sums[0].shape.geometry.rows, max(n, _LEAST), []
    for size, end in _SIZES:
        last = end * unit
        found.append((*range(0, rows - last, size * unit), rows - last) if 0 < last < rows else (0,))
    if n < _LEAST and n < rows <= _FEW:
        found.append((0, rows - n))
    return [*dict.fromkeys(found)]


def chunked(sums, n, starts, begins_early=True):
    """Returns the sums in which each sum of samples is divided into parts that begin at the rows `starts`. Gradients of
    parameters may begin before those of the last part if `begins_early`."""
    if len(starts) == 1:
        return sums
    parts = []
    for one in sums:
        if not isinstance(one, MatrixSum):
            parts.append(one)
        elif one.shape.form == "samples":
            ends = [*starts[1:], one.shape.rows]
            parts += [replace(one, span=(first, end - first)) for first, end in zip(starts, ends)]
        else:
            parts.append(replace(one, early=starts[-1] // n if begins_early else 0))
    return parts


def in_time(items, dependencies, config):
    """Returns `(number of a sum, job, cycles that the array waits before it)` in an order in which the array waits little. The
    next job is always the one that can start first. Of several such jobs, the first samples come first.

    Parameters
    ----------
    items : list of (MatrixSum, list of job)
        In an order in which they can be computed.
    dependencies : list of set of int
        For each sum, the numbers of the sums that must precede.
    """
    clock, ends, order, left = 0, {}, [], {number: list(jobs) for number, (_, jobs) in enumerate(items)}

    def key(number):
        start = max([clock, *(ends[other] for other in dependencies[number])])
        return max(0, start - clock - _WAIT), items[number][0].rows.start, number

    while left:
        number = min((one for one in left if dependencies[one] <= ends.keys()), key=key)
        job, (one, _) = left[number].pop(0), items[number]
        start = max([clock, *(ends[other] for other in dependencies[number])])
        order.append((number, job, start - clock))
        clock = start + _array_cycles(one, job, config)
        if not left[number]:
            del left[number]
            ends[number] = clock + _LATENCY + _result_cycles(one, job, config)
    return order


def _array_cycles(one, job, config):
    _, rows, _, columns = job
    return sum(product.inputs for product in one.products) * columns * max(rows, config.n)


def _result_cycles(one, job, config):
    _, rows, _, columns = job
    softmax = {"rows": rows, "tiles": columns, "lanes": one.shape.lanes(one.shape.tiles - 1)}
    return sum(result_cycles(config, Opcode.SOFTMAX, softmax)[0] for result in one.results if result.softmax)
