"""The activation functions that tests iterate over, which are all functions that the core computes from a table, some with
several parameters."""

from amaranth_tpu.sim.functions.functions import DEFINITIONS, Function

TABLES = [
    *(Function(one.name, one.example) for one in DEFINITIONS.values() if not one.built_in),
    Function("leaky_relu", (0.2,)),
    Function("clip", (-1, 1)),
    Function("clip", (-3,)),
    Function("clip", (0.001, 0.002)),
    Function("hard_sigmoid", (1 / 6, 0.5)),
    Function("elu", (2,)),
]
