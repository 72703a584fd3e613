"""Tests of MatMul of two tensors (`sim/frontend/operators/tensor_products.py`), whose weights are values of an earlier stage."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.functions.functions import NONE, RELU
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.stage import Tensor
from graphs import check, random_values
from onnx_models import Builder, check_graph, close, integers, reference, refused, weights
from stage_graphs import GivenStage, GivenTerm, linked
from suites import slow

CORE = Config(n=4)


def product_graph(rng, positions, inner, outputs, rows, softmax, scale=1.0):
    """Returns a graph that multiplies a stage's tensor (1 x positions) by a matrix that another stage computes, row-wise or
    column-wise."""
    count, depth = (inner, outputs) if rows else (outputs, inner)
    tensors = {
        "x": Tensor("x", 3, 1, max(positions, count)),
        "a": Tensor("a", inner, 1, positions),
        "b": Tensor("b", depth, 1, count),
        "y": Tensor("y", outputs, 1, positions),
    }
    made = [
        GivenStage(
            name,
            name,
            (GivenTerm("x", random_values(rng, (1, 1, 3, tensors[name].channels), scale)),),
            size=tensors[name].shape[:2],
        )
        for name in "ab"
    ]
    shape = np.broadcast_to(np.zeros((), bfloat16), (1, 1, inner, outputs))
    last = GivenStage("y", "y", (GivenTerm("a", shape, data="b", rows=rows),), size=(1, positions), softmax=softmax)
    return linked("product", tensors["x"], (*made, last))


@pytest.mark.parametrize("n", [*slow(2), 4, *slow(8)])
def test_products_give_the_golden_bits(rng, n):
    """Products of two tensors match the golden model bit for bit on the instruction-level model, with and without padding, and
    for results that underflow."""
    core = Config(n=n, unified_buffer_depth=512, accumulator_depth=128, bias_depth=64)
    for rows in (False, True):
        positions, inner, outputs = (int(size) for size in rng.integers(1, 12, 3))
        for inner_size, scale in ((inner, 1.0), (n, 1e-19), (2 * n, 1e-19)):
            graph = product_graph(rng, positions, inner_size, outputs, rows, bool(rng.integers(2)) and scale == 1, scale)
            check(graph, core, int(rng.integers(1, 4)), rng)


def attention(rng, positions, channels, heads, depth, factor=None):
    """Returns a builder of multi-head attention as exporters write it, with the output projection."""
    b = Builder(["n", positions, channels])

    def projection(perm):
        b.node("MatMul", ["x", weights(rng, channels, heads * depth)])
        b("Add", weights(rng, heads * depth))
        b("Reshape", np.array([0, positions, heads, depth]))
        return b("Transpose", perm=perm)

    one, two, three = (projection(perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    b.node("MatMul", [one, two])
    b("Mul", np.array(factor or depth**-0.5, np.float32))
    shares = b("Softmax", axis=-1)
    b.node("MatMul", [shares, three])
    b("Transpose", perm=[0, 2, 1, 3])
    b("Reshape", np.array([0, positions, heads * depth]))
    b("MatMul", weights(rng, heads * depth, channels))
    b.node("Add", [b.last, "x"])
    return b


@pytest.mark.parametrize("positions, channels, heads, depth", [(6, 8, 2, 4), (5, 4, 1, 3)])
def test_attention(rng, tmp_path, positions, channels, heads, depth):
    """Attention needs five stages per head plus one, because heads are columns of weights. On the instruction-level model it
    matches the golden model bit for bit."""
    x = rng.normal(size=(2, positions, channels)).astype(np.float32)
    path = attention(rng, positions, channels, heads, depth).save(tmp_path)
    check_graph(path, x, stages=5 * heads + 1)
    model = tpu.load(path)
    assert model.compare(x).error is None
    np.testing.assert_array_equal(model.predict(x, "model", core=CORE), model.predict(x))


def test_integers_are_exact(rng, tmp_path):
    """Products of two tensors give exactly onnxruntime's results for small integers, which are not rounded, for any order of the
    axes."""
    for one, two in (([0, 1, 2], [0, 2, 1]), ([0, 2, 1], [0, 1, 2]), ([0, 1, 2], [0, 1, 2])):
        b = Builder(["n", 4, 4])
        left, right = (b.node("MatMul", ["x", integers(rng, 4, 4, limit=1)]) for _ in range(2))
        left, right = b.node("Transpose", [left], perm=one), b.node("Transpose", [right], perm=two)
        b.node("MatMul", [left, right])
        _exact(b.save(tmp_path), integers(rng, 3, 4, 4, limit=1))
    b = Builder(["n", 2, 3, 4])  # heads of an image, one matrix for both; the input itself
    b.node("MatMul", ["x", b.node("Transpose", ["x"], perm=[0, 1, 3, 2])])
    b.node("MatMul", [b.last, b.node("Slice", ["x", *map(np.array, ([1], [2], [1]))])])
    _exact(b.save(tmp_path), integers(rng, 3, 2, 3, 4, limit=1))


def _exact(path, x):
    got, want = tpu.load(path).predict(x), reference(path, x)
    np.testing.assert_array_equal(got, want)


def test_products_of_pixels(rng, tmp_path):
    """A softmax over the products of each pair of pixels of an image gives the same results as onnxruntime."""
    b = Builder(["n", 2, 3, 3])
    flat = b("Reshape", np.array([0, 3, 9])) if b("Conv", weights(rng, 3, 2, 1, 1)) else None
    b.node("MatMul", [b.node("Transpose", [flat], perm=[0, 2, 1]), flat])
    b("Softmax", axis=-1)
    x = rng.normal(size=(2, 2, 3, 3)).astype(np.float32)
    model = tpu.load(b.save(tmp_path))
    assert model.compare(x).error is None
    close(model.predict(x), reference(tmp_path / "model.onnx", x))


def test_refused(rng, tmp_path):
    """Products of two tensors are refused on a core without `training`, between different samples, and for unsuitable shapes."""
    path = attention(rng, 4, 4, 1, 4).save(tmp_path)
    with pytest.raises(CompileError, match="needs a core with attention; choose one with --attention"):
        compile_network(tpu.load(path).network, Config(n=4, attention=False), 1)
    b = Builder(["n", 4])
    b.node("MatMul", ["x", b.node("Transpose", ["x"], perm=[1, 0])], name="odd")
    refused(b.save(tmp_path), "operator MatMul, node 'odd'", "different samples")
    b = Builder(["n", 4, 4])
    b.node("MatMul", ["x", b.node("ReduceMean", ["x"], axes=[1], keepdims=0)], name="odd")
    refused(b.save(tmp_path), "operator MatMul, node 'odd'", "not matrices with a common inner size")


@pytest.mark.slow
def test_attention_on_the_rtl(rng, tmp_path):
    """Attention on the RTL matches the golden model bit for bit."""
    model, x = tpu.load(attention(rng, 3, 4, 2, 2).save(tmp_path)), rng.normal(size=(2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(x, "icarus", core=CORE, batch=2), model.predict(x))


def test_stored_tiles_are_read_after_their_store(rng, tmp_path):
    """In a short program, tiles of constant weights precede and follow the tiles that a stage stores, and no result is read
    before it is stored."""
    b = Builder(["n", 4, 3, 3])
    flat = b("Reshape", np.array([0, 4, 9]))
    b.node("MatMul", [flat, b.node("Transpose", [flat], perm=[0, 2, 1])])
    b("Flatten")
    b("Gemm", weights(rng, 16, 3))
    model, x = tpu.load(b.save(tmp_path)), rng.normal(size=(2, 4, 3, 3)).astype(np.float32)
    for batch in (1, 2):
        np.testing.assert_array_equal(model.predict(x, "model", core=CORE, batch=batch), model.predict(x))


def random_products(rng):
    """Returns a graph of random products of earlier tensors, dense layers and maxima, whose last stage reads all values."""
    tensors, stages = {"x": Tensor("x", int(rng.integers(1, 9)), 1, int(rng.integers(1, 9)))}, []

    def add(name, term, channels, width, **facts):
        tensors[name] = Tensor(name, channels, 1, width)
        stages.append(GivenStage(name, name, (term,), size=(1, width), **facts))

    for number in range(int(rng.integers(2, 7))):
        source = tensors[str(rng.choice(list(tensors)))]
        others = [(one, rows) for one in tensors.values() for rows in (False, True) if one.name != "x"]
        fitting = [one for one in others if one[0].shape[1 if one[1] else 2] == source.channels]
        name, function = f"t{number}", RELU if rng.integers(2) else NONE
        if fitting and rng.random() < 0.8:
            matrix, rows = fitting[rng.integers(len(fitting))]
            columns = matrix.channels if rows else matrix.width
            shape = np.broadcast_to(np.zeros((), bfloat16), (1, 1, source.channels, columns))
            share = {"softmax": True} if rng.random() < 0.5 else {"function": function}
            add(name, GivenTerm(source.name, shape, data=matrix.name, rows=rows), columns, source.width, **share)
        else:
            channels = int(rng.choice([rng.integers(1, 9), source.width, source.channels]))
            term = GivenTerm(source.name, random_values(rng, (1, 1, source.channels, channels), source.channels**-0.5))
            add(name, term, channels, source.width, function=function)
    last = tensors[name]
    add("y", GivenTerm(name, random_values(rng, (1, last.width, last.channels, 3), 0.3)), 3, 1)
    return linked("products", tensors["x"], stages)


@pytest.mark.parametrize("trials", [4, pytest.param(150, marks=pytest.mark.slow)])
def test_random(rng, trials):
    for _ in range(trials):
        core = Config(n=int(rng.choice([2, 4, 8])), training=True, unified_buffer_depth=512, accumulator_depth=128, bias_depth=64)
        check(random_products(rng), core, int(rng.integers(1, 5)), rng)


def test_transposed_operand_is_a_product_with_the_identity(rng, tmp_path):
    """Keys, transposed, times values: the copy takes two stages, not one for each channel. The integers are exact."""
    b = Builder(["n", 10, 12])
    keys, values = (b.node("MatMul", ["x", integers(rng, 12, 12, limit=1)]) for _ in range(2))
    b.node("MatMul", [b.node("Transpose", [keys], perm=[0, 2, 1]), values])
    path, x = b.save(tmp_path), integers(rng, 3, 10, 12, limit=1)
    check_graph(path, x, stages=5)
    model = tpu.load(path, effort="fast")
    np.testing.assert_array_equal(model.predict(x, "model", core=CORE, batch=3), model.predict(x))
