"""Chunks of the batch, in steps of dense networks. The last chunk is small, because nothing overlaps with its Softmax: other jobs
of the last chunk precede it, and no gradient of a parameter is complete before it."""

from dataclasses import replace

from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.spec.isa import Opcode

from .sums import MatrixSum

__all__ = ["chunked", "in_time"]

_LEAST = 16  # samples of the last chunk; fewer do not hide the dispatch of instructions
_WAIT = 160  # cycles that the array waits for a job of earlier samples
_LATENCY = 150  # cycles from the last row of a job in the array to a job that reads its results


def chunked(sums, n, begins_early=True):
    """Returns the sums in which each sum of samples is divided into parts: the last n samples, and chunks of 3 n samples before.
    Returns the same sums if samples have several positions, or if there are few samples."""
    plain = [one for one in sums if isinstance(one, MatrixSum)]
    if any(one.shape.geometry.period > 1 for one in plain) or len(plain) < len(sums):
        return sums
    parts, last = [], max(n, _LEAST)
    for one in sums:
        rows = one.shape.rows
        starts = [*range(0, rows - last, 3 * last), rows - last] if one.shape.form == "samples" and rows > last else [0]
        ends = [*starts[1:], rows]
        if one.shape.form == "samples":
            parts += [replace(one, span=(first, end - first)) for first, end in zip(starts, ends)] if len(starts) > 1 else [one]
        else:
            parts.append(replace(one, early=max(0, one.shape.geometry.rows - last) // n if begins_early else 0))
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
