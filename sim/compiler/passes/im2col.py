"""The first layer's few channels: kernel positions become channels of the input, gathered by the host.

A convolution over one channel would leave all but one lane of the array idle. Where it saves tiles, a term that reads the graph's
input is replaced by one of kernel 1 x 1 over an input tensor that holds, at each position, everything the kernel
sees there, in the order of the sum; so no bit changes.
"""

from dataclasses import dataclass, replace

import numpy as np

from ...golden.network import patches
from ...ir.graph import Tensor, Term
from ...ir.tiles import tiles_of

__all__ = ["Gather", "fold"]


@dataclass(frozen=True, eq=False)
class Gather:
    """What the host makes of the graph's input: as it is (`term` None), or what a term sees at each position."""

    tensor: Tensor
    term: Term | None = None
    size: tuple[int, int] | None = None

    def __call__(self, values):
        """bfloat16 (batch, height, width, channels) of the tensor, from those of the graph's input."""
        if self.term is None:
            return values
        return np.ascontiguousarray(patches(values, self.term, self.size)).reshape(len(values), *self.tensor.shape)


def _key(term, size):
    return term.kernel, term.stride, term.dilation, term.padding, size


def fold(graph, n, always=()):
    """`(stages, [Gather])` with the terms replaced that gain by it, and the input tensors that they and the others read. Terms of
    the stages of which `always` has the numbers are replaced even if they gain nothing."""
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
