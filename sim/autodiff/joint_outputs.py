"""Several outputs as one: the form of a network whose outputs are trained together."""

from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16

from ..data.printable import printable
from ..functions.functions import Function
from ..ir.errors import ModelError
from ..ir.stage import Stage, Term

__all__ = ["logits_of_output", "with_joint_outputs"]


def with_joint_outputs(graph, loss):
    """Returns a network whose last stage has all outputs side by side, for a :class:`sim.ir.losses.JointLoss`. A Softmax or a
    Sigmoid that belongs to the loss of an output is removed. Raises ModelError if a cross-entropy is of several positions."""
    made = graph.copied()
    order = np.arange(graph.output_size) if graph.output_order is None else np.asarray(graph.output_order)
    made.stages, terms, first = [logits_of_output(graph, loss, order, stage) for stage in graph.stages], [], 0
    for name in graph.outputs:
        height, width, channels = graph.tensors[name].shape
        size = height * width * channels
        chosen = order[None, :] == np.arange(first, first + size)[:, None]
        heads = [one for one in loss.heads if chosen[:, one.place].any()]
        if height * width > 1 and any(one.loss.is_of_classes for one in heads):
            raise ModelError(
                f"{graph.name}: output {printable(name, 80)} is not a vector of logits; give it another loss, such as mse"
            )
        weights = made.constant(f"place of {name}", chosen.reshape(height * width, channels, -1).astype(bfloat16))
        terms.append(Term(name, weights, kernel=(height, width), fixed=True))
        made.tensors[name] = replace(made.tensors[name], wide=False)
        first += size
    made.beside, made.output_order = (), None
    made.output = made.add_stage(Stage("all outputs", tuple(terms)), graph.output_size, wide=True)
    return made


def logits_of_output(graph, loss, order, stage):
    """Returns a stage without the function that belongs to the loss of its output. `order` is the order of the results."""
    first = 0
    for name in graph.outputs:
        if stage.output == name:
            heads = [one for one in loss.heads if first in order[one.place]]
            if heads and heads[0].loss.is_of_classes:
                return replace(stage, softmax=False)
            if heads and heads[0].loss.is_of_logits and stage.function == Function("sigmoid"):
                return replace(stage, function=Function("none"))
        first += int(np.prod(graph.tensors[name].shape))
    return stage
