"""Products of rounded results, apart from the functions that compute the results."""

from dataclasses import replace

from ...functions.functions import NONE
from ...ir.step import StepStage
from .forms import NotMatrices

__all__ = ["with_products_apart"]


def with_products_apart(step):
    """Divides each stage with a function and a product, such as a ReLU with dropout, into two stages, because MULTIPLY applies no
    function. Returns a :class:`sim.ir.step.StepGraph`. Raises NotMatrices if a stage selects as well."""
    tensors, stages = dict(step.tensors), []
    for stage in step.stages:
        if stage.select and (stage.times or stage.pool or stage.function != NONE):
            raise NotMatrices(f"{stage.output}: a selection with a function, pooling or a product can't be compiled")
        if stage.times and (stage.function != NONE or stage.softmax or stage.pool):
            name = f"{stage.output}, before the product"
            tensors[name] = tensors[stage.output]
            stages.append(replace(stage, output=name, times=None))
            stage = StepStage(stage.output, start=name, size=stage.result_size, times=stage.times)
        stages.append(stage)
    return replace(step, tensors=tensors, stages=stages)
