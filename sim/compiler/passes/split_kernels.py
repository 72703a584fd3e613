"""Splitting of windows that do not fit the unified buffer, such as an average over a large image, into several terms. Each term
has some lines of the kernel. The order of the products is the same, so no bit changes."""

from dataclasses import replace

__all__ = ["split_kernels"]

_LINE = 2  # the windows of a line of sums have at most one of so many parts of the unified buffer
_PART = 4  # and a part of them one of so many


def split_kernels(graph, config, batch):
    """Returns the graph in which kernels of too many lines are several terms."""
    made = graph.copied()
    made.stages = [
        replace(
            stage, terms=tuple(part for term in stage.terms for part in _parts(made, stage, term, config.unified_buffer_depth))
        )
        for stage in graph.stages
    ]
    is_split = any(len(new.terms) > len(old.terms) for new, old in zip(made.stages, graph.stages))
    return made if is_split else graph


def _parts(made, stage, term, depth):
    special = term.swapped or term.transposed or term.lanes or term.blocks or term.copies or term.apart != (1, 1)
    if special or term.weights not in made.constants:
        return [term]
    (height, width), dilation, weights = term.kernel, term.dilation[0], made.constants[term.weights]
    pitch = (stage.sums_size[1] - 1) * term.stride[1] + (width - 1) * term.dilation[1] + 1
    if ((height - 1) * dilation + 1) * pitch <= depth // _LINE:
        return [term]
    lines, parts = max(1, depth // (_PART * pitch * dilation)), []
    for first in range(0, height, lines):
        end = min(height, first + lines)
        name = made.constant(f"{term.weights}, {end - first} lines", weights[first * width : end * width])
        padding = term.padding[0] - first * dilation, term.padding[1]
        parts.append(replace(term, weights=name, kernel=(end - first, width), padding=padding))
    return parts
