"""Stages and terms that several rules of a training step need."""

from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16

from ..functions.functions import NONE
from ..ir.stage import Stage, Term

__all__ = ["filled", "scaled", "identity", "row_sum", "add_like", "add_twin", "is_plain"]


def is_plain(stage):
    """Returns True if the output of a stage is its sums."""
    return stage.function == NONE and not (stage.pool or stage.softmax or stage.times or stage.norm)


def filled(step, value, inputs=1, channels=1, positions=1):
    """Returns the name of a constant (positions, inputs, channels) of one number."""
    shape = "" if inputs == channels == positions == 1 else f" x {inputs} x {channels}" + f" x {positions}" * (positions > 1)
    values = np.full((positions, inputs, channels), value, np.float32).astype(bfloat16)
    return step.constant(f"constant {value:g}{shape}", values)


def scaled(step, source, factor):
    """Returns a term that multiplies a tensor by one number, or by one number per channel. Its weights are a diagonal tile."""
    return Term(source, factor, groups=step.tensors[source].channels)


def identity(step, source):
    """Returns the term that adds a tensor."""
    return scaled(step, source, filled(step, 1))


def row_sum(step, gradient):
    """Returns the term of a gradient's sum over samples and positions."""
    return Term(filled(step, 1), gradient, transposed=True)


def add_like(step, name, output, terms, wide=False, **fields):
    """Adds a stage whose sums have the shape of the tensor `name`. Returns the name of the output of the stage."""
    tensor = step.tensors[name]
    stage = Stage(output, tuple(terms), (tensor.height, tensor.width), **fields)
    return step.add_stage(stage, tensor.channels, tensor.samples, wide)


def add_twin(step, stage, suffix, **changes):
    """Adds a second result of a stage's sums directly after the stage, unless this result exists. Returns the name of the second
    result."""
    made, tensor = replace(stage, output=f"{stage.output}, {suffix}", **changes), step.tensors[stage.output]
    place = step.stages.index(stage) + 1
    if made in step.stages:
        return made.output
    name = step.add_stage(made, tensor.channels, tensor.samples)
    step.stages.insert(place, step.stages.pop())
    return name
