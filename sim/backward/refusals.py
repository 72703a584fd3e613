"""Steps that sim/backward leaves to the compiler of steps as products of matrices, and operators for which that compiler has no
step either."""

from ..autodiff.reshapes import is_repeated, reshapes_in
from ..functions.functions import NONE
from ..ir.losses import Loss

__all__ = ["CORE_REFUSALS", "needs_matrices"]

#: Operators for which no program of a step is compiled: (operators, the cause in the message). `datasheet` writes them into
#: sim/README.md.
CORE_REFUSALS = {
    "sizes": ("a product of results with different numbers of positions, as in cross-attention", "... sizes can't be compiled")
}


def needs_matrices(training):
    """Returns True if the step of a :class:`sim.ir.training.TrainingGraph` is compiled by :mod:`sim.compiler.training`."""
    stages, reshapes = training.graph.stages, reshapes_in(training.graph).stages
    return _ends_with_matrices(training, stages[-1]) or any(
        number in reshapes or _has_matrices(training, number, stage) for number, stage in enumerate(stages)
    )


def _has_matrices(training, number, stage):
    """Returns True if a stage has sums or results that only steps of matrices have."""
    sources, fed = {one.source for one in stage.terms}, {feed.tensor for feed in training.graph.feeds}
    trained = (training.parameter(number, place) for place, term in enumerate(stage.terms) if term.groups > 1)
    products = stage.times or any(term.data for term in stage.terms)
    return bool(products or stage.has_bias_rows or stage.softmax or is_repeated(stage) or sources & fed or any(trained))


def _ends_with_matrices(training, last):
    """Returns True if the loss needs a step of matrices."""
    tensor = training.graph.tensors[last.output]
    if training.loss is not Loss.CROSS_ENTROPY or last.function != NONE or last.pool:
        return True
    return training.counted or (tensor.height, tensor.width) != (1, 1)
