"""Equal branches of a network: consecutive groups of stages that compute the same with different weights or tensors, such as the
heads of an attention.

Branches do not depend on each other. A run therefore treats them as further samples of the first branch: stages of one branch
overlap with stages of the next branch, and corresponding stages share memory.
"""

from dataclasses import replace

from ..memory.batching import reads
from ..memory.layout import ROWS
from .weight_passes import count_passes

__all__ = ["equal_branches", "counterparts"]


def equal_branches(batched, numbers, layouts):
    """Finds equal branches among the consecutive stages `numbers`. Returns a list of `(stages, count)`: a range of stages, which
    consists of `count` branches of equal length, at least two. Each branch has at least two stages."""
    found, numbers = [], list(numbers)
    forms = [_form(batched, number, layouts) for number in numbers]
    first = 0
    while first < len(numbers):
        stages, count = _longest(batched, numbers, forms, first)
        if count > 1:
            found.append((stages, count))
        first += max(1, len(stages))
    return found


def _longest(batched, numbers, forms, first):
    """Returns `(stages, count)` for the branches that start at index `first` of `numbers`: those that cover the most stages, and
    of these the shortest. `stages` is empty if there are none."""
    best = range(0), 1
    for length in range(2, (len(forms) - first) // 2 + 1):
        count = 1
        while forms[first : first + length] == forms[first + count * length : first + (count + 1) * length]:
            count += 1
        stages = range(numbers[first], numbers[first] + count * length)
        while count > 1 and not _independent(batched, stages, count):
            count -= 1
            stages = stages[: count * length]
        if count > 1 and len(stages) > len(best[0]):
            best = stages, count
    return best


def _independent(batched, stages, count):
    """Returns True if each of the `count` branches reads its own results at the same places as the first branch, and no results
    of other branches."""
    length, links = len(stages) // count, []
    for first in range(stages.start, stages.stop, length):
        own = range(first, first + length)
        links.append([_sources(batched, number, own) for number in own])
        others = {batched.stages[number].output for number in stages if number not in own}
        if any(others & reads(batched.stages[number]) for number in own):
            return False
    return all(link == links[0] for link in links)


def _sources(batched, number, own):
    """Returns, for each operand of a stage, the index in `own` of the stage that writes it; None if another stage writes it."""
    stage = batched.stages[number]
    index = {batched.stages[other].output: other - own.start for other in own}
    return [index.get(name) for name in _operands(stage)]


def _operands(stage):
    """Returns the names of a stage's operands in order, or None in their place."""
    return [*(name for term in stage.terms for name in (term.source, term.data)), stage.times]


def _form(batched, number, layouts):
    """Returns a description of a stage without names and weights: stages of the same form may share a tiling. A stage that cannot
    be in a branch has a form of its own."""
    stage = batched.stages[number]
    names = *_operands(stage), stage.output
    alike = [name and replace(layouts[name], tensor=replace(layouts[name].tensor, name="-")) for name in names]
    if stage.reflow or any(layout and layout.order != ROWS for layout in alike):
        return number
    terms = [
        (term.weights.shape, term.stride, term.dilation, term.padding, term.groups, term.data is None, term.rows)
        for term in stage.terms
    ]
    bias = None if stage.bias is None else stage.bias.ndim
    own = stage.size, stage.pool, stage.function, stage.softmax, stage.origin, bias
    return own, terms, alike, count_passes(stage, layouts[stage.output].n)


def counterparts(batched, stages, count):
    """Returns `{tensor: [tensors of all branches]}` for the output of each stage of the first branch."""
    length = len(stages) // count
    return {
        batched.stages[number].output: [batched.stages[number + branch * length].output for branch in range(count)]
        for number in stages[:length]
    }
