"""The reference model of networks, layer by layer. :mod:`sim.golden.arithmetic` defines the single matrix product."""

import numpy as np

from ..data.samples import as_rows
from ..ir.graph import span
from .arithmetic import bfloat16, matmul, matmuls, ordered, round_bfloat16
from .function_tables import apply
from .softmax import softmax

__all__ = ["core_input", "run_network", "run_graph", "samples_for", "run_stage", "patches", "first_sums", "add_term", "pool_max"]

_BLOCK = 1 << 23  # operands copied together at a time
_NARROW = 4  # groups with at most this number of outputs are computed together


def patches(values, term, size):
    """Returns the operands of a term: bfloat16 (batch, height, width, kernel positions, channels of the source). Kernel positions
    are in the order ky, kx."""
    batch, height, width, channels = values.shape
    need = [
        span(count, stride, kernel, dilation)
        for count, stride, kernel, dilation in zip(size, term.stride, term.kernel, term.dilation)
    ]
    padded = np.zeros((batch, *need, channels), values.dtype)
    source, target = [], []
    for have, wanted, before in zip((height, width), need, term.padding):
        first = max(0, -before)
        source.append(slice(first, max(first, min(have, wanted - before))))  # empty if only padding is read
        target.append(slice(max(0, before), max(0, before) + source[-1].stop - source[-1].start))
    padded[:, target[0], target[1]] = values[:, source[0], source[1]]
    parts = []
    for ky in range(term.kernel[0]):
        for kx in range(term.kernel[1]):
            rows, columns = (
                slice(k * dilation, k * dilation + span(count, stride, 1, 1), stride or None)
                for k, dilation, count, stride in zip((ky, kx), term.dilation, size, term.stride)
            )
            parts.append(np.broadcast_to(padded[:, rows, columns], (batch, *size, channels)))
    return np.stack(parts, axis=3)


def add_term(sums, values, term):
    """Adds the products of one term to `sums`, float32 (batch, height, width, channels). `values` is the term's source tensor,
    bfloat16 (batch, height, width, channels)."""
    shape = sums.shape
    gathered = patches(values, term, shape[1:3])
    gathered = gathered.reshape(-1, gathered.shape[3], term.groups, gathered.shape[4] // term.groups)
    weights = term.weights.reshape(gathered.shape[1], gathered.shape[3], term.groups, -1)
    parts, rows = sums.reshape(-1, term.groups, weights.shape[3]), len(gathered)
    if term.groups > 1 and weights.shape[3] <= _NARROW:
        return matmuls(gathered, weights, parts).reshape(shape)
    results = [
        matmul(
            np.ascontiguousarray(gathered[:, :, g]).reshape(rows, -1),
            np.ascontiguousarray(weights[:, :, g]).reshape(-1, weights.shape[3]),
            np.ascontiguousarray(parts[:, g]),
        )
        for g in range(term.groups)
    ]
    return np.stack(results, axis=1).reshape(shape)


def _add_product(sums, values, weights, rows):
    """Adds products of two tensors to `sums`, and returns the result, (batch, height, width, channels).

    Each sample of `values`, (batch, height, width, inputs), is multiplied by a matrix of its own: `weights[sample, 0]`, or its
    transpose if `rows` is False. `weights` is (batch, 1, positions, channels of the tensor).
    """
    result = []
    for start, operands, matrix in zip(sums, values, weights[:, 0]):
        matrix = np.ascontiguousarray(matrix if rows else matrix.T)
        flat = np.ascontiguousarray(operands).reshape(-1, operands.shape[-1])
        result.append(matmul(flat, matrix, np.ascontiguousarray(start).reshape(len(flat), -1)).reshape(start.shape))
    return np.stack(result) + np.float32(0)


def first_sums(stage, batch):
    """Returns the initial sums of a stage, float32 (batch, height, width, channels): its bias, or +0 if it has none."""
    start = np.zeros(stage.channels, np.float32) if stage.bias is None else stage.bias
    return np.broadcast_to(start, (batch, *stage.size, stage.channels)).copy()


def _sums(stage, tensors):
    """Computes the sums of a stage, float32 (batch, height, width, channels): the bias, plus the products of all terms in
    order."""
    sums = first_sums(stage, len(tensors[stage.terms[0].source]))
    for term in stage.terms:
        if term.data:
            sums = _add_product(sums, tensors[term.source], tensors[term.data], term.rows)
        else:
            sums = add_term(sums, tensors[term.source], term)
    return sums


def pool_max(sums, pool):
    """Returns the largest number of every pooling window, float32 (batch, height, width, channels)."""
    batch, height, width, channels = sums.shape
    keys = ordered(np.ascontiguousarray(sums).view(np.int32))
    result = np.full((batch, *pool.size, channels), np.iinfo(np.int32).min, np.int32)
    positions = [np.arange(count) * stride - before for count, stride, before in zip(pool.size, pool.stride, pool.padding)]
    for wy in range(pool.window[0]):
        for wx in range(pool.window[1]):
            y, x = positions[0] + wy * pool.dilation[0], positions[1] + wx * pool.dilation[1]
            rows, columns = np.flatnonzero((y >= 0) & (y < height)), np.flatnonzero((x >= 0) & (x < width))
            place = np.ix_(range(batch), rows, columns)
            result[place] = np.maximum(result[place], keys[np.ix_(range(batch), y[rows], x[columns])])
    return ordered(result).view(np.float32)


def run_stage(stage, tensors, binary32=False):
    """Computes the result of a stage, (batch, height, width, channels), as bfloat16, or as float32 with `binary32`.

    Parameters
    ----------
    tensors : dict of str to bfloat16 (batch, height, width, channels)
    """
    values = _sums(stage, tensors)
    if stage.pool:
        values = pool_max(values, stage.pool)
    if stage.softmax:
        bits = softmax(np.ascontiguousarray(values).view(np.uint32).reshape(-1, stage.channels))
        values = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(values.shape)
    else:
        values = apply(stage.function, values)
    if stage.times:
        factor = tensors[stage.times].astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            values = round_bfloat16(values).astype(np.float32) * factor
    return values if binary32 else round_bfloat16(values)


def _run(graph, x, keep):
    tensors = graph.arrange_inputs(x)
    kept = {}
    for stage in graph.stages:
        part = run_stage(stage, tensors, binary32=graph.is_wide(stage))
        tensor = graph.tensors[stage.output]
        if part.shape[1:] == tensor.shape:
            tensors[stage.output] = part
        else:
            whole = tensors.setdefault(stage.output, np.zeros((len(x), *tensor.shape), part.dtype))
            (top, left), (height, width) = stage.origin, stage.result_size
            whole[:, top : top + height, left : left + width] = part
        if keep:
            kept[stage.output] = tensors[stage.output]
    return graph.arrange_output(tensors[graph.output].astype(np.float32)), kept


def core_input(graph, x):
    """Returns the bfloat16 values (count, input size) that the core reads for float32 samples (count, sample size) of a
    :class:`sim.ir.graph.Graph`; bfloat16 values are returned unchanged."""
    x = np.asarray(x)
    return x if x.dtype == bfloat16 else round_bfloat16(graph.fed(x))


def run_graph(graph, x, keep=False):
    """Returns results, float32 (batch, output size), of a :class:`sim.ir.graph.Graph` for samples as :func:`core_input` takes
    them.

    With `keep`, returns `(results, tensors)`. `tensors` has the values of every tensor, (batch, height, width, channels), by
    name.
    """
    x = core_input(graph, x)
    largest = max(
        np.prod(stage.size) * sum(term.weights[..., 0].size * term.groups for term in stage.terms) for stage in graph.stages
    )
    step = max(1, int(_BLOCK // largest))
    parts = [_run(graph, x[first : first + step], keep) for first in range(0, len(x), step)]
    results = np.concatenate([part for part, _ in parts])
    if not keep:
        return results
    return results, {name: np.concatenate([kept[name] for _, kept in parts]) for name in parts[0][1]}


def samples_for(graph, x):
    """Returns samples in any shape that fits, for :func:`core_input`. Raises :class:`sim.data.digits.DataError`."""
    x = np.asarray(x)
    return x if graph.feeds and x.dtype == bfloat16 else as_rows(graph, x)[0]


def run_network(graph, x):
    """Returns results, float32 (batch, N), of a :class:`sim.ir.graph.Graph` for float32 inputs, (batch, K) or (batch, *shape of a
    sample), or for bfloat16 values of :func:`core_input`.

    The network's input and the results between stages are rounded to bfloat16; the last results stay binary32. Raises
    :class:`sim.data.digits.DataError` for samples of another shape.
    """
    return run_graph(graph, samples_for(graph, x))
