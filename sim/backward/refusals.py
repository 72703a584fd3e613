"""Checks that refuse networks which the golden model trains, but for which no program of a step can be compiled."""

from ..compiler.program import CompileError
from ..functions.functions import NONE
from ..ir.losses import Loss

__all__ = ["CORE_REFUSALS", "check_compilable"]

#: Networks for which no program of a step is compiled, unless all stages are products of matrices with the same number of rows:
#: name -> (operators, what a step would have). `datasheet` writes them into sim/README.md.
CORE_REFUSALS = {
    "products": ("attention, and other products of two results", "products of two results"),
    "rows": ("a constant per position that is added", "biases that differ from position to position"),
    "softmax": ("Softmax before the end", "Softmax before the end of the network"),
    "groups": ("Conv with trained `group` above 1", "trained groups"),
    "embeddings": ("Gather from a table of embeddings", "embeddings"),
    "loss": ("the last operator, with --loss mse or a function after it", "this loss"),
    "positions": ("the last operator, with a result for each token or pixel", "a loss for each position"),
}


def check_compilable(training):
    """Checks that the step of a :class:`sim.ir.training.TrainingGraph` can be compiled. If not, raises a CompileError whose
    message is one line that names the operator."""
    stages = training.graph.stages
    for number, stage in enumerate(stages):
        cause = _cause(training, number, stage) or (_cause_of_end(training, stage) if number == len(stages) - 1 else None)
        if cause:
            raise CompileError(
                f"{stage.title or f'stage {stage.name!r}'}: a step with {CORE_REFUSALS[cause][1]} can't be compiled yet; "
                "train it on the golden model alone, without steps on a core"
            )


def _cause(training, number, stage):
    if stage.times or any(term.data for term in stage.terms):
        return "products"
    if stage.has_bias_rows:
        return "rows"
    if stage.softmax:
        return "softmax"
    if any(term.groups > 1 and training.parameter(number, place) for place, term in enumerate(stage.terms)):
        return "groups"
    if any(one.source in {feed.tensor for feed in training.graph.feeds} for one in stage.terms):
        return "embeddings"
    return None


def _cause_of_end(training, last):
    tensor = training.graph.tensors[last.output]
    if training.loss is not Loss.CROSS_ENTROPY or last.function != NONE or last.pool:
        return "loss"
    if training.counted or (tensor.height, tensor.width) != (1, 1):
        return "positions"
    return None
