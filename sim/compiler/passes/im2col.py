"""im2col for terms that read the network's input: the host gathers the values of each kernel window into the channels of one
position.

A convolution over one channel would leave all lanes of the array but one idle. Where this saves weight tiles, a term that reads
the graph's input is replaced by a term with a 1 x 1 kernel. At each position, the new input tensor has all values in the kernel's
window, in the order of the sum. No bit of a result changes.
"""

from dataclasses import dataclass, replace

import numpy as np

from ...golden.windows import patches
from ...ir.graph import Tensor, Term
from ...ir.tiles import tiles_of

__all__ = ["Gather", "fold", "gather_windows"]


@dataclass(frozen=True, eq=False)
class Gather:
    """A tensor that the host derives from the input tensor `source`: a copy (`term` None), or the windows of a term at each
    position."""

    source: str
    tensor: Tensor
    term: Term | None = None
    size: tuple[int, int] | None = None

    def __call__(self, values):
        """Returns the tensor as bfloat16 (batch, height, width, channels), from the values of its source."""
        if self.term is None:
            return values
        return np.ascontiguousarray(patches(values, self.term, self.size)).reshape(len(values), *self.tensor.shape)


def _key(term, size):
    return term.source, term.kernel, term.stride, term.dilation, term.padding, size


def gather_windows(graph, config, batch):
    """Returns the graph whose stages read gathered inputs. `Graph.gathers` has all inputs that the stages read, gathered or
    not."""
    stages, gathers = fold(graph, config.n)
    tensors = {gather.tensor.name: gather.tensor for gather in gathers} | graph.tensors
    return replace(graph, tensors=tensors, stages=stages, gathers=tuple(gathers))


def fold(graph, n, always=()):
    """Returns `(stages, [Gather])`: terms replaced where it saves tiles, and all input tensors that the stages read. Terms of the
    stage numbers in `always` are replaced in any case."""
    gathers, stages, inputs = {}, [], graph.input_names
    for number, stage in enumerate(graph.stages):
        terms = []
        for term in stage.terms:
            if term.source not in inputs:
                terms.append(term)
                continue
            shape = graph.tensors[term.source]
            folded = np.prod(term.kernel) * shape.channels
            if (
                term.data
                or term.groups > 1
                or (number not in always and tiles_of(folded, n) >= np.prod(term.kernel) * tiles_of(shape.channels, n))
            ):
                gathers.setdefault(term.source, Gather(term.source, shape))
                terms.append(term)
            else:
                gather = gathers.setdefault(
                    _key(term, stage.sums_size),
                    Gather(
                        term.source,
                        Tensor(f"{term.source}, gathered {len(gathers)}", int(folded), *stage.sums_size),
                        term,
                        stage.sums_size,
                    ),
                )
                terms.append(
                    Term(gather.tensor.name, term.weights.reshape(1, 1, folded, -1), fixed=term.fixed, sparse=term.sparse)
                )
        for name in inputs:
            if name in (stage.times, *(term.data for term in stage.terms)):
                gathers.setdefault(name, Gather(name, graph.tensors[name]))
        stages.append(replace(stage, terms=tuple(terms)))
    return tuple(stages), list(gathers.values())
