"""The activation functions that tests go through."""

from amaranth_tpu.sim.golden.functions import Function

#: Functions whose every value is correctly rounded, and those with a larger error, but still of at most one unit.
ROUNDED = [Function("leaky_relu"), Function("leaky_relu", (0.2,)), Function("clip", (0, 6)), Function("clip", (-1, 1)),
           Function("clip", (-3,)), Function("clip", (0.001, 0.002)), Function("tanh"), Function("gelu"), Function("gelu_tanh"),
           Function("hard_sigmoid"), Function("hard_sigmoid", (1 / 6, 0.5)), Function("hard_swish"), Function("elu"),
           Function("elu", (2,)), Function("abs"), Function("erf")]
OTHERS = [Function("sigmoid"), Function("silu"), Function("mish"), Function("selu"), Function("softplus"), Function("softsign"),
          Function("exp")]
