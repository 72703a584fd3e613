"""The reference model of networks. :mod:`sim.golden.steps` runs their stages."""

from functools import partial
from math import prod

import numpy as np

from ..data.progress_lines import show
from ..data.samples import as_rows
from ..data.time_left import TimeLeft
from .arithmetic import bfloat16, round_bfloat16
from .steps import run_step

__all__ = ["channel_means", "core_input", "run_network", "run_graph", "samples_for"]

_BLOCK = 1 << 23  # operands copied together at a time
_TOLD = 1 << 31  # multiplications after which the remaining time is told


def core_input(graph, x):
    """Returns the bfloat16 values (count, input size) that the core reads for float32 samples (count, sample size) of a
    :class:`sim.ir.graph.Graph`; bfloat16 values are returned unchanged."""
    x = np.asarray(x)
    return x if x.dtype == bfloat16 else round_bfloat16(graph.fed(x))


def run_graph(graph, x, keep=False, sums=None):
    """Returns results, float32 (batch, output size), of a :class:`sim.ir.graph.Graph` for samples as :func:`core_input` takes
    them. Parameters have their initial values. `sums` is as in :func:`sim.golden.steps.run_step`.

    With `keep`, returns `(results, tensors)`. `tensors` has the results of all stages, (batch, height, width, channels), by name
    of the tensor.
    """
    x, weights = core_input(graph, x), {name: one.initial[None] for name, one in graph.parameters.items()}
    step = 1 if len(x) == 1 else _samples_at_once(graph)
    results, kept, left = [], {stage.output: [] for stage in graph.stages if keep}, TimeLeft("fewer samples")
    for first in range(0, len(x), step):
        values, _ = run_step(graph, graph.arrange_inputs(x[first : first + step]) | weights, sums)
        results.append(graph.arrange_output(values))
        for name, parts in kept.items():
            parts.append(values[name])
        if text := left(min(1, (first + step) / len(x))):
            show(f"the golden model: {text}" if first + step < len(x) else None)
    whole = np.concatenate(results)
    return (whole, {name: np.concatenate(parts) for name, parts in kept.items()}) if keep else whole


def channel_means(graph, x):
    """Returns the mean of each channel of each tensor over samples as :func:`core_input` takes them: `{name: float64 array}`."""
    x, weights, means = core_input(graph, x), {name: one.initial[None] for name, one in graph.parameters.items()}, {}
    for row in x:
        inputs = graph.arrange_inputs(row[None])
        values, _ = run_step(graph, inputs | weights)
        for name, one in (inputs | values).items():
            mean = one.astype(np.float64).reshape(-1, one.shape[-1]).mean(0) / len(x)
            means[name] = means.get(name, 0) + np.where(np.isfinite(mean), mean, 0)
    return means


def _samples_at_once(graph):
    largest = max(prod(stage.size) * sum(map(partial(_operands, graph), stage.terms)) for stage in graph.stages)
    return max(1, int(min(_BLOCK // largest, _TOLD // max(1, sum(graph.macs)))))


def _operands(graph, term):
    return prod(term.kernel) * graph.tensors[term.source].channels


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
