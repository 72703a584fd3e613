"""Random models: inputs, a chain of random blocks, and outputs."""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from amaranth_tpu.sim.frontend.apply import supported_operators
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16

from . import attention, convolutions, dense, functions, joins, lookups, norms, pools, recurrent, shapes, state
from .drawing import Drawing, Value

__all__ = ["RandomModel", "random_model", "KINDS", "OPSETS"]

#: The files of the blocks. Importing them registers the blocks.
KINDS = (attention, convolutions, dense, functions, joins, lookups, norms, pools, recurrent, shapes, state)

#: Opsets of the models. Some operators exist from a later one on.
OPSETS = (13, 17, 18, 20, 21, 23, 24)


@dataclass(frozen=True)
class RandomModel:
    """A random model with samples."""

    model: onnx.ModelProto
    feeds: dict  # samples {input: array}, exact in bfloat16

    @property
    def operators(self):
        """Returns the names of the operators, sorted."""
        return sorted({node.op_type for node in self.model.graph.node})


def _first_value(g):
    """Returns the value that the first block reads: an input, or rows that integers of an input select."""
    if g.chance(0.1):
        return lookups.looked_up(g)
    shape = g.choose(
        (g.width(),),
        (g.integer(2, 6), g.width()),
        (g.width(), g.integer(2, 9)),
        (g.integer(1, 6), g.integer(2, 7), g.integer(2, 7)),
    )
    return Value(g.input(*shape), shape)


def _finish(g, x):
    """Chooses the outputs: the last value, mostly, or a function of it that the host computes; and values on the way."""
    if len(x.shape) == 1 and x.shape[0] > 1 and g.chance(0.25):
        x = Value(g.node(g.choose("Softmax", "LogSoftmax", "ArgMax"), x, axis=1), x.shape)
    if not {node.op_type for node in g.nodes}.difference(supported_operators()["shapes and order"]):
        x = g.grow(x, "matrix_product")  # a model needs a layer
    others = [one.name for one in g.values[1:] if one.name != x.name]
    if others and g.chance(0.3):
        g.outputs.append(g.choose(*others))
    g.outputs = list(dict.fromkeys([x.name, *g.outputs]))


def random_model(seed, most=4):
    """Returns the :class:`RandomModel` of a seed, with at most `most` blocks after the first layer."""
    rng = np.random.default_rng(seed)
    batch = None if rng.random() < 0.7 else int(rng.choice([1, 1, 2, 3]))
    g = Drawing(rng, int(rng.choice(OPSETS)), batch)
    x = _first_value(g)
    g.values.append(x)
    for _ in range(g.integer(1, most)):
        x = g.grow(x)
        if np.prod(x.shape) > 1500:
            x = g.grow(x, "reduction", "global_pool")
        if x not in g.values:
            g.values.append(x)
    _finish(g, x)
    model = g.model()
    return RandomModel(model, _feeds(g, model, g.integer(1, 5) if batch is None else batch))


def _feeds(g, model, count):
    feeds, scale = {}, g.choose(0.1, 1.0, 1.0, 3.0)
    for one in model.graph.input:
        kind = one.type.tensor_type
        shape = (count, *(size.dim_value for size in kind.shape.dim[1:]))
        if kind.elem_type == TensorProto.FLOAT:
            feeds[one.name] = round_bfloat16(g.normal(*shape, spread=scale)).astype(np.float32)
        else:
            numbers = g.rng.integers(0, g.rows[one.name], shape)
            feeds[one.name] = numbers.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return feeds
