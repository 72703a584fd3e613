"""Packing of tensors with few channels: neighbouring positions share a vector.

A tensor of c channels leaves n - c lanes of every vector idle, and a sliding window takes one pass for each column of the kernel.
With p columns per vector, position X of the packed tensor holds p columns, starting at column p X - offset, as
[column][channel]. One pass then serves p columns of the kernel and p results. The stage becomes one with fewer positions and
more channels. Most of its weights are structural zeros (-0). Sums keep their order of kernel rows, columns and channels, so no
bit of a result changes. The pass does for tensors that the core writes what im2col does for the graph's input.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd, lcm, prod

import numpy as np

from ...golden.arithmetic import bfloat16
from ...ir.stage import Term, span
from ...ir.tiles import dense

__all__ = ["Fold", "Weighted", "best_folding", "count_passes", "fold_columns"]

_MOST_TRIALS = 64


@dataclass(frozen=True, eq=False)
class Weighted:
    """A term with its weights, (kernel height, kernel width, channels of the source / groups, channels of the result)."""

    term: Term
    weights: np.ndarray


@dataclass(frozen=True)
class Fold:
    """The packing of a tensor's columns into vectors: `count` columns per vector. The tensor's first column is column `offset` of
    the first vector."""

    count: int = 1
    offset: int = 0

    def width(self, width):
        """Returns the packed width, in positions, of a tensor with `width` columns."""
        return -(-(width + self.offset) // self.count)


def _between(one, source, result):
    """Returns the :class:`.Weighted` that reads a packed source and computes a packed result. `source` and `result` are their
    :class:`Fold`. If a row of the result has several vectors, the stride times the result's `count` must be a multiple of the
    source's `count`."""
    if source.count == result.count == 1:
        return one
    term, places = one.term, {}
    step = term.stride[1]
    for x, k in product(range(result.count), range(term.kernel[1])):
        column = (x - result.offset) * step + k * term.dilation[1] - term.padding[1] + source.offset
        places[x, k] = divmod(column, source.count)
    first, last = min(places.values())[0], max(places.values())[0]
    whole = dense(one.weights, term.groups, -0.0)
    inputs, outputs = whole.shape[2:]
    weights = np.full((term.kernel[0], last - first + 1, source.count * inputs, result.count * outputs), -0.0, bfloat16)
    for (x, k), (position, lane) in places.items():
        weights[:, position - first, lane * inputs : (lane + 1) * inputs, x * outputs : (x + 1) * outputs] = whole[:, k]
    stride = term.stride[0], max(1, step * result.count // source.count)
    dilation, padding = (term.dilation[0], 1), (term.padding[0], -first)
    made = Term(term.source, term.weights, weights.shape[:2], stride, dilation, padding, fixed=term.fixed, sparse=True)
    return Weighted(made, weights)


def _inside(graph, name):
    """Returns True if no stage reads columns outside the tensor `name`. Such columns would have to be zeros."""
    width = graph.tensors[name].width
    return all(
        term.padding[1] <= 0
        and span(stage.sums_size[1], term.stride[1], term.kernel[1], term.dilation[1]) - term.padding[1] <= width
        for stage in graph.stages
        for term in stage.terms
        if term.source == name
    )


def _foldable(graph):
    """Returns, in program order, the names of the tensors that can be packed: one stage writes the whole tensor, and other stages
    read it only as an operand of sums."""
    found = {}
    for stage in graph.stages:
        whole = stage.result_size == graph.tensors[stage.output].shape[:2] and stage.output not in found
        found[stage.output] = whole and not (stage.pool or stage.softmax or stage.times or graph.has_bias_rows(stage))
    products = [(stage, term) for stage in graph.stages for term in stage.terms if term.copies or graph.is_product(term)]
    for stage, term in products:
        found |= dict.fromkeys((stage.output, term.source, term.weights), False)
    repeated = [(stage.output, term.source) for stage in graph.stages for term in stage.terms if 0 in term.stride]
    for name in [*graph.outputs, *(stage.times for stage in graph.stages), *(name for pair in repeated for name in pair)]:
        found[name] = False
    return [name for name, can in found.items() if can]


class _Folding:
    """A graph in which some tensors are packed: `folds`, by name. `wanted` has the columns per vector of some tensors. Others are
    packed only if the packing of these requires it. All instances share `known`, the converted terms. Raises ValueError if a
    tensor cannot be folded as required."""

    def __init__(self, graph, n, wanted, known):
        self.graph, self.n, self.known, self.folds, self.stages = graph, n, known, {}, []
        foldable = _foldable(graph)
        for stage in graph.stages:
            self.stages.append(self._stage(stage, wanted.get(stage.output, 1), stage.output in foldable))

    def _stage(self, stage, count, foldable):
        """Returns the stage with packed operands and a packed result, and its terms as :class:`.Weighted`. The result has a
        multiple of `count` columns per vector. `foldable` is True if the result may be packed. Raises ValueError if it must be
        packed but cannot."""
        width, name = stage.size[1], stage.output
        for term in stage.terms if width > 1 else ():
            source = self.folds.get(term.source, Fold()).count
            count = lcm(count, source // gcd(source, term.stride[1]))
        if count == 1:
            return self._made(stage, Fold())
        inside = _inside(self.graph, name)
        if not foldable or count > width or not inside and width % count:
            raise ValueError(name)
        folds = [Fold(count, offset) for offset in range(count if inside else 1)]
        made = [self._made(stage, fold) for fold in folds]
        best = min(range(len(folds)), key=lambda index: count_passes(made[index][1], self.n) * prod(made[index][0].size))
        self.folds[name] = folds[best]
        return made[best]

    def _made(self, stage, fold):
        terms = tuple(self._term(term, self.folds.get(term.source, Fold()), fold) for term in stage.terms)
        size = stage.size if fold.count == 1 else (stage.size[0], fold.width(stage.size[1]))
        return replace(stage, size=size, terms=tuple(one.term for one in terms)), terms

    def _term(self, term, source, result):
        """Returns a packed term as :class:`.Weighted`. There is only one for equal arguments."""
        key = term, source, result
        if key not in self.known:
            self.known[key] = _between(self._weighted(term), source, result)
        return self.known[key]

    def _weighted(self, term):
        if term not in self.known:
            self.known[term] = Weighted(term, self.graph.kernel(term))
        return self.known[term]

    @property
    def packed(self):
        """The graph with packed tensors."""
        made = self.graph.copied()
        made.stages = []
        for name, fold in self.folds.items():
            one = made.tensors[name]
            made.tensors[name] = replace(one, channels=one.channels * fold.count, width=fold.width(one.width))
        for stage, terms in self.stages:
            start, count = stage.start, self.folds.get(stage.output, Fold()).count
            if start and count > 1:
                start = made.constant(f"{start}, {count} columns", np.tile(made.constants[start], count))
            made.stages.append(replace(stage, start=start, terms=tuple(self._named(made, one) for one in terms)))
        return made

    def _named(self, made, one):
        """Returns the term of a :class:`.Weighted`, with its weights in the graph `made`."""
        if one is self.known.get(one.term):
            return one.term
        name = made.constant(f"{one.term.weights}, packed", one.weights.reshape(-1, *one.weights.shape[2:]))
        return replace(one.term, weights=name)

    @property
    def cycles(self):
        found = [one for one in self.stages if all(term.weights is not None for term in one[1])]
        return sum(count_passes(terms, self.n) * max(self.n, prod(stage.sums_size)) for stage, terms in found)


def fold_columns(graph, config, batch):
    """Returns the graph in which tensors are packed where this saves cycles of the array. It has one stage for each stage of
    `graph`."""
    best = best_folding(graph, config.n)
    return best.packed if best.folds else graph


def best_folding(graph, n):
    """Returns the :class:`_Folding` with the fewest cycles of the array."""
    tensors, known, wanted = graph.tensors, {}, {}
    trials = [
        (name, count)
        for name in _foldable(graph)
        for count in range(min(n // tensors[name].channels, tensors[name].width), 1, -1)
    ][:_MOST_TRIALS]
    best = _Folding(graph, n, {}, known)
    for name, count in trials:
        with suppress(ValueError):
            made = _Folding(graph, n, wanted | {name: count}, known)
            if made.cycles < best.cycles:
                wanted, best = wanted | {name: count}, made
    return best


@lru_cache(maxsize=256)
def count_passes(terms, n):
    """Returns the number of passes of all column tiles of a tuple of :class:`Weighted`, for one rectangle of results. Tiles of
    structural zeros, because of groups or sparse terms, take no pass. Each column tile has one pass at least."""
    return int(np.maximum(1, sum(_tiles_with_weights(one, n).sum((0, 1, 2)) for one in terms)).sum())


@lru_cache(maxsize=256)
def _tiles_with_weights(one, n):
    """Returns the tiles that have weights: bool (kernel rows, kernel columns, channel tiles of the source, column tiles)."""
    there = dense(one.weights, one.term.groups, -0.0).view(np.uint16) != 0x8000
    for axis in (2, 3):
        there = np.logical_or.reduceat(there, range(0, there.shape[axis], n), axis=axis)
    return there
