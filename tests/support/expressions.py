"""Random scalar expressions, as ONNX models and in binary64, and a comparison with the golden model on adversarial inputs. Some
are functions written out, exactly or slightly wrong.

An expression is "x", a number, or a tuple of an ONNX operator and its operands.
"""

import math
from types import SimpleNamespace

import numpy as np

from amaranth_tpu.scripts.random_models.written_functions import ATTRIBUTES, FORMS, emitted
from amaranth_tpu.sim.frontend.formulas.tensor_formulas import _made
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.functions.formulas import VARIABLE, constant
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.errors import ModelError
from onnx_models import Builder, reference

_VALUES = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Tanh": np.tanh,
    "Erf": np.vectorize(math.erf, otypes=[float]),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Relu": lambda x: np.maximum(x, 0),
    "Softplus": lambda x: np.logaddexp(0, x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Pow": np.power,
    "Greater": np.greater,
    "Less": np.less,
    "GreaterOrEqual": np.greater_equal,
    "LessOrEqual": np.less_equal,
    "Where": np.where,
    "Clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "LeakyRelu": lambda x, a: np.where(x < 0, a * x, x),
    "Elu": lambda x, a: np.where(x < 0, a * np.expm1(x), x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
}
_TRUTHS = ("Greater", "Less", "GreaterOrEqual", "LessOrEqual")


def show(e):
    return f"{e[0]}({', '.join(map(show, e[1:]))})" if isinstance(e, tuple) else e if e == "x" else f"{e:.9g}"


def value(e, x, disturb=lambda values: values):
    if not isinstance(e, tuple):
        return x if e == "x" else np.float64(np.float32(e))
    with np.errstate(all="ignore"):
        found = _VALUES[e[0]](*[value(operand, x, disturb) for operand in e[1:]])
    return found if found.dtype == bool else disturb(found)


def formula_of(e):
    if not isinstance(e, tuple):
        return VARIABLE if e == "x" else constant(np.float32(e))
    names = ATTRIBUTES.get(e[0], ())
    operands = e[1:2] if names else e[1:]
    step = SimpleNamespace(operator=e[0], opset=18, attributes=dict(zip(names, e[2:])), arguments=[])
    return _made(step, [formula_of(operand) for operand in operands], ())


# ---- drawing


def constants(e):
    return [e] if isinstance(e, float) else [c for operand in e[1:] for c in constants(operand)] if isinstance(e, tuple) else []


def _changed(e, count, change):
    seen = iter(range(1 << 30))

    def walk(e):
        if isinstance(e, float):
            return change(e) if next(seen) == count else e
        return (e[0], *map(walk, e[1:])) if isinstance(e, tuple) else e

    return walk(e)


def _number(rng):
    kind = rng.integers(4)
    size = (
        10 ** rng.uniform(-33, 37)
        if kind == 0
        else rng.uniform(0, 300)
        if kind == 1
        else float(rng.choice([0.1, 0.5, 1, 2, 3, 6, 20, 100, 127, 127.1, 200, 255]))
        if kind == 2
        else abs(rng.normal())
    )
    size = float(bfloat16(size)) if rng.random() < 0.3 else float(np.float32(size))
    return -size if rng.random() < 0.4 else size


def _tree(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return "x" if rng.random() < 0.75 else _number(rng)
    arithmetic = "Add Sub Mul Max Min Where Relu Abs Neg Clip LeakyRelu Elu Sigmoid Tanh Exp Softplus Div Pow HardSigmoid"
    operator = str(rng.choice(arithmetic.split()))
    one = _tree(rng, depth - 1)
    if operator in ("Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Exp", "Softplus"):
        return operator, one
    if operator == "Elu":
        return operator, one, float(np.float32(rng.normal()))
    if operator in ("Clip", "LeakyRelu", "HardSigmoid"):
        numbers = sorted([_number(rng), _number(rng)])
        return operator, one, *(numbers[:1] if operator == "LeakyRelu" else numbers)
    if operator == "Pow":
        return operator, one, float(rng.choice([2, 3, 0.5, -1]))
    if operator == "Where":
        return operator, (str(rng.choice(_TRUTHS)), one, _number(rng)), _tree(rng, depth - 1), _tree(rng, depth - 1)
    return (operator, one, _tree(rng, depth - 1)) if rng.random() < 0.7 else (operator, _number(rng), one)


def _spoilt(rng, e):
    """Returns the expression with a random defect: a bend, jump, plateau or bump, or a slightly wrong constant."""
    t, c = _number(rng), _number(rng)
    wide = float(np.float32(t * (1 + 10 ** rng.uniform(-6.5, -1))))
    kind = rng.integers(8)
    if kind == 0:
        return "Add", e, ("Mul", c, ("Relu", ("Sub", "x", t)))
    if kind == 1:
        return "Where", (str(rng.choice(_TRUTHS)), "x", t), c, e
    if kind == 2:
        low, high = sorted([t, wide])
        return "Where", ("Greater", "x", low), ("Where", ("Less", "x", high), c, e), e
    if kind == 3:
        return "Add", e, ("Exp", ("Mul", -min(1e38, (t - wide) ** -2) if t != wide else -1.0, ("Pow", ("Sub", "x", t), 2.0)))
    if kind == 4:
        return str(rng.choice(["Min", "Max"])), e, t
    if kind == 5:
        return "Where", (str(rng.choice(_TRUTHS)), "x", t), t, e
    places = len(constants(e))
    if not places:
        return "Mul", e, float(np.float32(1 + rng.choice([1e-6, 1e-3, 0.01, 0.1])))
    by = float(rng.choice([1e-6, 1e-4, 1e-3, 0.01, 0.1, 1])) * float(rng.choice([-1, 1]))
    return _changed(e, int(rng.integers(places)), lambda c: float(np.float32(c + by * (c if kind == 6 else 1))))


def draw(rng):
    if rng.random() < 0.3:
        return _tree(rng, int(rng.integers(1, 4))), None
    name = str(rng.choice(list(FORMS)))
    e = FORMS[name][rng.integers(len(FORMS[name]))]
    return (e, name) if rng.random() < 0.15 else (_spoilt(rng, e), None)


# ---- comparing


def _parts(numbers):
    """Returns three bfloat16 columns a, b, c for each number, with a + b / 2^8 + c / 2^16 equal to the number in 24 bits."""
    first = round_bfloat16(numbers.astype(np.float32))
    rest = numbers - first.astype(float)
    second = round_bfloat16((rest * 2.0**8).astype(np.float32))
    third = round_bfloat16(((rest - second.astype(float) / 2.0**8) * 2.0**16).astype(np.float32))
    return np.stack([first, second, third], axis=1).astype(np.float32)


def inputs(rng, e, every=1):
    """Returns adversarial inputs: bfloat16 of every size (one in `every`), numbers between them, and numbers around each constant
    of `e`."""
    bits = np.arange(0x0400, 0x7F00, dtype=np.uint32)
    bits = bits[rng.integers(every) :: every] << np.uint32(16)
    between = bits + rng.integers(0, 1 << 16, bits.size, dtype=np.uint32)
    middle = bits[(bits >> 24 > 0x3D) & (bits >> 24 < 0x44)] | 0x8000
    sizes = np.concatenate([bits, between, middle]).view(np.float32).astype(float)
    near = np.array([c for c in constants(e) if 1e-36 < abs(c) < 1e38])
    around = 1 + np.concatenate([[0], *(sign * np.geomspace(2.0**-23, 2.0**-5, 60) for sign in (-1, 1))])
    near = (near[:, None] * around).ravel()
    return np.concatenate([[0.0], sizes, -sizes, near, -near])


def check(e, rng, folder, every=1, dense=True, strict=False):
    """Compiles expression `e` of a dense layer's sums (or of the input), and compares it with binary64. Returns the functions of
    the stages. Returns None if the expression is refused. If `strict`, it must become one function, even where its operators
    overflow."""
    b = Builder(["n", 3 if dense else 1], opset=18)
    x = b("MatMul", np.array([[1], [2.0**-8], [2.0**-16]], np.float32)) if dense else "x"
    b.last = emitted(e, x, lambda operator, *inputs, **attributes: b.node(operator, list(inputs), **attributes), b.constant, {})
    if not dense:
        b("MatMul", np.ones((1, 1), np.float32))
    path = b.save(folder)
    try:
        network = load_network(path)
    except ModelError as error:
        assert not any(word in str(error) for word in ("malformed", "Traceback")), error
        return None
    functions = [str(stage.function) for stage in network.stages]
    numbers = inputs(rng, e, every)
    numbers = numbers if dense else np.unique(round_bfloat16(numbers.astype(np.float32)).astype(float))
    given = _parts(numbers) if dense else numbers.astype(np.float32)[:, None]
    x = (given.astype(np.float64) @ [1, 2.0**-8, 2.0**-16]).astype(np.float32).astype(float) if dense else numbers
    with np.errstate(all="ignore"):
        got = run_network(network, given)[:, 0].astype(float)
        want = reference(path, given).reshape(len(x), -1)[:, 0].astype(float)
        want = np.broadcast_to(want, x.shape)
        wrong = _wrong(e, x, got, want, one_stage=len(functions) == (1 if dense else 2), strict=strict, rng=rng)
    if wrong.size:
        at = wrong[0]
        raise AssertionError(f"{show(e)} as {functions}: of {x[at]:.9g}: {got[at]:.9g}, not {want[at]:.9g}; {wrong.size} wrong")
    return functions


def _rounded(values):
    return round_bfloat16(np.asarray(values, np.float32)).astype(float)


def _lost(e, x, rng):
    """Returns the largest error that binary32 rounding may cause at numbers `x`."""

    def lose(values):
        return values * (1 + 2.0**-21 * rng.uniform(-1, 1, np.shape(values)))

    exact = value(e, x)
    return np.fmax.reduce([np.abs(np.broadcast_to(value(e, x, lose) - exact, x.shape)) for _ in range(6)])


def _wrong(e, x, got, want, one_stage, strict, rng):
    """Returns True where the result `got` differs from `want` by more than rounding allows; `want` is the exact value rounded to
    bfloat16."""
    exact = np.broadcast_to(value(e, x), x.shape).astype(float)
    bits = x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    ends = [end.view(np.float32).astype(float) for end in (bits, bits + np.uint32(0x10000))]
    noise = np.fmax.reduce([np.abs(want - exact), *(_lost(e, at, rng) for at in (x, *ends))])
    noise = np.where(noise <= 2.0**-11 * np.maximum(1, np.maximum(np.abs(x), np.abs(want))), noise, 0)
    allowed = noise
    if one_stage:
        # The core's function is a straight line between two bfloat16, or next to one.
        spread = np.abs(np.broadcast_to(value(e, ends[0]) - value(e, ends[1]), x.shape))
        allowed = 2.0**-7 * np.fmax(np.abs(want), np.abs(exact)) + np.where(np.isfinite(spread), spread, 0) / 2 + noise
    if not strict:
        # Each intermediate result is rounded, or its scale in the weights; both effects are tried.
        error, times = (2.0**-8, 1) if one_stage else (2.0**-7, 3)
        largest = np.abs(x)

        def disturb(values):
            if np.ndim(values):
                values = values * (1 + error * rng.choice([-1, -0.5, 0, 0.5, 1], values.shape))
                # The core flushes subnormals, and later operators may multiply such a value by thousands.
                values = np.where((np.abs(values) < 2.0**-126) & (rng.random(values.shape) < 0.5), 0, values)
            np.fmax(largest, np.abs(values), out=largest)
            return values

        tried = [np.broadcast_to(value(e, x if one_stage else disturb(x), disturb), x.shape) for _ in range(40)]
        if not one_stage:  # only rounded numbers fall into ranges narrower than the spacing of bfloat16
            tried.append(np.broadcast_to(value(e, _rounded(x), _rounded), x.shape))
        tried = np.array(tried)
        spread = times * (tried.max(axis=0) - tried.min(axis=0))
        allowed = allowed + 2.0**-6 * np.fmax(np.abs(want), np.abs(exact)) + np.where(np.isnan(spread), np.inf, spread)
        scale = max([1, *map(abs, constants(e))])  # the constant may be merged into weights before a sum
        allowed = np.where(largest * scale > 1e37, np.inf, allowed)
    # Where an intermediate binary32 value overflows, the exact value counts, if there is one.
    want = np.where(np.isinf(want) & np.isfinite(exact), exact, want)
    near = (np.abs(got - want) <= allowed + 2.0**-115) | np.isinf(allowed)
    infinite = (np.abs(want) > 3.38e38) & (np.abs(got) > 3.38e38) & (np.sign(got) == np.sign(want))
    missing = np.isnan(want) & ~np.isnan(got) & _has_no_value(e, x, rng)
    return np.flatnonzero(~(near | infinite | np.isnan(want)) | missing)


def _has_no_value(e, x, rng):
    """Returns True where the expression is NaN without overflow, even with small rounding errors."""
    numbers = np.zeros(x.shape, bool)

    def disturb(values):
        nonlocal numbers
        numbers = numbers | ~(np.abs(values) <= 3e38) & ~np.isnan(values)
        return values * (1 + 2.0**-7 * rng.uniform(-1, 1, np.shape(values)))

    for change in (1, *rng.uniform(1 - 2.0**-8, 1 + 2.0**-8, 8)):
        found = value(e, x * change, disturb)
        numbers = numbers | ~np.isnan(found)
    return ~numbers
