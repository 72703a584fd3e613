"""Constants that differ from position to position: masks before Softmax, positions; onnxruntime judges all results."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from onnx_models import Builder, check_graph, close, reference, refused, weights
from suites import slow

CORE = Config(n=4, unified_buffer_depth=1024, accumulator_depth=128)
CAUSAL = np.triu(np.full((6, 6), -np.inf, np.float32), 1)


def scores(b, rng, positions, heads, depth, factor=None):
    """Adds the products of queries and keys, (n, heads, positions, positions), and returns the names of products and values."""
    channels = heads * depth

    def projection(perm):
        b.node("MatMul", ["x", weights(rng, channels, channels)])
        b("Reshape", np.array([0, positions, heads, depth]))
        return b("Transpose", perm=perm)

    one, two, three = (projection(perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    b.node("MatMul", [one, two])
    if factor is not None:
        b("Mul", np.array(factor, np.float32))
    return b.last, three


def masked(rng, mask, heads=2, depth=3, opset=13, factor=0.5, before=lambda b: None, positions=6):
    """Builds an attention layer that adds `mask` to its scores; `before` may add nodes first."""
    b = Builder(["n", positions, heads * depth], opset=opset)
    _, values = scores(b, rng, positions, heads, depth, factor)
    before(b)
    b("Add", mask)
    b("Softmax", axis=-1)
    b.node("MatMul", [b.last, values])
    return b


def agree(b, tmp_path, rng, positions=6, channels=6, **options):
    x = rng.normal(size=(3, positions, channels)).astype(np.float32)
    path = b.save(tmp_path)
    check_graph(path, x, **options)
    model = tpu.load(path, effort="fast")
    assert model.compare(x).error is None
    np.testing.assert_array_equal(model.predict(x, "model", core=CORE, batch=3), model.predict(x))


@pytest.mark.parametrize("factor", [*slow(None), 0.5])
def test_causal_mask_takes_no_stage(rng, tmp_path, factor):
    """A mask is the bias of the products: five stages a head and the one that joins heads, as without a mask."""
    agree(masked(rng, CAUSAL, factor=factor), tmp_path, rng, stages=11)


@pytest.mark.parametrize("shape", [[2, 6, 6], *slow([1, 1, 6, 6], [2, 1, 6], [1, 6, 1], [6], [2, 6, 1], [1, 2, 1, 6], [])])
def test_masks_of_any_shape(rng, tmp_path, shape):
    """Broadcasts a mask along heads, queries, keys or all of these, with -inf among its values but not in whole rows."""
    mask = rng.normal(size=shape).astype(np.float32)
    if shape and shape[-1] > 1:
        mask[..., rng.integers(6)] = -np.inf
    agree(masked(rng, mask), tmp_path, rng, stages=11)


@pytest.mark.slow
def test_mask_of_few_queries(rng, tmp_path):
    """One query row of several heads, and a mask whose rows are alike."""
    agree(masked(rng, np.array([[0, -np.inf]], np.float32), positions=2), tmp_path, rng, positions=2)


def test_fully_masked_row_is_not_a_number(rng, tmp_path):
    mask = CAUSAL.copy()
    mask[2] = -np.inf
    path = masked(rng, mask).save(tmp_path)
    x = rng.normal(size=(2, 6, 6)).astype(np.float32)
    got, want = tpu.load(path).run(x).output, reference(path, x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(want[:, :, 2]).all() and not np.isnan(want[:, :, :2]).any()
    close(got[:, :, 3:], want[:, :, 3:])


def test_mask_read_twice(rng, tmp_path):
    """Masked scores that also leave the network: finite masks only."""
    for mask, fails in ((np.where(np.isinf(CAUSAL), np.float32(-40), np.float32(0)), False), (CAUSAL, True)):
        b = Builder(["n", 6, 6])
        _, values = scores(b, rng, 6, 2, 3)
        both = b("Add", mask)
        b.node("MatMul", [b("Softmax", axis=-1), values])
        b.node("Add", [b.last, b("MatMul", weights(rng, 3, 3))])
        b.node("Add", [b.last, b.node("MatMul", [both, values])])
        if fails:
            refused(b.save(tmp_path), "infinite", "directly before a Softmax")
        else:
            agree(b, tmp_path, rng)


@pytest.mark.parametrize(
    "chain", ["two masks", "zero after", "negative after", "positive", *slow("factor after", "factor before and after")]
)
def test_constants_around_a_mask(rng, tmp_path, chain):
    """Further constants before and after an infinite mask give ONNX's result, or are refused."""
    b = Builder(["n", 6, 6])
    _, values = scores(b, rng, 6, 2, 3, 0.5 if "before" in chain else None)
    b("Add", -CAUSAL if chain == "positive" else CAUSAL)
    if chain == "two masks":
        b("Add", rng.normal(size=(2, 6, 6)).astype(np.float32))
    elif chain != "positive":
        b("Mul", np.array({"zero after": 0, "negative after": -1}.get(chain, 0.25), np.float32))
    b("Softmax", axis=-1)
    b.node("MatMul", [b.last, values])
    if chain in ("positive", "zero after", "negative after"):
        refused(b.save(tmp_path), "infinite")
    else:
        agree(b, tmp_path, rng, stages=11 if chain == "two masks" else None)


def test_infinite_constant_without_softmax(rng, tmp_path):
    b = Builder(["n", 6, 6])
    b("MatMul", weights(rng, 6, 6))
    b("Add", CAUSAL)
    b("Relu")
    refused(b.save(tmp_path), "infinite", "directly before a Softmax")


def test_mask_that_depends_on_the_input(rng, tmp_path):
    """Adds a tensor, not a constant, to the scores: no bias rows."""
    b = Builder(["n", 6, 6])
    products, values = scores(b, rng, 6, 1, 6)
    b.node("Reshape", [b.node("MatMul", ["x", weights(rng, 6, 6)]), np.array([0, 1, 6, 6])])
    b.node("Add", [products, b.last])
    b("Softmax", axis=-1)
    b.node("MatMul", [b.last, values])
    agree(b, tmp_path, rng)


@pytest.mark.parametrize("later", ["Mul", *slow("MatMul", "Relu", "MaxPool", "nothing")])
def test_positions(rng, tmp_path, later):
    """A constant for each position and channel of the input takes at most one stage more."""
    b = Builder(["n", 4, 6, 5] if later == "MaxPool" else ["n", 6, 6])
    shape = (4, 6, 5) if later == "MaxPool" else (6, 6)
    if later == "MaxPool":
        b("Conv", weights(rng, 4, 4, 1, 1))
    else:
        b("MatMul", weights(rng, 6, 6))
    first = b("Add", rng.normal(size=shape).astype(np.float32))
    if later == "MatMul":
        b("MatMul", weights(rng, 6, 6))
    elif later == "Mul":
        b.node("Mul", [first, "x"])
    elif later == "MaxPool":
        b("MaxPool", kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    elif later == "Relu":
        b("Relu")
    x = rng.normal(size=(3, *shape)).astype(np.float32)
    path = b.save(tmp_path)
    check_graph(path, x, stages=1 if later in ("Relu", "nothing") else 2)
    model = tpu.load(path, effort="fast")
    expected = model.predict(x)
    for core in (CORE, Config(n=4, attention=False), Config(n=8, bias_depth=16)):
        np.testing.assert_array_equal(model.predict(x, "model", core=core), expected)


@pytest.mark.slow
def test_rtl(rng, tmp_path):
    """Bias rows on the RTL match the biases of the golden model, in a bias memory that is too small for the mask."""
    core = Config(n=4, bias_depth=8, accumulator_depth=64)
    x = rng.normal(size=(3, 6, 6)).astype(np.float32)
    model = tpu.load(masked(rng, np.where(CAUSAL < 0, CAUSAL, rng.normal(size=CAUSAL.shape).astype(np.float32))).save(tmp_path))
    np.testing.assert_array_equal(model.predict(x, "verilator", core=core, batch=3), model.predict(x))
