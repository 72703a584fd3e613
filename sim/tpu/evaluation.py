"""Loss and accuracy of a run on labelled samples."""

import numpy as np

from ..ir.errors import ModelError
from ..trainer.samples import Score
from .training_data import class_numbers

__all__ = ["evaluation"]


def evaluation(run, y):
    """Returns `{"loss": cross-entropy, "accuracy": fraction}` of an :class:`.InferenceRun` for labels `y`, as described in
    :meth:`sim.tpu.model.Model.evaluate`."""
    network, origin = run.network, run.network.origin
    if origin.is_split:
        raise ModelError(f"{network.name}: has several outputs; call predict, and compute the loss of each output")
    if run.result is None:
        values = np.asarray(run.outputs[origin.output.name], np.float64)
        softmax = origin.output.last == "softmax" or network.stages[-1].softmax
    else:
        values, softmax = np.asarray(run.result.logits, np.float64), network.stages[-1].softmax
    values = values.reshape(len(run.rows), -1)
    if softmax:
        values = np.log(np.maximum(values, np.finfo(np.float32).tiny))
    score = Score.of(values, class_numbers(y, *values.shape))
    return {"loss": score.loss, "accuracy": score.accuracy}
