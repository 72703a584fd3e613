"""A second reference model of networks, stage by stage, beside :mod:`sim.golden.steps`."""

import numpy as np

from amaranth_tpu.sim.golden.arithmetic import matmul, round_bfloat16
from amaranth_tpu.sim.golden.function_tables import apply
from amaranth_tpu.sim.golden.softmax import softmax
from amaranth_tpu.sim.golden.windows import Convolution, add_term, pool_max


def _add_product(sums, values, weights, rows):
    """Adds the product of each sample by a matrix of its own: `weights[sample, 0]`, or its transpose if `rows` is False."""
    result = []
    for start, operands, matrix in zip(sums, values, weights[:, 0]):
        parts = operands.reshape(-1, operands.shape[-1]), matrix if rows else matrix.T, start.reshape(-1, start.shape[-1])
        result.append(matmul(*map(np.ascontiguousarray, parts)).reshape(start.shape))
    return np.stack(result)


def _add_copies(sums, values, copies):
    """Adds values, one by one, to the sums to which they are copied by strides."""
    for source, result, axes in copies:
        for place in np.ndindex(*(count for count, *_ in axes)):
            read, written = (sum(step * axis[which] for step, axis in zip(place, axes)) for which in (1, 2))
            sums[:, result + written] += values[:, source + read].astype(np.float32)


def convolution(graph, term):
    """Returns a term with constant weights."""
    return Convolution(graph.kernel(term), term.stride, term.dilation, term.padding, term.groups)


def first_sums(graph, stage, batch):
    """Returns the initial sums of a stage, float32 (batch, height, width, channels): its bias, or +0 if it has none."""
    start = np.zeros(1, np.float32) if stage.start is None else graph.constants[stage.start]
    return np.broadcast_to(start, (batch, *stage.size, graph.channels(stage))).copy()


def run_stage(graph, stage, tensors, binary32=False):
    """Computes the result of a stage, (batch, height, width, channels), as bfloat16, or as float32 with `binary32`."""
    values = first_sums(graph, stage, len(next(iter(tensors.values()))))
    for term in stage.terms:
        source = tensors[term.source]
        if term.copies:
            _add_copies(values.reshape(len(values), -1), source.reshape(len(source), -1), term.copies)
        elif term.weights in graph.constants:
            values = add_term(values, source, convolution(graph, term))
        else:
            values = _add_product(values, source, tensors[term.weights], not term.swapped)
    values = values + np.float32(0)  # no sum is -0
    values = pool_max(values, stage.pool) if stage.pool else values
    if stage.softmax:
        bits = softmax(np.ascontiguousarray(values).view(np.uint32).reshape(-1, graph.channels(stage)))
        values = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(values.shape)
    else:
        values = apply(stage.function, values)
    if stage.times:
        with np.errstate(over="ignore", invalid="ignore"):
            factors = tensors[stage.times] if stage.times in tensors else graph.constants[stage.times]
            values = round_bfloat16(values).astype(np.float32) * factors.astype(np.float32)
        values = np.where(np.abs(values) < 2.0**-126, np.float32(0), values)
    return values if binary32 else round_bfloat16(values)


def run_stages(graph, x):
    """Returns all tensors of a graph, {name: (batch, height, width, channels)}, for bfloat16 samples (batch, input size)."""
    tensors = graph.arrange_inputs(x)
    for stage in graph.stages:
        part = run_stage(graph, stage, tensors, binary32=graph.tensors[stage.output].wide)
        whole = tensors.setdefault(stage.output, np.zeros((len(x), *graph.tensors[stage.output].shape), part.dtype))
        (top, left), (height, width) = stage.origin, stage.result_size
        whole[:, top : top + height, left : left + width] = part
    return tensors
