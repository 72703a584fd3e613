"""Tests of functions, as single ONNX operators and as expressions of several, and of softmax, against onnxruntime."""

import numpy as np
import pytest

from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.functions.functions import DEFINITIONS, Function
from onnx_models import Builder, check_graph, refused, weights


def number(value):
    return np.array(value, np.float32)


def operator(*arguments, **attributes):
    return lambda b, x: b.node(arguments[0], [x, *arguments[1:]], **attributes)


def chain(*steps):
    """Returns a builder of steps `(operator, inputs...)`; as inputs, "x" is the model's input, "." the last result, "#0" the
    first result."""

    def build(b, x):
        names = []
        for kind, *inputs in steps:
            inputs = [
                number(i) if not isinstance(i, str) else {"x": x, ".": names and names[-1]}.get(i) or names[int(i[1:])]
                for i in inputs
            ]
            names.append(b.node(kind, inputs))
        return names[-1]

    return build


FUNCTIONS = {
    # single operators with default attributes
    **{
        f"{one.operator} as {one.name}": (str(Function(one.name)), operator(one.operator, **one.choice))
        for one in DEFINITIONS.values()
        if one.operator
    },
    "LeakyRelu": ("leaky_relu(0.2)", operator("LeakyRelu", alpha=0.2)),
    "Elu": ("elu(0.5)", operator("Elu", alpha=0.5)),
    "PRelu": ("leaky_relu(0.25)", operator("PRelu", np.full((3, 1, 1), 0.25, np.float32))),
    "Clip": ("clip(0, 6)", operator("Clip", number(0), number(6))),
    "Clip above": ("clip(-inf, 1)", operator("Clip", "", number(1))),
    "Max": ("clip(0.5, inf)", operator("Max", number(0.5))),
    "Min": ("clip(-inf, 0.5)", operator("Min", number(0.5))),
    "HardSigmoid of another slope": ("hard_sigmoid(0.125, 0.25)", operator("HardSigmoid", alpha=0.125, beta=0.25)),
    # PyTorch before opset 20
    "gelu, x / sqrt 2 * (erf + 1) * 0.5": (
        "gelu",
        chain(("Div", "x", 2**0.5), ("Erf", "."), ("Add", ".", 1), ("Mul", "x", "."), ("Mul", ".", 0.5)),
    ),
    "gelu, half first": (
        "gelu",
        chain(("Mul", "x", 0.5), ("Mul", "x", 0.5**0.5), ("Erf", "."), ("Add", 1, "."), ("Mul", "#0", ".")),
    ),
    # Keras, JAX
    "gelu by tanh": (
        "gelu_tanh",
        chain(
            ("Pow", "x", 3),
            ("Mul", ".", 0.044715),
            ("Add", "x", "."),
            ("Mul", ".", 0.7978845608),
            ("Tanh", "."),
            ("Add", ".", 1),
            ("Mul", ".", 0.5),
            ("Mul", "x", "."),
        ),
    ),
    "gelu by tanh, cube by products": (
        "gelu_tanh",
        chain(
            ("Mul", "x", "x"),
            ("Mul", "x", "."),
            ("Mul", ".", 0.044715),
            ("Add", ".", "x"),
            ("Mul", ".", 0.7978845608),
            ("Tanh", "."),
            ("Add", ".", 1),
            ("Mul", "x", 0.5),
            ("Mul", ".", "#6"),
        ),
    ),
    "silu": ("silu", chain(("Sigmoid", "x"), ("Mul", "x", "."))),
    "silu by exp": ("silu", chain(("Neg", "x"), ("Exp", "."), ("Add", 1, "."), ("Div", "x", "."))),
    "sigmoid by exp": ("sigmoid", chain(("Neg", "x"), ("Exp", "."), ("Add", 1, "."), ("Reciprocal", "."))),
    "sigmoid by division": ("sigmoid", chain(("Neg", "x"), ("Exp", "."), ("Add", 1, "."), ("Div", 1, "."))),
    "hard swish": ("hard_swish", chain(("Add", "x", 3), ("Clip", ".", 0, 6), ("Mul", "x", "."), ("Div", ".", 6))),
    "hard swish by hard sigmoid": (
        "hard_swish",
        chain(("Div", "x", 6), ("Add", ".", 0.5), ("Clip", ".", 0, 1), ("Mul", ".", "x")),
    ),
    "mish": ("mish", chain(("Softplus", "x"), ("Tanh", "."), ("Mul", "x", "."))),
    "leaky by max": ("leaky_relu(0.1)", chain(("Mul", "x", 0.1), ("Max", "x", "."))),
    "leaky by where": ("leaky_relu(0.1)", chain(("Greater", "x", 0), ("Mul", "x", 0.1), ("Where", "#0", "x", "."))),
    "elu by where": ("elu(1)", chain(("Greater", "x", 0), ("Exp", "x"), ("Sub", ".", 1), ("Where", "#0", "x", "."))),
    "relu of where": ("relu", chain(("Less", "x", 0), ("Where", ".", 0.0, "x"))),
    "softplus by log": ("softplus", chain(("Exp", "x"), ("Add", ".", 1), ("Log", "."))),
    "softsign": ("softsign", chain(("Abs", "x"), ("Add", ".", 1), ("Div", "x", "."))),
    "relu 6 in two": ("clip(0, 6)", chain(("Relu", "x"), ("Min", ".", 6))),
    "relu twice": ("relu", chain(("Relu", "x"), ("Relu", "."))),
    "tanh by sigmoid is not one": (None, chain(("Mul", "x", 2), ("Sigmoid", "."), ("Mul", ".", 2), ("Sub", ".", 1))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("pooled", [False, True])
def test_functions(rng, tmp_path, name, pooled):
    """A convolution, a function and a pool become one stage if the function is increasing, and give the same results as
    onnxruntime."""
    wanted, build = FUNCTIONS[name]
    b = Builder(["n", 2, 6, 5], opset=22)
    x = b("Conv", 2 * weights(rng, 3, 2, 3, 3), weights(rng, 3), name="conv")
    b.last = build(b, x)
    if pooled:
        b("MaxPool", kernel_shape=[2, 2])
    graph = check_graph(
        b.save(tmp_path, ir_version=10),
        rng.normal(size=(4, 2, 6, 5)).astype(np.float32),
        tolerance=0.05 if wanted in ("exp", "sinh", "cosh") else 0.02,  # these enlarge the rounding of large sums
    )
    function = str(graph.stages[0].function)
    if wanted is None:
        return
    order = (np.diff(graph.stages[0].function.exact(np.linspace(-6, 6, 1001))) >= 0).all() and not function.startswith("selu")
    assert [str(stage.function) for stage in graph.stages] == ([wanted] if order or not pooled else [wanted, "none"])


def test_function_of_a_scale(rng, tmp_path):
    """The function of a scaled convolution applies to the scaled values."""
    b = Builder(["n", 2, 6, 5])
    b("Conv", weights(rng, 3, 2, 1, 1))
    x = b("Mul", np.float32(3) * weights(rng, 3, 1, 1))
    b.node("Mul", [x, b.node("Sigmoid", [x])])
    graph = check_graph(b.save(tmp_path), rng.normal(size=(4, 2, 6, 5)).astype(np.float32), stages=1)
    assert str(graph.stages[0].function) == "silu"


def test_function_of_the_input(rng, tmp_path):
    b = Builder(["n", 5, 4, 2])
    b("Relu")
    b("Transpose", perm=[0, 3, 1, 2])
    b("Conv", weights(rng, 3, 2, 3, 3))
    graph = check_graph(b.save(tmp_path), rng.normal(size=(4, 5, 4, 2)).astype(np.float32), stages=2)
    assert graph.tensors[graph.input].shape == (5, 4, 2)


def test_two_users(rng, tmp_path):
    """A tensor that Relu and Tanh both read is computed once, without either function."""
    b = Builder(["n", 2, 6, 5])
    x = b("Conv", weights(rng, 3, 2, 1, 1))
    b.node("Add", [b.node("Relu", [x]), b.node("Tanh", [x])])
    graph = check_graph(b.save(tmp_path), rng.normal(size=(4, 2, 6, 5)).astype(np.float32), stages=4)
    assert [str(stage.function) for stage in graph.stages].count("none") == 2


def test_clip_with_attributes(rng, tmp_path):
    """A Clip with bounds as attributes (before opset 11) is read as the function clip."""
    b = Builder(["n", 7], opset=10)
    b("MatMul", weights(rng, 7, 3))
    b("Clip", min=-0.5, max=0.25)
    graph = check_graph(b.save(tmp_path), rng.normal(size=(4, 7)).astype(np.float32), stages=1)
    assert str(graph.stages[0].function) == "clip(-0.5, 0.25)"


def written_out(b, x, log=False, keep=1):
    """Appends a softmax over axis 1 to `b`, written out as by JAX. Returns the name of its result."""
    largest = b.node("ReduceMax", [x], axes=[1], keepdims=keep)
    if not keep:
        largest = b.node("Reshape", [largest, np.array([-1, 1])])
    shifted = b.node("Sub", [x, b.node("Identity", [largest])])
    exponential = b.node("Exp", [shifted])
    total = b.node("ReduceSum", [exponential, np.array([1])], keepdims=1)
    return b.node("Sub", [shifted, b.node("Log", [total])]) if log else b.node("Div", [exponential, total])


@pytest.mark.parametrize("keep", [0, 1])
def test_softmax_written_out(rng, tmp_path, keep):
    b = Builder(["n", 7])
    written_out(b, b("Gemm", weights(rng, 7, 5)), keep=keep)
    network = load_network(b.save(tmp_path))
    assert len(network.stages) == 1 and network.softmax
    b = Builder(["n", 7])
    b("Gemm", weights(rng, 7, 5))
    written_out(b, b("Tanh"), log=True, keep=keep)
    assert load_network(b.save(tmp_path)).softmax


def test_softmax_before_another_layer(rng, tmp_path):
    """A softmax over the channels of an image, before another layer, is computed by the core. A final softmax is left to the
    host."""
    b = Builder(["n", 2, 4, 3])
    b("Conv", 2 * weights(rng, 5, 2, 1, 1))
    b("Softmax", axis=1)
    b("Conv", weights(rng, 3, 5, 2, 2))
    graph = check_graph(b.save(tmp_path), rng.normal(size=(4, 2, 4, 3)).astype(np.float32), stages=2)
    assert [stage.softmax for stage in graph.stages] == [True, False]
    b = Builder(["n", 7])
    b("Gemm", weights(rng, 7, 5))
    b("Softmax", axis=1)
    path = b.save(tmp_path)
    assert load_network(path).softmax
    assert check_graph(path, rng.normal(size=(4, 7)).astype(np.float32), stages=1, keep_softmax=True).stages[0].softmax


def test_parts_alone_are_refused(rng, tmp_path):
    for name in ("Log", "Sqrt"):
        b = Builder(["n", 7])
        b("Gemm", weights(rng, 7, 5))
        b(name, name="odd")
        refused(b.save(tmp_path), f"operator {name}, node 'odd'", "not part of a function")
