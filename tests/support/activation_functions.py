"""The activation functions that tests iterate over, which are all functions that the core computes from a table, some with
several parameters."""

from dataclasses import replace

import numpy as np

from amaranth_tpu.sim.functions.functions import DEFINITIONS, Function
from amaranth_tpu.sim.golden.function_tables import table_of

TABLES = [
    *(Function(one.name, one.example) for one in DEFINITIONS.values() if not one.built_in),
    Function("leaky_relu", (0.2,)),
    Function("clip", (-1, 1)),
    Function("clip", (-3,)),
    Function("clip", (0.001, 0.002)),
    Function("hard_sigmoid", (1 / 6, 0.5)),
    Function("elu", (2,)),
]


def gelu_beside_root():
    """Returns the tables of GELU in 14 binades and of the inverse root in two binades, in one memory."""
    gelu, root = table_of(Function("gelu")), table_of(Function("inverse_root"))
    words = np.zeros((2, 16, 256), np.uint16)
    words[:, :14] = gelu.words.reshape(2, 16, 256)[:, 2:]
    words[:, 14:] = root.words.reshape(2, 16, 256)[:, :2]
    return replace(gelu, first=gelu.first + 2, spare=2, words=words.ravel()), replace(root, base=14, words=words.ravel())
