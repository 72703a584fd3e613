"""Stages and terms that several rules of a training step need."""

from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16

from ..ir.step import StepStage, StepTerm

__all__ = ["constant", "filled", "scaled", "identity", "row_sum", "add_like", "add_twin"]


def constant(step, name, values):
    """Returns the name of a constant. If the step has no constant `name`, it is added with these values."""
    while name in step.tensors:
        if name in step.constants and _are_equal(step.constants[name], values):
            return name
        name += "'"
    return step.add_constant(name, values)


def _are_equal(one, other):
    """Returns True if two arrays have equal bits: 0 differs from -0."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def filled(step, value, inputs=1, channels=1, positions=1):
    """Returns the name of a constant (positions, inputs, channels) of one number."""
    shape = "" if inputs == channels == positions == 1 else f" x {inputs} x {channels}" + f" x {positions}" * (positions > 1)
    values = np.full((positions, inputs, channels), value, np.float32).astype(bfloat16)
    return constant(step, f"constant {value:g}{shape}", values)


def scaled(step, source, factor):
    """Returns a term that multiplies a tensor by one number, or by one number per channel. Its weights are a diagonal tile."""
    return StepTerm(source, factor, groups=step.tensors[source].channels)


def identity(step, source):
    """Returns the term that adds a tensor."""
    return scaled(step, source, filled(step, 1))


def row_sum(step, gradient):
    """Returns the term of a gradient's sum over samples and positions."""
    return StepTerm(filled(step, 1), gradient, transposed=True)


def add_like(step, name, output, terms, wide=False, **fields):
    """Adds a stage whose sums have the shape of the tensor `name`. Returns the name of the output of the stage."""
    tensor = step.tensors[name]
    stage = StepStage(output, tuple(terms), (tensor.height, tensor.width), **fields)
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
