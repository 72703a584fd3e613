"""Checks that refuse networks which the golden model trains, but for which no program of a step can be compiled."""

from ..compiler.program import CompileError

__all__ = ["check_compilable"]


def check_compilable(training):
    """Checks that the step of a :class:`sim.ir.training.TrainingGraph` can be compiled. If not, raises a CompileError whose
    message is one line that names the operator."""
    for number, stage in enumerate(training.graph.stages):
        cause = None
        if stage.times or any(term.data for term in stage.terms):
            cause = "a step with products of two results"
        elif stage.has_bias_rows:
            cause = "a step with biases that differ from position to position"
        elif stage.softmax:
            cause = "a step with Softmax before the end of the network"
        elif any(term.groups > 1 and training.parameter(number, place) for place, term in enumerate(stage.terms)):
            cause = "a step with trained groups"
        if cause:
            raise CompileError(
                f"{stage.title or f'stage {stage.name!r}'}: {cause} can't be compiled yet; train it on the golden model alone, "
                "without --rtl-steps"
            )
