"""Tests that a scalar expression is recognised as a function only if both have the same values, even on adversarial inputs.
Other expressions must be computed operator by operator, or refused by name."""

import math

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.frontend.operators import expressions as onnx_expressions
from amaranth_tpu.sim.functions.formulas import VARIABLE, constant, formula
from amaranth_tpu.sim.functions.functions import NONE, Function
from amaranth_tpu.sim.functions.proof import proves
from amaranth_tpu.sim.functions.ranges import evaluate
from amaranth_tpu.sim.fusion.composed import composed
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from expressions import FORMS, check, draw, formula_of, show
from onnx_models import Builder, check_graph, close, integers, reference, refused
from seeds import seed
from suites import all_but, slow

RELU = ("Relu", "x")


def number(value):
    return np.array(value, np.float32)


@pytest.mark.parametrize("name", all_but(["leaky_relu", "clip", "hard_swish", "gelu", "mish", "softplus"], FORMS))
def test_written_out(rng, tmp_path, name):
    for e in FORMS[name]:
        lossy = (name, e[0]) in (("clip", "Sub"), ("hard_sigmoid", "Min"))  # binary32 loses too many bits in this form
        found = check(e, rng, tmp_path, every=32, strict=not lossy)
        assert found is not None
        if not lossy:
            assert found[0].startswith(name) and len(found) == 1


def _bump(width, low=127.1, inside=5.0):
    return "Where", ("Greater", "x", low), ("Where", ("Less", "x", low + width), inside, RELU), RELU


#: name: (expression, functions of the stages, or None if it is refused)
DEFECTS = {
    "a threshold": (("Where", ("Greater", "x", 127.0), 1.0, 0.0), None),
    "cut off": (("Where", ("Greater", "x", 127.0), 0.0, "x"), None),
    "cut": (("Where", ("Greater", "x", 200.0), 200.0, "x"), ["clip(-inf, 200)"]),
    "a threshold at 0": (("Where", ("Greater", "x", 0.0), 1.0, 0.0), None),
    "two bends": (("Sub", RELU, ("Relu", ("Sub", "x", 100.0))), ["none", "relu", "relu", "none"]),
    "a bend": (("Sub", "x", ("Mul", 0.5, ("Relu", ("Sub", "x", 30.0)))), ["none", "relu", "none"]),
    "a bend by Max": (("Max", "x", ("Sub", ("Mul", 2.0, "x"), 200.0)), ["none"] * 5),
    "thirds": (("Add", ("Div", "x", 3.0), ("Div", ("Mul", "x", 2.0), 3.0)), ["none"]),
    "next to itself": (("Add", "x", ("Mul", 1e-6, "x")), ["none"]),
    "a steep half below": (("Where", ("Less", "x", 0.0), "x", ("Mul", 0.25, "x")), ["leaky_relu(4)"]),
    "two slopes": (("Where", ("Greater", "x", 0.0), ("Mul", 3.0, "x"), ("Mul", -1.5, "x")), ["leaky_relu(-0.5)"]),
    "falling": (("Where", ("Less", "x", 0.0), ("Neg", "x"), ("Mul", -0.5, "x")), ["leaky_relu(0.5)"]),
    "falling on both sides": (("Where", ("Less", "x", 0.0), ("Mul", 0.5, "x"), ("Neg", "x")), ["leaky_relu(-0.5)", "none"]),
    "half of nothing": (("Where", ("Less", "x", 0.0), ("Mul", -0.5, "x"), ("Mul", 0.0, "x")), ["relu"]),
    "slopes that meet at 1e-30": (("Where", ("Less", "x", 1e-30), "x", ("Mul", 0.25, "x")), None),
    "slopes beside each other": (("Where", ("Less", "x", 0.0), "x", ("Add", ("Mul", 0.25, "x"), 1e-30)), None),
    "slopes and a bump": (("Where", ("Less", "x", 0.0), "x", ("Mul", 0.25, _bump(2.0**-15))), None),
    "slopes that overflow": (("Where", ("Less", "x", 0.0), ("Mul", 1e30, "x"), ("Mul", 1e-30, "x")), None),
    "mask": (("Mul", "x", ("Where", ("GreaterOrEqual", "x", 0.0), 1.0, 0.0)), ["relu"]),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defects(rng, tmp_path, name):
    e, functions = DEFECTS[name]
    assert check(e, rng, tmp_path, every=32) == functions


#: Expressions that differ from a function at a few numbers, or by a little everywhere.
NEAR = {
    "bump between bfloat16": ("relu", _bump(0.1)),
    "bump of a few binary32": ("relu", _bump(2.0**-15)),
    "bump at 3e20": ("relu", _bump(1e17, 3.0001e20, 1e18)),
    "bump at 1e-30": ("relu", _bump(1e-33, 1.0004e-30, 2e-30)),
    "smooth bump": ("relu", ("Add", RELU, ("Exp", ("Mul", -1e6, ("Pow", ("Sub", "x", 127.15), 2.0))))),
    "one number": ("relu", ("Where", ("GreaterOrEqual", "x", 127.0), ("Where", ("LessOrEqual", "x", 127.0), 5.0, RELU), RELU)),
    "plateau of 1e-30": ("relu", ("Max", "x", 1e-30)),
    "plateau of 3e20": ("relu", ("Min", RELU, 3e20)),
    "bend at 1e-30": ("relu", ("Add", RELU, ("Relu", ("Sub", "x", 1e-30)))),
    "bend at 1e30": ("none", ("Sub", "x", ("Relu", ("Sub", "x", 1e30)))),
    "jump below -1e30": ("silu", ("Where", ("Less", "x", -1e30), -1.0, ("Mul", "x", ("Sigmoid", "x")))),
    "quick gelu": ("gelu", ("Mul", "x", ("Sigmoid", ("Mul", 1.702, "x")))),
    "gelu of another kind": ("gelu", FORMS["gelu_tanh"][0]),
    "tanh of another slope": ("tanh", ("Sub", ("Div", 2.0, ("Add", 1.0, ("Exp", ("Mul", -2.01, "x")))), 1.0)),
    "slope of 1.002": ("relu", ("Mul", 1.002, RELU)),
    "rounding by a large number": ("none", ("Sub", ("Add", "x", 12582912.0), 12582912.0)),
    "less than what is lost": (
        Function("clip", (1e-9, 1e-9)),
        ("Where", ("Greater", "x", -3.0), 1e-9, ("Sub", ("Exp", ("Tanh", "x")), ("Exp", ("Tanh", "x")))),
    ),
    "bump beyond what saturates": (
        "gelu",
        ("Where", ("Greater", "x", -3.76e33), ("Where", ("Less", "x", -3.759e33), 35.0, FORMS["gelu"][0]), FORMS["gelu"][0]),
    ),
    "bump where a square does not overflow": (
        "tanh",
        ("Add", ("Tanh", "x"), ("Exp", ("Mul", -7.8e-44, ("Pow", ("Sub", "x", 7.90358474e24), 2.0)))),
    ),
    "logarithm that overflows": ("none", ("Log", ("Exp", "x"))),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_functions_are_not_proven(name):
    """An expression that is near a function is not proven equal to it, even if the probes that propose a function are left
    out."""
    function, e = NEAR[name]
    function = Function(function) if isinstance(function, str) else function
    assert not proves(formula_of(e), function) and proves(function.formula(VARIABLE), function)


def test_tolerance_of_constants():
    """GELU is recognised with its constant off by 1e-7, but not by 1 %."""
    for change, right in ((1, True), (1 + 1e-7, True), (1.01, False)):
        e = ("Mul", ("Mul", "x", 0.5), ("Add", 1.0, ("Erf", ("Mul", "x", 2**-0.5 * change))))
        assert proves(formula_of(e), Function("gelu")) == right


def _one(operation, *arguments, **options):
    return formula(operation, VARIABLE, *arguments, **options)


SQUARE, HALF = _one("power", parameter=2), constant(0.5)
#: Each operation, including decreasing ones, and its numpy equivalent.
OPERATIONS = [
    (_one("add", SQUARE), lambda x: x + x * x),
    (_one("multiply", SQUARE), lambda x: x**3),
    (SQUARE, np.square),
    (_one("multiply", VARIABLE), np.square),
    (_one("power", parameter=3), lambda x: x**3),
    (_one("negative"), np.negative),
    (_one("divide", formula("add", SQUARE, HALF)), lambda x: x / (x * x + 0.5)),
    (formula("divide", HALF, VARIABLE), lambda x: 0.5 / x),
    (_one("absolute"), np.abs),
    (_one("largest", SQUARE), lambda x: np.maximum(x, x * x)),
    (_one("least", HALF), lambda x: np.minimum(x, 0.5)),
    (_one("exp"), np.exp),
    (_one("expm1"), np.expm1),
    (_one("log"), np.log),
    (_one("sqrt"), np.sqrt),
    (formula("log", formula("add", SQUARE, HALF)), lambda x: np.log(x * x + 0.5)),
    (_one("erf"), np.vectorize(math.erf, otypes=[float])),
    (_one("normal"), lambda x: np.vectorize(math.erfc)(-x / 2**0.5) / 2),
    (_one("tanh"), np.tanh),
    (_one("sigmoid"), lambda x: 1 / (1 + np.exp(-x))),
    (_one("softplus"), lambda x: np.logaddexp(0, x)),
    (_one("softsign"), lambda x: x / (1 + np.abs(x))),
    (formula("where", _one("greater", HALF), SQUARE, VARIABLE), lambda x: np.where(x > 0.5, x * x, x)),
    (formula("where", formula("not", _one("at_least", HALF)), HALF, SQUARE), lambda x: np.where(x >= 0.5, x * x, 0.5)),
]


@pytest.mark.parametrize("one, exact", OPERATIONS, ids=lambda one: getattr(one, "operation", ""))
def test_interval_bounds(rng, one, exact):
    """Interval bounds contain the function's values at random inner points, and slope bounds contain the slopes between them.
    Bounds of a single point are narrow."""
    low = rng.choice([-1, 1], 3000) * 10 ** rng.uniform(-3, 1.5, 3000)
    high = low + np.abs(low) * 2.0 ** rng.uniform(-10, 2, 3000)
    found = evaluate(one, low, high, slopes=True)
    inner = np.sort(low + (high - low) * rng.uniform(0, 1, (9, 3000)), axis=0)
    with np.errstate(all="ignore"):
        value = exact(inner)
        assert (np.isnan(value) | (value >= found.low) & (value <= found.high)).all()
        slope = np.diff(value, axis=0) / np.diff(inner, axis=0)
        lost = 1e-14 * np.fmax.reduce(np.abs(value)) / np.diff(inner, axis=0) + 1e-12 * np.abs(slope)
        assert (np.isnan(slope) | (slope >= found.slope[0] - lost) & (slope <= found.slope[1] + lost)).all()
    point = evaluate(one, inner[0], inner[0])
    there = ~np.isnan(value[0])
    assert (point.high - point.low <= 2.0**-18 * (np.abs(value[0]) + np.abs(inner[0])))[there].all()
    assert (point.high > point.low)[there].any() == (one.operation not in ("negative", "absolute", "least"))


@pytest.mark.parametrize("trial", [*range(4), *slow(*range(4, 12))])
def test_random(tmp_path, trial):
    rng = np.random.default_rng([seed(), trial])
    e, name = draw(rng)
    found = check(e, rng, tmp_path, every=64)
    assert name is None or found is not None, show(e)


# Expressions that are not a function of one number


def _softmax(b, x, *, largest=True, log=False, axis=1, most=1, keep=1, more=None, scale=None, by_logsumexp=False):
    top = b.node("ReduceMax", [x, np.array([most])], keepdims=keep)
    shifted = b.node("Sub", [x, top]) if largest else x
    if by_logsumexp:
        return b.node("Sub", [shifted, b.node("ReduceLogSumExp", [shifted, np.array([axis])])])
    exponential = b.node("Exp", [b.node("Mul", [shifted, number(scale)]) if scale else shifted])
    total = b.node("ReduceSum", [exponential, np.array([axis])])
    if more:
        total = b.node("Add", [total, number(more)])
    return b.node("Sub", [shifted, b.node("Log", [total])]) if log else b.node("Div", [exponential, total])


@pytest.mark.parametrize(
    "case, right",
    [
        ({}, True),
        ({"log": True}, True),
        ({"more": 1e-6}, True),
        ({"by_logsumexp": True}, True),
        ({"by_logsumexp": True, "largest": False}, True),
        ({"largest": False, "log": True}, False),
    ],
    ids=str,
)
def test_softmax(rng, tmp_path, case, right):
    b = Builder(["n", 7], opset=18)
    _softmax(b, b("Gemm", np.eye(7, 5, dtype=np.float32)), **case)
    path = b.save(tmp_path)
    if not right:
        refused(path, "not part of a function")
        return
    network = load_network(path)
    assert len(network.stages) == 1 and network.softmax
    if case in ({}, {"more": 1e-6}):
        x = np.concatenate([*(rng.normal(size=(40, 7)) * scale for scale in (1, 30, 1e4)), np.full((1, 7), 88.5)])
        x = x.astype(np.float32).astype(bfloat16).astype(np.float32)
        got, want = run_network(load_network(path, keep_softmax=True), x), reference(path, x)
        assert np.abs(got - want).max() < 0.005


def test_expressions_near_softmax(rng, tmp_path):
    """Softmax is recognised only if a maximum is subtracted, over the same elements as the sum. Otherwise the expression is
    computed as written."""
    for case in (
        {"axis": 2, "most": 1},
        {"axis": 1, "most": 2},
        {"axis": 2, "most": 2, "keep": 0},
        {"axis": 1, "most": 1, "largest": False},
        {"more": 0.1},
        {"scale": 0.5},
        {"scale": 1.001},
    ):
        b = Builder([1 if "keep" in case else "n", 4, 4], opset=18)
        _softmax(b, b("MatMul", np.eye(4, dtype=np.float32)), **case)
        model, x = tpu.load(b.save(tmp_path)), rng.normal(size=(2 - ("keep" in case), 4, 4)).astype(np.float32)
        assert not any(stage.softmax for stage in model.network.stages)
        assert model.compare(x).error is None
        close(model.predict(x), reference(tmp_path / "model.onnx", x))


def test_reductions_are_no_part_of_a_function(rng, tmp_path):
    """A maximum over all channels depends on several numbers, so expressions with it are computed operator by operator."""
    for operator in ("Min", "Max", "Add"):
        b = Builder(["n", 5], opset=18)
        x = b("Gemm", np.eye(5, dtype=np.float32))
        b.node(operator, [b.node("Relu", [x]), b.node("ReduceMax", [x, np.array([1])])])
        path, x = b.save(tmp_path), integers(rng, 3, 5)
        np.testing.assert_array_equal(tpu.load(path).predict(x), reference(path, x))


def test_error_names_the_first_operator(tmp_path):
    """An expression that is not a function is refused. The error names its first such operator, and the position of a jump if
    there is one."""
    b = Builder(["n", 5], opset=18)
    b("Gemm", np.eye(5, dtype=np.float32))
    b("Log", name="odd")
    b("Relu")
    b("Neg")
    refused(b.save(tmp_path), "operator Log, node 'odd'", "not part of a function")
    b = Builder(["n", 5], opset=18)
    x = b("Gemm", np.eye(5, dtype=np.float32))
    b.node("Where", [b.node("Greater", [x, number(127.1)]), x, number(0)], name="odd")
    b("Relu")
    refused(b.save(tmp_path), "operator Where, node 'odd'", "jumps at 127.1")


def test_constants_that_differ(rng, tmp_path):
    """PRelu-like slopes that differ between channels are not taken for one function, even if most of them agree."""
    b = Builder(["n", 4], opset=18)
    x = b("Gemm", np.eye(4, dtype=np.float32))
    b.node("Max", [x, b.node("Mul", [x, number([0.1, 0.1, 0.1, 0.2])])])
    for operator in ("Max", "Add"):
        b.nodes[-1].op_type = operator
        graph = check_graph(b.save(tmp_path), rng.normal(size=(4, 4)).astype(np.float32))
        assert {stage.function.name for stage in graph.stages} == {"none"}


# Time


@pytest.mark.parametrize(
    "operators, function",
    [(("Sigmoid", "Mul"), "silu"), (("Mul",), "none"), (("Add",), "none"), (("Softplus", "Tanh", "Mul"), "mish")],
)
def test_long_chains(tmp_path, operators, function):
    """Each distinct formula is analysed once, so a chain of 100 equal formulas needs at most 64 analyses."""
    b = Builder(["n", 16], opset=18)
    x = b("Gemm", np.eye(16, dtype=np.float32))
    onnx_expressions._function.cache_clear()
    for _ in range(100):
        y = x
        for operator in operators[:-1]:
            y = b.node(operator, [y])
        x = b.node(operators[-1], [x, y])
    stages = load_network(b.save(tmp_path)).stages
    assert {str(stage.function) for stage in stages} == {"none", function} - ({"none"} if function != "none" else set())
    assert 0 < onnx_expressions._function.cache_info().misses <= 64


# ---- functions in sequence, and before pooling


def test_clips_in_a_row(rng):
    x = np.concatenate([rng.normal(size=200) * 5, [np.inf, -np.inf]])
    ends = [-np.inf, -3, -1, 0, 0.5, 2, 4, np.inf]
    pairs = [(low, high) for low in ends for high in ends if low <= high and not (np.isinf(low) and np.isinf(high))]
    specs = [Function("relu"), *(Function("clip", pair) for pair in pairs)]
    for one in specs:
        for two in specs:
            both = composed(one, two)
            assert (both.exact(x) == two.exact(one.exact(x))).all(), (one, two, both)
    assert composed(NONE, specs[1]) == specs[1] == composed(specs[1], NONE)
    assert composed(Function("sigmoid"), specs[1]) is None


@pytest.mark.parametrize(
    "operator, attributes",
    [
        ("LeakyRelu", {"alpha": -0.5}),
        ("HardSigmoid", {"alpha": 7.0, "beta": -2.0}),
        *slow(("Elu", {"alpha": -1.5}), ("HardSigmoid", {"alpha": -0.25}), ("Selu", {"alpha": 2.0, "gamma": -1.0})),
    ],
    ids=str,
)
def test_pooling_after_decreasing_functions(rng, tmp_path, operator, attributes):
    """Max-pooling after a decreasing function gives the same results as onnxruntime, where pooling first would be wrong."""
    b = Builder(["n", 1, 6, 6], opset=18)
    b("Conv", np.ones((1, 1, 1, 1), np.float32))
    b(operator, **attributes)
    b("MaxPool", kernel_shape=[2, 2])
    check_graph(b.save(tmp_path), (rng.normal(size=(40, 1, 6, 6)) * 3).astype(np.float32))


def test_infinity_times_a_constant(tmp_path):
    """Infinity times 0.3 stays infinite. A constant split into two parts of different sign would give NaN."""
    b = Builder(["n", 1], opset=18)
    b("Relu")
    b("Mul", number(0.3))  # bfloat16's nearest is larger
    path = b.save(tmp_path)
    x = np.array([[np.inf], [3e38], [1], [-np.inf]], np.float32)
    got = run_network(load_network(path), x)
    assert np.isposinf(got[0]) and np.allclose(got[1:], 0.3 * np.maximum(x[1:].astype(bfloat16).astype(np.float32), 0), rtol=2e-5)
