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
    Sigmoid that belongs to the loss of an output is removed. Raises ModelError if an output is no vector."""
    made = graph.copied()
    order = np.arange(graph.output_size) if graph.output_order is None else np.asarray(graph.output_order)
    made.stages, terms, first = [logits_of_output(graph, loss, order, stage) for stage in graph.stages], [], 0
    for name in graph.outputs:
        tensor = graph.tensors[name]
        if tensor.shape[:2] != (1, 1):
            raise ModelError(f"{graph.name}: output {printable(name, 80)} is no vector; several outputs must be vectors to train")
        places = order[None, :] == np.arange(first, first + tensor.channels)[:, None]
        terms.append(Term(name, made.constant(f"place of {name}", places[None].astype(np.float32).astype(bfloat16)), fixed=True))
        made.tensors[name] = replace(tensor, wide=False)
        first += tensor.channels
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
        first += graph.tensors[name].channels
    return stage
