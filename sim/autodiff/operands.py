"""Gradients of the operands of sums: terms of convolutions, dense layers and products of two tensors, and initial sums.

Each rule returns the term that the gradient of a stage's sums adds to the gradient of an operand.
"""

from dataclasses import replace
from math import prod

import numpy as np
from ml_dtypes import bfloat16

from ..ir.stage import Term
from ..ir.strided_copies import places_of, strided_copies
from .stages import add_like, identity, row_sum

__all__ = ["copy_terms", "of_all_copies", "source_term", "weights_term", "start_term"]


def source_term(step, term, gradient):
    """Returns the term of the gradient of a term's source: a convolution over the gradient of the sums by the mirrored kernel.
    The stride of one is the distance of positions in the other."""
    tensor = step.tensors[gradient]
    if step.is_diagonal(term, tensor.shape):
        return replace(term, source=gradient)
    padding = tuple((k - 1) * apart - before for k, apart, before in zip(term.kernel, term.dilation, term.padding))
    apart = tuple(1 if count == 1 else stride for count, stride in zip((tensor.height, tensor.width), term.stride))
    return replace(term, source=gradient, stride=term.apart, padding=padding, apart=apart, swapped=not term.swapped)


def copy_terms(step, term, gradient):
    """Yields the terms of the gradient of a source whose values are copied: copies back to their places. The first term has the
    first copy of each value, the second the second, and so on."""
    index = places_of(term.copies, prod(step.tensors[gradient].shape))
    written = np.flatnonzero(index >= 0)
    written = written[np.argsort(index[written], kind="stable")]
    read = index[written]
    number = np.arange(len(read)) - np.searchsorted(read, read)
    for one in range(number.max(initial=0) + 1):
        back = np.full(prod(step.tensors[term.source].shape), -1)
        back[read[number == one]] = written[number == one]
        yield replace(term, source=gradient, copies=strided_copies(back, most=len(back)))


def weights_term(step, term, gradient):
    """Returns the term of the gradient of a term's weights: the transposed source of the term, times the gradient of the sums.
    The gradient of a diagonal is a sum of elementwise products."""
    if step.is_diagonal(term, step.tensors[gradient].shape):
        product = f"{gradient} * {term.source}"
        return row_sum(step, add_like(step, gradient, product, (), start=gradient, times=term.source))
    if term.swapped:
        return Term(gradient, term.source, transposed=True)
    return replace(term, weights=gradient, transposed=True)


def start_term(step, start, gradient):
    """Returns the term of the gradient of initial sums. There are three kinds of initial sums: for each sample, for each
    position (the same for all samples), or one row for all."""
    tensor = step.tensors[start]
    positions = tensor.height * tensor.width
    if tensor.samples:
        return identity(step, gradient)
    if positions == 1:
        return row_sum(step, gradient)
    places = np.eye(positions, dtype=np.float32).astype(bfloat16).reshape(tensor.height, tensor.width, positions)
    return Term(step.constant(f"places {tensor.height} x {tensor.width}", places), gradient, transposed=True)


def of_all_copies(step, term, ties):
    """Returns the term of the gradient of a vector whose channels have equal values, from a sum over samples and positions. The
    gradients of all copies are added before the sum. `ties` are weights of 0 and 1."""
    added = add_like(step, term.weights, f"{term.weights}, of all copies", (Term(term.weights, ties),))
    return replace(term, weights=added)
