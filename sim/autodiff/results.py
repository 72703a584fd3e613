"""Gradients through the results of a stage, from its output to its sums: products, Softmax, functions by table, pooling, ReLU."""

from ..functions.derivatives import Derivative
from ..functions.functions import NONE, RELU, Function
from ..ir.stage import Select, Stage, Term
from .stages import add_like, add_twin, filled, identity, is_plain, scaled

__all__ = ["INVERSE_ROOT", "factor_term", "add_sums_gradient"]

INVERSE_ROOT = Function("inverse_root")


def factor_term(step, stage, terms):
    """Returns the term of the gradient of `stage.times`: the gradient of the output, times the result before the product.
    `terms` are the terms of the gradient of the output. If `stage.times` has one channel, its gradient is the sum over the
    channels."""
    name, channels = stage.output, step.tensors[stage.output].channels
    product = add_like(step, name, f"gradient of {name} * result", terms, times=_result(step, stage))
    if step.tensors[stage.times].channels == channels:
        return identity(step, product)
    return Term(product, filled(step, 1, channels, 1))


def add_sums_gradient(step, stage, terms):
    """Adds the gradient of a stage's sums. `terms` are the terms of the gradient of the stage's output. Returns the name of the
    added gradient."""
    steps = [{"times": stage.times}] if stage.times else []
    if stage.function == INVERSE_ROOT:  # the slope of r = x^(-1/2) is -r^3 / 2
        root = _result(step, stage)
        half = Stage(f"{stage.output}, minus half", (scaled(step, root, filled(step, -0.5)),), stage.result_size)
        steps += [{"times": root}, {"times": root}, {"times": step.add_stage(half, step.tensors[stage.output].channels)}]
    elif stage.function.is_table:
        steps.append({"times": _add_slope(step, stage)})
    if stage.pool:
        index = add_twin(step, stage, "index", index=True, times=None)
        steps.append({"select": Select(index, stage.pool.window, True)})
    elif stage.function == RELU:
        # A factor that is never negative keeps the sign: 0 has no gradient before the product either.
        shown = stage.output if stage.times is None or stage.times in step.masks else _result(step, stage)
        steps.append({"select": Select(shown)})
    if stage.softmax:
        return _add_softmax(step, stage, terms, steps)
    return _add_chain(step, stage, terms, steps or [{}])


def _add_slope(step, stage):
    """Adds the derivative of a function by table, at the rounded sums. Two tables of many binades do not fit the core together,
    so the derivative is looked up when its gradient is computed."""
    sums = add_twin(step, stage, "rounded sums", function=NONE, times=None)
    slope = Stage(f"{stage.output}, slope", size=stage.result_size, start=sums, function=Derivative(stage.function))
    return step.add_stage(slope, step.tensors[stage.output].channels)


def _result(step, stage):
    return stage.output if stage.times is None else add_twin(step, stage, "before times", times=None)


def _add_chain(step, stage, terms, steps):
    """Adds one stage per operation. Each stage after the first one reads the result of the preceding stage."""
    start = None
    for place, fields in enumerate(steps):
        last = place == len(steps) - 1
        name = f"gradient of {stage.output}" + ("" if last else f", {place + 1} of {len(steps)}")
        start, terms = add_like(step, stage.output, name, terms, start=start, **fields), ()
    return start


def _only_reader(step, name, terms):
    """Returns the output of the only stage that reads a tensor, if it is the rounded product of the tensor and another one.
    `terms` are the terms of the tensor's gradient. Returns None for other readers."""
    for stage in step.stages:
        if name in stage.operands:
            break
    is_product = is_plain(stage) and not stage.start and len(stage.terms) == 1 and len(terms) == 1
    output = step.tensors[stage.output]
    is_product = is_product and not (output.wide or stage.terms[0].transposed or stage.terms[0].copies)
    is_same = is_product and terms[0].source == step.sums_gradients.get(stage.output) and stage.terms[0].source == name
    return stage.output if is_same and output.shape[:2] == step.tensors[name].shape[:2] else None


def _add_softmax(step, stage, terms, steps):
    """Adds `(G - sum of G P over the channels) P` for the probabilities P and their gradient G."""
    name, result = stage.output, _result(step, stage)
    start = None
    if steps:
        start, terms = add_like(step, name, f"gradient of {result}", terms, **steps[0]), ()
    channels = step.tensors[name].channels
    reader = None if start else _only_reader(step, name, terms)
    if reader:
        # The sum of G P is the sum of g y for the product y = P V: G is g V^T. It has fewer channels, and needs no sums.
        product = add_like(step, reader, f"gradient of {name} * result", (), start=terms[0].source, times=reader)
    else:
        product = add_like(step, name, f"gradient of {name} * result", terms, start=start, times=result)
    less = Term(product, filled(step, -1, step.tensors[product].channels, channels))
    return add_like(step, name, f"gradient of {name}", (*terms, less), start=start, times=result)
