"""Checks that refuse networks which the golden model trains, but for which no program of a step can be compiled."""

from ..compiler.program import CompileError
from ..functions.functions import NONE
from ..ir.graph import span
from ..ir.losses import Loss

__all__ = ["check_compilable"]


def check_compilable(training):
    """Checks that the step of a :class:`sim.ir.training.TrainingGraph` can be compiled. If not, raises a CompileError whose
    message is one line that names the operator."""
    stages = training.graph.stages
    for number, stage in enumerate(stages):
        cause = _cause(training, number, stage) or (_cause_of_end(training, stage) if number == len(stages) - 1 else None)
        if cause:
            raise CompileError(
                f"{stage.title or f'stage {stage.name!r}'}: {cause} can't be compiled yet; train it on the golden model alone, "
                "without steps on a core"
            )


def _cause(training, number, stage):
    if stage.times or any(term.data for term in stage.terms):
        return "a step with products of two results"
    if stage.has_bias_rows:
        return "a step with biases that differ from position to position"
    if stage.softmax:
        return "a step with Softmax before the end of the network"
    if any(term.groups > 1 and training.parameter(number, place) for place, term in enumerate(stage.terms)):
        return "a step with trained groups"
    if any(one.source in {feed.tensor for feed in training.graph.feeds} for one in stage.terms):
        return "a step with embeddings"
    pool = stage.pool
    if pool and any(span(count, by, have, 1) != count * have for count, by, have in zip(pool.size, pool.stride, pool.window)):
        return "a step with overlapping pooling windows"
    return None


def _cause_of_end(training, last):
    tensor = training.graph.tensors[last.output]
    if training.loss is not Loss.CROSS_ENTROPY or last.function != NONE or last.pool:
        return "a step with this loss"
    if training.counted or (tensor.height, tensor.width) != (1, 1):
        return "a step with a loss for each position"
    return None
