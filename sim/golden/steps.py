"""The reference model of training steps: runs the stages of a :class:`sim.ir.graph.Graph`.

Arrays are (batch, height, width, channels); tensors that all samples share have a batch of 1. :class:`Sums` adds the products.
"""

import functools
from collections import Counter
from dataclasses import dataclass
from math import prod

import numpy as np

from ..autodiff.rings import segment_outputs
from ..functions.functions import RELU
from ..ir.stage import Pool
from ..ir.strided_copies import places_of
from .arithmetic import bfloat16
from .function_tables import apply, table_of
from .normalization import normalize
from .ring import held_by, ring_sum
from .softmax import softmax
from .sums import Sums, upper_half
from .windows import Convolution, pool_max

__all__ = ["run_step", "segments_of", "whole_of_segments"]


def run_step(step, values, sums=None, kept=({},), shards=(slice(None),)):
    """Runs the stages of a step, or of a network, on one core or on the cores of a ring.

    Stages of samples run once for the samples of all cores. The other stages run for each core.

    Parameters
    ----------
    step : sim.ir.graph.Graph
    values : dict of str to array
        Tensors of samples, for all cores, and tensors that all cores share: factors, and parameters that the network reads.
    sums : Sums or None
        None: the definition.
    kept : sequence of dict of str to array
        Each core's own tensors.
    shards : sequence of slice
        Each core's samples.

    Returns
    -------
    dict of str to array, list of dict of str to array
        Tensors of samples and shared tensors; the other tensors of each core.
    """
    sums = sums or Sums()
    shared = _Tensors(step, values | {name: np.asarray(one)[None] for name, one in step.constants.items()}, sums)
    shared.batch = next((len(one) for name, one in values.items() if step.tensors[name].samples), 1)
    cores = [_Tensors(step, dict(own), sums, shared, shard) for own, shard in zip(kept, shards, strict=True)]
    for one in _plan(step, len(step.stages)):
        stage, own = one.stage, cores[0].values
        if stage.ring == "reduce_scatter":
            results = _scattered([core.values[stage.start] for core in cores], step.tensors[stage.output].channels, sums)
        elif stage.ring:
            shared.values[stage.output] = _united(stage, [core.values[stage.start] for core in cores], step, sums)
            results = ()
        elif step.tensors[stage.output].samples or not any(name in own or step.tensors[name].samples for name in one.reads):
            shared.values[stage.output] = shared.placed(stage, shared.run_stage(one))
            results = ()
        else:
            results = [core.run_stage(one) for core in cores]
            if len(cores) == 1:  # stages of samples may read statistics of the batch
                shared.values[stage.output] = results[0]
        for core, result in zip(cores, results):
            core.values[stage.output] = result
        for name in one.unread:
            for tensors in (shared, *cores):
                tensors.values.pop(name, None)
    return shared.values, [core.values for core in cores]


@dataclass(frozen=True)
class _Planned:
    """A stage in the order of a step."""

    stage: object  # Stage
    reads: tuple  # Tuple of str. Tensors that it reads.
    twin: int  # number that is equal for twins
    is_last: bool  # no later stage is a twin
    unread: tuple  # Tuple of str. Tensors without samples that no later stage reads and that are not results of the step.


@functools.lru_cache(maxsize=8)
def _plan(step, stages):
    """Returns the :class:`_Planned` of all stages; `stages` is their number."""
    results = {*step.state.values(), *step.gradients.values(), *step.outputs}
    made = {stage.output for stage in step.stages if not step.tensors[stage.output].samples} - results
    plan, read_later, twins_later, numbers, written_later = [], set(), set(), {}, Counter()
    for stage in reversed(step.stages):
        reads = dict.fromkeys(stage.operands)
        summed = (stage.start, *(name for term in stage.terms for name in (term.source, term.weights)))
        parts = tuple(written_later[name] for name in summed)  # a tensor may be read before all of its parts are written
        twin = numbers.setdefault((stage.sums, parts), len(numbers))
        unread = tuple(name for name in reads if name in made and name not in read_later)
        plan.append(_Planned(stage, tuple(reads), twin, twin not in twins_later, unread))
        read_later |= {*reads}
        twins_later.add(twin)
        written_later[stage.output] += 1
    return plan[::-1]


def segments_of(values, cores, share):
    """Returns the channels cut into a segment of `share` channels per core; the last segments are padded with 0."""
    if missing := cores * share - values.shape[-1]:
        values = np.concatenate([values, np.zeros((*values.shape[:-1], missing), values.dtype)], axis=-1)
    return np.split(values, cores, axis=-1)


def whole_of_segments(parts, channels):
    """Returns the channels of all segments, from the segment that each core of a ring holds."""
    cores = len(parts)
    whole = np.concatenate([parts[(segment - 1) % cores] for segment in range(cores)], axis=-1)
    return np.ascontiguousarray(whole[..., :channels])


def _scattered(parts, share, sums):
    cores = len(parts)
    cut = [segments_of(part, cores, share) for part in parts]
    return [
        ring_sum([part[segment] for part in cut], segment, sums.added)
        for segment in (held_by(rank, cores) for rank in range(cores))
    ]


def _united(stage, parts, step, sums):
    if stage.ring == "all_reduce":
        return ring_sum(parts, 0, sums.added)
    channels = step.tensors[stage.output].channels
    if stage.ring == "all_reduce_segments":
        return whole_of_segments(_scattered(parts, segment_outputs(channels, len(parts)), sums), channels)
    return whole_of_segments([upper_half(part) for part in parts], channels)


def _copied(copies, source, shape):
    """Returns values of a source at their places in a tensor of this shape, and 0 elsewhere."""
    index = places_of(copies, prod(shape[1:]))
    values = np.where(index < 0, bfloat16(0), source.reshape(len(source), -1)[:, index])
    return values.reshape(shape)


def _broadcast(values, shape):
    return values if values.shape == shape else np.ascontiguousarray(np.broadcast_to(values, shape))


class _Tensors:
    """The tensors of all cores, or the own tensors of one core, which reads its `shard` of the samples of all.

    Sums and results of twins are computed once.
    """

    def __init__(self, step, values, sums, shared=None, shard=None):
        self.step, self.values, self.sums, self.batch = step, values, sums, 1
        self._shared, self._shard = shared, shard
        self._kept, self._halves = {}, {}

    def value(self, name):
        """Returns a tensor, (batch, height, width, channels)."""
        if self._shared is None or name in self.values:
            return self.values[name]
        values = self._shared.values[name]
        return values[self._shard] if self.step.tensors[name].samples else values

    def _operand(self, name):
        """Returns a tensor as bfloat16: the upper halves of a wide tensor."""
        if not self.step.tensors[name].wide:
            return self.value(name)
        if self._shared is not None and name not in self.values and not self.step.tensors[name].samples:
            return self._shared._operand(name)
        if name not in self._halves:
            self._halves[name] = upper_half(self.value(name))
        return self._halves[name]

    def run_stage(self, planned):
        stage, twin = planned.stage, planned.twin
        tensor = self.step.tensors[stage.output]
        if twin not in self._kept:
            self._kept[twin] = self._total(stage, tensor), {}
        total, results = self._kept[twin]
        if planned.is_last:
            del self._kept[twin]
        if stage.pool:
            total, index = self._largest(stage, total, results)
        if stage.index:
            return index
        if tensor.wide:
            return self._rounded(stage, total).astype(np.float32) if stage.softmax else apply(stage.function, total)
        key = stage.pool, stage.function, stage.softmax
        if key not in results:
            results[key] = self._rounded(stage, total)
        result = results[key]
        if stage.times:
            result = self.sums.product(result, _broadcast(self._operand(stage.times), result.shape))
        return self._selected(stage, result) if stage.select else result

    def placed(self, stage, result):
        """Returns the output of a stage with a result, which may be a part of the output."""
        shape = result.shape[0], *self.step.tensors[stage.output].shape
        if result.shape == shape:
            return result
        whole = self.values[stage.output] if stage.output in self.values else np.zeros(shape, result.dtype)
        (top, left), (height, width) = stage.origin, result.shape[1:3]
        whole[:, top : top + height, left : left + width] = result
        return whole

    def _largest(self, stage, total, results):
        """Returns the largest sums of windows and, if these are side by side, their places. `results` keeps both for twins."""
        pool, key = stage.pool, (stage.pool, stage.function == RELU)
        if not pool.is_apart(stage.size):
            return pool_max(total, pool), None
        if key not in results:
            results[key] = self.sums.pool(total, *key)
        return results[key]

    def _rounded(self, stage, total):
        if stage.softmax:
            rows = np.ascontiguousarray(total).view(np.uint32).reshape(-1, total.shape[-1])
            bits = softmax(rows) if stage.softmax is True else normalize(rows, **stage.softmax.fields(rows.shape[1]))
            return np.asarray(bits).astype(np.uint16).view(bfloat16).reshape(total.shape)
        if stage.function.is_table:
            return self.sums.looked_up(total, table_of(stage.function))
        return self.sums.rounded(total, stage.function == RELU)

    def _selected(self, stage, result):
        select, chosen = stage.select, self.value(stage.select.tensor)
        if not select.index:
            return self.sums.kept(result, chosen)
        return self.sums.spread(result, chosen, Pool(select.window, stage.size, select.window), stage.result_size)

    def _total(self, stage, tensor):
        shape = (self.batch if tensor.samples else 1, *stage.size, tensor.channels)
        total = None
        if stage.start:
            total = _broadcast(self.value(stage.start)[..., : shape[-1]].astype(np.float32, copy=False), shape)
        for term in stage.terms:
            if term.transposed:
                total = self._add_transposed(total, shape, tensor.samples, term)
            else:
                total = self._add(np.zeros(shape, np.float32) if total is None else total, term)
        return np.zeros(shape, np.float32) if total is None else total + np.float32(0)  # the accumulators hold no -0

    def _add(self, total, term):
        source, weights = self._operand(term.source), self._operand(term.weights)
        source = _broadcast(source, (len(total), *source.shape[1:]))
        if term.copies:
            return self.sums.scaled(total, _copied(term.copies, source, total.shape), bfloat16(1))
        if self.step.is_diagonal(term, total.shape[1:]):
            return self.sums.scaled(total, source, weights if weights.size == 1 else _broadcast(weights, total.shape))
        if self.step.tensors[term.weights].samples:
            return self._add_product(total, source, weights, term)
        if term.apart != (1, 1):
            batch, *size, channels = source.shape
            apart = np.zeros((batch, *((count - 1) * by + 1 for count, by in zip(size, term.apart)), channels), bfloat16)
            apart[:, :: term.apart[0], :: term.apart[1]] = source
            source = apart
        return self.sums.add_term(total, source, self._convolution(term, weights))

    @staticmethod
    def _convolution(term, weights):
        kernel = weights.reshape(*term.kernel, *weights.shape[-2:])
        if term.swapped:
            height, width, inputs, outputs = kernel.shape
            kernel = kernel[::-1, ::-1].reshape(height, width, inputs, term.groups, -1).swapaxes(2, 4)
            kernel = np.ascontiguousarray(kernel.reshape(height, width, outputs // term.groups, -1))
        return Convolution(kernel, term.stride, term.dilation, term.padding, term.groups)

    def _add_product(self, total, source, weights, term):
        """Adds each sample's own product."""
        result = []
        for start, values, matrix in zip(total, source, weights):
            one = self._convolution(term, matrix.reshape(1, 1, -1, matrix.shape[-1]))
            result.append(self.sums.add_term(start[None], values[None], one))
        return np.concatenate(result)

    def _add_transposed(self, total, shape, samples, term):
        """Adds products summed over positions; over samples, too, unless the result has `samples`."""
        source, vectors = self._operand(term.source), self._operand(term.weights)
        if source.shape == (1, 1, 1, 1) and source == 1 and total is None and not samples:
            return self.sums.bias_gradient(vectors).reshape(shape)
        if source.shape[1:3] == term.kernel == (1, 1) and term.padding == (0, 0):
            source = _broadcast(source, (len(source), *vectors.shape[1:3], source.shape[3]))
        source = _broadcast(source, (len(vectors), *source.shape[1:]))
        kernel = (*term.kernel, source.shape[3] // term.groups, vectors.shape[3])
        one = Convolution(np.broadcast_to(bfloat16(0), kernel), term.stride, term.dilation, term.padding, term.groups)
        if not samples:
            start = None if total is None else total.reshape(kernel)
            return self.sums.weight_gradient(source, one, vectors, start).reshape(shape)
        starts = [None] * len(vectors) if total is None else [part.reshape(kernel) for part in total]
        parts = zip(source, vectors, starts)
        made = [self.sums.weight_gradient(a[None], one, b[None], start).reshape(shape[1:]) for a, b, start in parts]
        return np.stack(made)
