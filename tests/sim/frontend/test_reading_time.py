"""Tests that reading and compiling take time in proportion to the model's nodes, and memory in proportion to its weights."""

import cProfile
import pstats
import time
import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from onnx_models import Builder, refused, weights
from seeds import seed
from suites import all_but


def _repeated(step, count, width):
    rng = np.random.default_rng(seed())
    b = Builder(["n", width])
    b("MatMul", weights(rng, width, width))
    for _ in range(count):
        step(b, rng, width)
    b("MatMul", weights(rng, width, 2))
    return b


def _self(operator):
    return lambda b, rng, width: b.node(operator, [b.last, b.last])


def _silu(b, rng, width):
    b.node("Mul", [b.last, b("Sigmoid")])


def _residual(b, rng, width):
    before = b.last
    b("MatMul", weights(rng, width, width))
    b("Relu")
    b("Add", before)


def _joined(b, rng, width):
    before = b.last
    b("LeakyRelu")
    b.node("Concat", [before, b.last], axis=1)
    b("MatMul", weights(rng, 2 * width, width))


def _constants(b, rng, width):
    before = b.last
    b.node("Add", [before, b.node("Mul", [np.array(2, np.float32), np.array(3, np.float32)])])


STEPS = {
    "Relu": lambda b, rng, width: b("Relu"),
    "Sigmoid": lambda b, rng, width: b("Sigmoid"),
    "x + x": _self("Add"),
    "x x": _self("Mul"),
    "SiLU": _silu,
    "residual": _residual,
    "concat": _joined,
    "constants": _constants,
}


@pytest.mark.parametrize("name", all_but(["Relu"], STEPS))
def test_calls_grow_in_proportion_to_nodes(tmp_path, name):
    """With four times as many nodes, reading and compiling call each Python function less than six times as often."""
    calls = []
    config = Config(n=4, bias_depth=1024, weight_fifo_depth=8)  # few and many alike have all biases there, and fill the FIFO
    few = 20 if name in ("residual", "concat") else 60  # functions of a few dozen operators are tried at each place
    for count in (4, few, 4 * few):  # the first reading includes one-time work
        path = _repeated(STEPS[name], count, 4).save(tmp_path)
        profile = cProfile.Profile()
        profile.enable()
        compile_network(load_network(path), config, 2)
        profile.disable()
        calls.append({place: called for place, (_, called, *_) in pstats.Stats(profile).stats.items()})
    grown = {
        place: (calls[1].get(place, 0), called)
        for place, called in calls[2].items()
        if called > 6 * max(calls[1].get(place, 0), 300) and place[0] != "~"
    }  # min() is called for each beat that waits
    assert not grown


def _excited():
    b = Builder([1, 1, 450, 450])
    b.node("Mul", ["x", b("GlobalAveragePool")])
    return b


@pytest.mark.parametrize(
    "build",
    [lambda: _repeated(lambda b, rng, width: b("Mul", np.array(1.5, np.float32)), 100, 400), lambda: _wide(150, 64), _excited],
    ids=["scales", "concat", "image"],
)
def test_memory_is_limited(tmp_path, build):
    """Reading 100 scales in a row, or a wide concatenation, takes less than 40 MB, because no intermediate weight matrices are
    built. So does an image of one channel, whose pixels are looked at in parts."""
    path = build().save(tmp_path)
    tracemalloc.start()
    try:
        load_network(path)
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


PASSING = {
    "Identity": lambda b: b("Identity"),
    "Cast": lambda b: b("Cast", to=TensorProto.FLOAT),
    "TopK": lambda b: b("Identity"),  # after a TopK, on the host
}


@pytest.mark.parametrize("name", PASSING)
def test_chains_that_only_pass_on(tmp_path, name):
    """A chain of 4,000 nodes without arithmetic is read in seconds of processor time."""
    b = Builder(["n", 4])
    b("MatMul", np.ones((4, 4), np.float32))
    if name == "TopK":
        b("TopK", np.array([2]))
        b.nodes[-1].output.append("indices")
    for _ in range(4000):
        PASSING[name](b)
    path = b.save(tmp_path)
    start = time.process_time()
    model = tpu.load(path)
    assert len(model.table() if name == "TopK" else model.network.stages) == (2 if name == "TopK" else 1)
    assert time.process_time() - start < 6


def _wide(parts, width):
    b = Builder(["n", width])
    rng = np.random.default_rng(seed())
    first = b("MatMul", weights(rng, width, width))
    names = [b.node("Relu", [b.node("Add", [first, np.array(part, np.float32)])]) for part in range(parts)]
    b.node("Concat", names, axis=1)
    b("MatMul", weights(rng, parts * width, 2))
    return b


def test_layers_after_sums(tmp_path):
    """A layer after residual additions reads their sum, not all tensors that contribute to it."""
    graph = load_network(_repeated(_residual, 12, 4).save(tmp_path))
    assert sum(len(stage.terms) for stage in graph.stages) <= 3 * 12 + 2


def _functions(bodies):
    """Returns a model that calls the last of local functions f0, f1, ...; each body is a list of operators or of functions'
    numbers."""
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    b = Builder(["n", 12])
    b("MatMul", np.ones((12, 3), np.float32))
    b(f"f{len(bodies) - 1}", name="odd")
    b.nodes[-1].domain = "own"
    model = b.model()
    model.opset_import.append(opsets[1])
    for number, body in enumerate(bodies):
        nodes = [
            helper.make_node(
                one if isinstance(one, str) else f"f{one}",
                [f"v{at}"],
                [f"v{at + 1}"],
                domain="" if isinstance(one, str) else "own",
            )
            for at, one in enumerate(body)
        ]
        model.functions.append(helper.make_function("own", f"f{number}", ["v0"], [f"v{len(body)}"], nodes, opsets))
    return model


def test_functions_that_double(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(_functions([["Relu"], *([number] * 2 for number in range(30))]).SerializeToString())
    refused(path, "operator own.f30, node 'odd'", "more than 20000 nodes")
    path.write_bytes(_functions([["Relu"], *([number] * 2 for number in range(5))]).SerializeToString())
    assert load_network(path).stages[-1].function.name == "relu"


def test_functions_that_call_themselves(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(_functions([["Relu", 1], ["Relu", 0]]).SerializeToString())
    refused(path, "local function own.f", "calls itself")
    model = _functions([["Relu"]])
    model.functions.append(model.functions[0])
    path.write_bytes(model.SerializeToString())
    refused(path, "two local functions own.f0")
