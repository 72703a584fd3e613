"""Training steps in binary64: the rules of a :class:`sim.ir.graph.Graph` without rounding, for 1 x 1 terms."""

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np

from amaranth_tpu.sim.autodiff import norms, stages
from amaranth_tpu.sim.functions.functions import RELU


@contextmanager
def exact_constants():
    numpy = SimpleNamespace(**{**vars(np), "float32": float})
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(norms, "mean_parts", lambda channels: [1 / channels]))
        for module in (norms, stages):
            stack.enter_context(mock.patch.multiple(module, bfloat16=float, np=numpy))
        yield


def _rows(values):
    return values.reshape(len(values), -1, values.shape[-1])


def _added(step, term, values, size, shape):
    source, weights = values[term.source], values[term.weights]
    if term.transposed:
        vectors, rows = _rows(weights), _rows(source)
        rows = np.broadcast_to(rows, (len(vectors), vectors.shape[1], rows.shape[2]))
        product = np.einsum("bpi,bpo->bio", rows, vectors)
    elif term.groups == shape[-1] and step.tensors[term.weights].shape[:2] == (1, 1):
        return source * weights
    else:
        assert term.kernel == (1, 1) and term.groups == 1, term
        matrix = _rows(weights).swapaxes(1, 2) if term.swapped else _rows(weights)
        product = _rows(source) @ matrix
    return product.reshape(len(product), *shape)


def run_exact(step, values):
    """Returns all tensors of a step, float64 (batch or 1, height, width, channels), from the tensors that no stage writes."""
    return run_stages(step, step.stages, values)


def run_stages(step, stages, values):
    values = {name: np.asarray(one, float) for name, one in values.items()}
    values |= {name: np.asarray(one, float)[None] for name, one in step.constants.items()}
    for stage in stages:
        tensor = step.tensors[stage.output]
        total = values[stage.start] if stage.start else np.zeros((1, *tensor.shape))
        for term in stage.terms:
            product = _added(step, term, values, stage.size, tensor.shape)
            total = total + (product if tensor.samples else product.sum(axis=0, keepdims=True))
        if stage.softmax:
            total = np.exp(total - total.max(axis=-1, keepdims=True))
            total = total / total.sum(axis=-1, keepdims=True)
        elif stage.function == RELU:
            total = np.maximum(total, 0)
        elif stage.function.is_table:
            total = stage.function.exact(total)
        if stage.times:
            total = total * values[stage.times]
        if stage.select:
            total = np.where(values[stage.select.tensor] > 0, total, 0)
        values[stage.output] = total
    return values
