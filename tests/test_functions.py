"""The activation functions: their error over all inputs, what they must give by hand, and what does not fit the table."""

import math

import numpy as np
import pytest

from sim.functions import NONE, RELU, Function, apply, errors, lookup
from sim.golden import bfloat16, round_bfloat16

#: Functions whose every value is correctly rounded, and those with a larger error, but still of at most one unit.
ROUNDED = [Function("leaky_relu"), Function("leaky_relu", (0.2,)), Function("clip", (0, 6)), Function("clip", (-1, 1)),
           Function("clip", (-3,)), Function("clip", (0.001, 0.002)), Function("tanh"), Function("gelu"), Function("gelu_tanh"),
           Function("hard_sigmoid"), Function("hard_sigmoid", (1 / 6, 0.5)), Function("hard_swish"), Function("elu"),
           Function("elu", (2,)), Function("abs"), Function("erf")]
OTHERS = [Function("sigmoid"), Function("silu"), Function("mish"), Function("selu"), Function("softplus"), Function("softsign"),
          Function("exp")]
EVERY = np.arange(1 << 16)


@pytest.mark.parametrize("function", ROUNDED + OTHERS, ids=str)
def test_error(function):
    """Over all 65,536 inputs, against float64."""
    largest = errors(function, lookup(EVERY, function.table())).max()
    print(f"{function}: {largest:.4f} units in the last place")
    assert largest <= (0.5 if function in ROUNDED else 1)


@pytest.mark.parametrize("function", ROUNDED + OTHERS, ids=str)
def test_apply(function):
    """Of every bfloat16, and of sums that are rounded first; NaN gives NaN."""
    bits = np.where(EVERY & 0x7F80, EVERY, EVERY & 0x8000).astype(np.uint16)
    sums = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    found = apply(function, sums)
    assert (round_bfloat16(found).astype(np.float32).view(np.uint32) == found.view(np.uint32)).all()
    nan = np.isnan(sums)
    assert np.isnan(found[nan]).all() and not np.isnan(found[~nan]).any()
    finite = np.isfinite(sums) & (sums != 0)
    near = (sums.view(np.uint32) | np.uint32(1)).view(np.float32)
    assert (apply(function, near)[finite] == found[finite]).all()


def test_by_hand():
    """(function, x, value), from tables of these functions."""
    for function, x, value in (
            (Function("sigmoid"), 0, 0.5), (Function("sigmoid"), math.inf, 1), (Function("sigmoid"), -math.inf, 0),
            (Function("sigmoid"), 1, 0.7310585786), (Function("tanh"), 1, 0.761594156), (Function("tanh"), -math.inf, -1),
            (Function("tanh"), 2.0 ** -100, 2.0 ** -100), (Function("gelu"), 1, 0.8413447461), (Function("gelu"), -1, -0.1586552539),
            (Function("gelu"), math.inf, math.inf), (Function("gelu"), -math.inf, 0), (Function("gelu_tanh"), 1, 0.8411919906),
            (Function("leaky_relu"), -math.inf, -math.inf), (Function("leaky_relu"), -2, -0.02), (Function("leaky_relu"), 3, 3),
            (Function("clip", (0, 6)), 7, 6), (Function("clip", (0, 6)), -7, 0), (Function("clip", (0, 6)), 2.0 ** -126, 2.0 ** -126),
            (Function("elu"), -math.inf, -1), (Function("elu"), math.inf, math.inf), (Function("elu", (2,)), -0.0, 0),
            (Function("softplus"), 0, 0.6931471806), (Function("softplus"), 300, 300), (Function("exp"), 0, 1),
            (Function("erf"), 0.5, 0.5204998778), (Function("silu"), 1, 0.7310585786), (Function("mish"), 1, 0.8650983883),
            (Function("hard_swish"), 1, 0.6666666667), (Function("softsign"), 1, 0.5), (Function("selu"), 1, 1.0507009873554805)):
        found = float(apply(function, np.array([x], np.float32))[0])
        exact = float(bfloat16(value))
        assert found == exact or function in OTHERS and abs(found - exact) <= 2.0 ** -7 * abs(value), f"{function} of {x}: {found}"


def test_none_and_relu_are_of_binary32():
    sums = np.array([1.0 + 2.0 ** -20, -1, -0.0, np.inf], np.float32)
    assert apply(NONE, sums).tolist() == sums.tolist()
    assert apply(RELU, sums).tolist() == [sums[0], 0, 0, np.inf]


def test_refused():
    with pytest.raises(ValueError, match="must be one of none, relu.* not 'sin'"):
        Function("sin")
    with pytest.raises(ValueError, match="tanh takes 0 parameters, not 1"):
        Function("tanh", (1,))
    for parameters in ((2, 1), (math.nan,)):
        with pytest.raises(ValueError, match="clip cannot have the parameters"):
            Function("clip", parameters)
    with pytest.raises(ValueError, match=r"clip\(0.1, 1e\+10\) does not fit the function table: .* units in the last place"):
        Function("clip", (0.1, 1e10)).table()


def test_errors_are_noticed():
    """A table with one wrong entry, and functions that are next to others."""
    table = Function("tanh").table()
    wrong = table.entries.copy()
    wrong[5 << 7 | 9] += 1
    assert errors(Function("tanh"), lookup(EVERY, (*tuple(table)[:3], wrong))).max() > 0.5
    assert errors(Function("gelu"), lookup(EVERY, Function("gelu_tanh").table())).max() > 1
    assert errors(Function("abs"), np.where(EVERY == 0x7F80, 0x7F7F, EVERY & 0x7FFF)).max() == np.inf
