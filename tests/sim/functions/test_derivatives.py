"""Tests of the derivatives of activation functions against finite differences, and of the derivatives' tables for all bfloat16
inputs."""

import math

import numpy as np
import pytest

from activation_functions import TABLES
from amaranth_tpu.sim.functions.derivatives import DERIVATIVES, HELD, Derivative
from amaranth_tpu.sim.functions.functions import DEFINITIONS, Function
from amaranth_tpu.sim.golden.function_tables import errors, table_of
from amaranth_tpu.sim.golden.step_graph import slope_table
from amaranth_tpu.sim.golden.table_lookup import lookup
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.stage import Stage
from suites import all_but

#: All bfloat16 values as binary32 bits, without subnormals, which the cells flush.
EVERY = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
EVERY &= np.where(EVERY & 0x7F800000, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))

FUNCTIONS = [function for function in TABLES if function.name in DERIVATIVES]
FUNCTIONS += [Function("celu", (1.5,)), Function("elu", (1.7,)), Function("hard_sigmoid", (-3, 30))]
FEW = [*map(Function, ("tanh", "gelu", "hard_swish", "leaky_relu")), Function("clip", (-1, 1))]

#: Derivatives whose tables hold a neighbour of the correctly rounded value at some bfloat16.
NEXT = ("silu", "mish", "elu", "selu", "celu", "softplus", "softsign", "exp")

#: Smallest number that the table of a derivative distinguishes from 0: e^-32.
LEAST = 2.0**-46


def test_all_but_powers():
    assert set(DEFINITIONS) - set(DERIVATIVES) == {"none", "relu", "root", "reciprocal", "inverse_root"}


@pytest.mark.parametrize("function", all_but(FEW, FUNCTIONS), ids=str)
def test_finite_differences(function):
    """Derivatives match finite differences of the function, at points a quarter of the way between neighbouring bfloat16,
    because kinks are at or near bfloat16 numbers."""
    with np.errstate(all="ignore"):
        x = (EVERY + np.uint32(0x4000)).view(np.float32).astype(float)
        x = x[np.isfinite(x) & (np.abs(x) < 300) & (np.abs(x) > 2.0**-20)]
        step = np.abs(x) * 2.0**-12
        near, far = ((function.exact(x + size) - function.exact(x - size)) / (2 * size) for size in (step / 2, step))
    exact, found = Derivative(function).exact(x), (4 * near - far) / 3
    noise = 2.0**-50 * np.abs(function.exact(x)) / step
    good = np.isfinite(found)
    good &= np.abs(x) < HELD.get(function.name, np.inf)
    if function == Function("clip", (0.001, 0.002)):  # kinks that are not bfloat16, up to half a unit in the last place away
        good &= np.abs(x / 0.001 - 1) > 2.0**-8
        good &= np.abs(x / 0.002 - 1) > 2.0**-8
    assert good.sum() > 6000
    assert (np.abs(found - exact) <= 1e-5 * np.abs(exact) + LEAST + 8 * noise)[good].all()


@pytest.mark.parametrize("function", all_but(FEW, FUNCTIONS), ids=str)
def test_tables_of_derivatives(function):
    """For all 65,536 bfloat16 inputs, the derivative's table holds the correctly rounded float64 value, or for functions in
    `NEXT` its neighbour."""
    derivative = Derivative(function)
    largest = errors(derivative, EVERY, lookup(EVERY, table_of(derivative))).max()
    print(f"{derivative}: {largest:.4f} units in the last place")
    assert largest <= (1 if function.name in NEXT else 0.5)


def test_hand_computed_derivatives():
    """Derivatives have hand-computed values. At range ends and kinks, a derivative has its value on the side away from 0."""
    for name, parameters, x, value in (
        ("tanh", (), 0, 1),
        ("tanh", (), math.inf, 0),
        ("tanh", (), 1, 0.4199743416),
        ("sigmoid", (), 0, 0.25),
        ("sigmoid", (), -2, 0.1049935854),
        ("gelu", (), 0, 0.5),
        ("gelu", (), math.inf, 1),
        ("gelu", (), -math.inf, 0),
        ("gelu", (), 1, 1.0833154706),
        ("gelu_tanh", (), 1, 1.0829640839),
        ("silu", (), -1, 0.0723294881),
        ("mish", (), 0, 0.6),
        ("softplus", (), 1, 0.7310585786),
        ("softsign", (), -1, 0.25),
        ("erf", (), 0, 1.1283791671),
        ("exp", (), 1, 2.7182818285),
        ("selu", (), 5, 1.0507010221),
        ("leaky_relu", (), -7, 0.01),
        ("leaky_relu", (0.2,), -0.0, 0.2),
        ("leaky_relu", (0.2,), 0.0, 0.2),
        ("abs", (), 0.0, 0),
        ("clip", (0, 6), 0.0, 1),
        ("clip", (0, 6), 6, 0),
        ("clip", (0, 6), 5.99, 1),
        ("clip", (0, 6), -0.0, 0),
        ("clip", (-1, math.inf), -1, 0),
        ("clip", (-1, math.inf), math.inf, 1),
        ("clip", (2, 5), 2, 1),
        ("hard_sigmoid", (), 2.5, 0),
        ("hard_sigmoid", (), -2.4, 0.2),
        ("hard_sigmoid", (0, 0.3), 1, 0),
        ("hard_swish", (), 3, 1),
        ("hard_swish", (), -3, 0),
        ("hard_swish", (), 1.5, 1),
        ("celu", (2,), -2, 0.3678794412),
        ("elu", (2,), -1, 0.7357588823),
        ("abs", (), -3, -1),
    ):
        found = float(Derivative(Function(name, parameters)).exact(np.float64(x)))
        assert found == pytest.approx(value, rel=1e-9, abs=1e-12), f"{name}{parameters} at {x}: {found}"


def test_a_kink_between_two_bfloat16():
    """A kink at -0.3, between two bfloat16, moves to the nearest one, -0.30078125, so that the table is exact."""
    derivative = Derivative(Function("clip", (-0.3, 0.3)))
    found = derivative.exact(np.array([-0.30078125, -0.299, 0.299, 0.30078125]))
    assert found.tolist() == [0, 1, 1, 0]
    assert errors(derivative, EVERY, lookup(EVERY, table_of(derivative))).max() == 0


def test_derivatives_have_tables_of_their_own():
    function = Function("tanh")
    assert table_of(function) is not table_of(Derivative(function))
    assert table_of(Derivative(function)) is table_of(Derivative(Function("tanh")))
    assert Derivative(function).key != function.key


def test_a_derivative_that_no_table_holds():
    """A derivative with kinks at 5e-5 and -5 is refused, because a table covers only 16 binades, although the function itself has
    a table."""
    function = Function("hard_sigmoid", (0.2, 0.99999))
    table_of(function)
    with pytest.raises(ModelError, match=r"^operator Gemm, node 'g': the derivative of [^\n]* replace the function by another$"):
        slope_table(Stage("s", function=function, title="operator Gemm, node 'g'"))
