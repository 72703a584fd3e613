"""im2col for terms that read the network's input: the host gathers the values of each kernel window into the channels of one
position.

A convolution over one channel would leave all lanes of the array but one idle. Where this saves weight tiles, a term that reads
the graph's input is replaced by a term with a 1 x 1 kernel. At each position, the new input tensor has all values in the kernel's
window, in the order of the sum. No bit of a result changes.
"""

from dataclasses import dataclass, replace

import numpy as np

from ...golden.network import patches
from ...ir.graph import Tensor, Term
from ...ir.tiles import tiles_of

__all__ = ["Gather", "fold"]


@dataclass(frozen=True, eq=False)
class Gather:
    """An input tensor that the host derives from the graph's input. It is a copy if `term` is None; otherwise each position has
    the values in the window of `term`. `size` is the height and width of the term's sums."""

    tensor: Tensor
    term: Term | None = None
    size: tuple[int, int] | None = None

    def __call__(self, values):
        """Returns the tensor's values, bfloat16 (batch, height, width, channels). `values` are the values of the graph's input in
        the same format."""
        if self.term is None:
            return values
        return np.ascontiguousarray(patches(values, self.term, self.size)).reshape(len(values), *self.tensor.shape)


def _key(term, size):
    return term.kernel, term.stride, term.dilation, term.padding, size


def fold(graph, n, always=()):
    """Applies im2col to the terms that read the graph's input, where this saves weight tiles. Returns `(stages, [Gather])`: the
    new stages, and all input tensors that they read. `always` has the indices of stages whose terms are replaced in any case."""
    shape = graph.tensors[graph.input]
    gathers, stages = {}, []
    for number, stage in enumerate(graph.stages):
        terms = []
        for term in stage.terms:
            folded = np.prod(term.kernel) * shape.channels
            if term.source != graph.input:
                terms.append(term)
            elif (
                term.data
                or term.groups > 1
                or (number not in always and tiles_of(folded, n) >= np.prod(term.kernel) * tiles_of(shape.channels, n))
            ):
                gathers.setdefault(None, Gather(shape))
                terms.append(term)
            else:
                gather = gathers.setdefault(
                    _key(term, stage.sums_size),
                    Gather(
                        Tensor(f"{graph.input}, gathered {len(gathers)}", int(folded), *stage.sums_size), term, stage.sums_size
                    ),
                )
                terms.append(
                    Term(gather.tensor.name, term.weights.reshape(1, 1, folded, -1), fixed=term.fixed, sparse=term.sparse)
                )
        if graph.input in (stage.times, *(term.data for term in stage.terms)):
            gathers.setdefault(None, Gather(shape))
        stages.append(replace(stage, terms=tuple(terms)))
    return tuple(stages), list(gathers.values())
