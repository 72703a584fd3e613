"""Tests of divisions by values (`sim/frontend/operators/quotients.py`), for numbers of all sizes, against onnxruntime."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from onnx_models import Builder, close, reference, refused, weights


def _of_all_sizes(rng, count):
    """Returns operands of quotients, bfloat16 (pairs, 2), with random signs. The first are all pairs of powers of two at which a
    table or a range ends, each with its two neighbours. Then follow `count` random pairs."""
    ends = 2.0 ** np.array([-126, -90, -64, -18, -12, -8, -7, -6, 0, 6, 7, 8, 12, 18, 63, 90, 126, 127])
    ends = np.concatenate([ends, ends[1:] * (1 - 2.0**-8), ends * (1 + 2.0**-7)])
    pairs = np.stack(np.meshgrid(ends, ends), axis=-1).reshape(-1, 2)
    drawn = rng.uniform(1, 2, (count, 2)) * 2.0 ** rng.integers(-126, 127, (count, 2))
    values = np.concatenate([pairs, drawn]) * rng.choice([-1, 1], (len(pairs) + count, 2))
    return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _columns(b, dtype=np.float32):
    return b.node("MatMul", ["x", np.array([[1], [0]], dtype)]), b.node("MatMul", ["x", np.array([[0], [1]], dtype)])


def _relative(path, x):
    """Returns the largest relative error among normal quotients. Checks that all other quotients are 0 or the same as in
    onnxruntime."""
    got, want = (np.float64(array).reshape(-1) for array in (tpu.load(path).predict(x), reference(path, x)))
    normal = (np.abs(want) >= 2.0**-125) & (np.abs(want) < 2.0**127.9)
    special = np.isnan(want) | np.isinf(want)
    beyond = np.where(np.abs(got) >= 2.0**127.9, np.copysign(np.inf, got), got)  # a rounding apart, one may be finite
    np.testing.assert_array_equal(beyond[special], want[special])
    assert (got[np.abs(want) < 2.0**-126] == 0).all()
    return np.abs(got[normal] / want[normal] - 1).max()


def test_quotients_of_any_size(rng, tmp_path):
    """Quotients of numbers of any size have a relative error below two bfloat16 roundings, for divisors up to 2^126. Larger
    divisors have no reciprocal in bfloat16."""
    x = np.concatenate([_of_all_sizes(rng, 2000), [[0, 0], [1, 0], [-3, 0], [0, 3]]]).astype(np.float32)
    b = Builder(["n", 2])
    b.node("Div", _columns(b))
    assert 0.003 < _relative(b.save(tmp_path), x[np.abs(x[:, 1]) <= 2.0**126]) < 2.0**-7
    b = Builder(["n", 2])
    b.node("Div", [np.array(3e38, np.float32), b("MatMul", np.array([[1], [0]], np.float32))])
    assert _relative(b.save(tmp_path), x) < 2.0**-7.5  # one rounding: the table is that of 3e38 / x
    b = Builder(["n", 2])
    b.node("Div", [np.array([2.0**-100, -3e38], np.float32), b("MatMul", np.array([[1, 1], [0, 0]], np.float32))])
    assert _relative(b.save(tmp_path), x[np.abs(x[:, 0]) <= 2.0**126]) < 2.0**-6  # and the roundings of constant and product
    b = Builder(["n", 2])
    b("Reciprocal")
    b("Slice", *map(np.array, ([0], [1], [1])))
    assert _relative(b.save(tmp_path), x) < 2.0**-7


def test_divisions_in_models(rng, tmp_path):
    """Divisions of image channels by one number each, of rows by their sums, and between layers give the same results as
    onnxruntime."""
    b = Builder(["n", 3, 4, 5])
    image = b("Conv", weights(rng, 6, 3, 2, 2))
    b.node("Add", [b.node("Abs", [b.node("GlobalAveragePool", [image])]), np.array(0.1, np.float32)])
    b.node("Div", [image, b.last])
    b("Conv", weights(rng, 2, 6, 2, 2))
    _check(rng, b.save(tmp_path), 3, 4, 5)
    b = Builder(["n", 3, 4])
    shares = b("Exp")
    b.node("ReduceSum", [shares, np.array([1])], keepdims=1)
    b.node("Div", [shares, b.last])
    _check(rng, b.save(tmp_path), 3, 4)
    b = Builder(["n", 5])
    # An exponential multiplies its operand's error; with few units it stays within the tolerance of `close`.
    one, two = (b.node("MatMul", ["x", weights(rng, 5, 4) * np.float32(scale)]) for scale in (1, 0.5))
    b.node("Div", [b.node("Sub", [one, np.array(2, np.float32)]), b.node("Exp", [two])])
    b("MatMul", weights(rng, 4, 3))
    _check(rng, b.save(tmp_path), 5)


def _check(rng, path, *shape):
    model, x = tpu.load(path), rng.normal(size=(3, *shape)).astype(np.float32)
    assert model.compare(x).error is None
    close(model.predict(x), reference(path, x))


def test_square_roots(rng, tmp_path):
    """Square roots of operands that are proven not negative, and divisions by them, are accurate for all sizes. Operands that may
    be negative are refused."""
    sizes = 2.0 ** rng.uniform(-20, 62, (500, 1)) * rng.choice([-1, 1], (500, 1))
    x = (sizes.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    for exponent in (np.array(0.5, np.float32), None):
        b = Builder(["n", 1])
        b("Pow", np.array(2, np.float32))
        b("Add", np.array(1e-5, np.float32))
        root = b("Sqrt") if exponent is None else b("Pow", exponent)
        path = b.save(tmp_path)
        assert np.abs(tpu.load(path).predict(x) / reference(path, x) - 1).max() < 2.0**-6
        b.node("Div", ["x", root])
        path = b.save(tmp_path)
        assert np.abs(tpu.load(path).predict(x) / reference(path, x) - 1).max() < 2.0**-6
    for nodes in ((("Sqrt",),), (("Pow", np.array(-0.5, np.float32)),), (("Sqrt",), ("Reciprocal",))):
        b = Builder(["n", 1])
        b("Relu")
        for name, *constants in nodes:
            b(name, *constants)
        path, every = b.save(tmp_path), np.concatenate([x, [[0]]]).astype(np.float32)
        got, want = tpu.load(path).predict(every), reference(path, every)
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
        np.testing.assert_allclose(got[np.isfinite(want)], want[np.isfinite(want)], rtol=2.0**-7.5)
        assert len(load_network(path).stages) == 2  # Relu, and one look-up
    b = Builder(["n", 1])
    b("Neg")
    b("Sqrt", name="odd")
    refused(b.save(tmp_path), "operator Sqrt, node 'odd'", "not part of a function")


def test_square_root_of_an_input(rng, tmp_path):
    """Rounding keeps the sign of an input, so that its root is NaN exactly where ONNX' is."""
    b = Builder(["n", 6])
    b("Sqrt")
    path, x = b.save(tmp_path), (rng.normal(size=(40, 6)) * 10.0 ** rng.integers(-20, 20, (40, 6))).astype(np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(tpu.load(path).predict(x), np.sqrt(x), rtol=2.0**-7)


_BEFORE = [("Clip", np.float32(0.25), np.float32(4)), ("Max", np.float32(1e-6)), ("Pad", np.array([0, 1, 0, 2]))]


@pytest.mark.parametrize("before", _BEFORE, ids=lambda one: one[0])
def test_square_roots_after_a_lower_bound(rng, tmp_path, before):
    """The remedy that the refusal of a Sqrt names, and padding of numbers that are not negative."""
    b = Builder(["n", 6])
    b("Relu" if before[0] == "Pad" else "Neg")
    b(before[0], *map(np.asarray, before[1:]))
    b("Sqrt")
    path, x = b.save(tmp_path), rng.normal(size=(4, 6)).astype(bfloat16).astype(np.float32)
    np.testing.assert_allclose(tpu.load(path).predict(x), reference(path, x), rtol=2.0**-8)


@pytest.mark.parametrize("exponent", [1, 3, 4, 7, 8, -2, -3, np.full(6, 3.0)])
def test_whole_powers(rng, tmp_path, exponent):
    """Each product rounds to 8 bits: a power is right to as many such roundings as it has factors."""
    b = Builder(["n", 6])
    b("Neg")
    b("Pow", np.asarray(exponent, np.float32))
    path, x = b.save(tmp_path), rng.uniform(0.3, 3, (4, 6)).astype(bfloat16).astype(np.float32) * rng.choice([-1, 1], 6)
    x = x.astype(np.float32)
    tolerance = (np.abs(exponent).max() + 1) * 2.0**-8
    np.testing.assert_allclose(tpu.load(path).predict(x), reference(path, x), rtol=tolerance)


@pytest.mark.parametrize("exponent", [0, 9, 1.5, [2, 2, 2, 2, 2, 3], np.full((2, 6), 2.0)])
def test_other_powers_are_refused(rng, tmp_path, exponent):
    b = Builder([1, 6])
    b("Abs")
    b("Pow", np.asarray(exponent, np.float32), name="odd")
    refused(b.save(tmp_path), "operator Pow, node 'odd'", "not part of a function")


def test_logarithm_is_refused_with_a_remedy(rng, tmp_path):
    b = Builder(["n", 6])
    b("Clip", np.array(0.25, np.float32), np.array(4, np.float32))
    b("Log", name="odd")
    refused(b.save(tmp_path), "operator Log, node 'odd'", "no stage computes logarithms", "cut the model before it")


@pytest.mark.parametrize("written_out", [False, True])
def test_layer_normalization(rng, tmp_path, written_out):
    """Layer normalisation is accurate for values of any size. For values with a large common offset, or all equal, only the
    operator LayerNormalization is accepted."""
    b = Builder(["n", 12], opset=17)
    scale, bias = weights(rng, 12), weights(rng, 12)
    if written_out:
        centred = b.node("Sub", ["x", b.node("ReduceMean", ["x"], axes=[-1])])
        b.node("ReduceMean", [b.node("Pow", [centred, np.array(2, np.float32)])], axes=[-1])
        b.node("Div", [centred, b.node("Sqrt", [b("Add", np.array(1e-5, np.float32))])])
        b("Mul", scale)
        b("Add", bias)
    else:
        b("LayerNormalization", scale, bias)
    path, each = b.save(tmp_path), rng.normal(size=(300, 12))
    shift = 0 if written_out else 10.0 ** rng.uniform(-3, 3, (300, 1))
    x = np.concatenate([each * 10.0 ** rng.uniform(-15, 15, (300, 1)), each + shift, np.full((1, 12), 1000)]).astype(np.float32)
    x = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    model = tpu.load(path)
    assert np.abs(model.predict(x) - reference(path, x)).max() < 0.1
    assert model.compare(each.astype(np.float32)).error is None


def test_normalized_images(rng, tmp_path):
    """LayerNormalization over the last one, two or three axes gives the same results as onnxruntime, and over the batch axis it
    is refused."""
    for axis in (-1, 2, 1):
        b = Builder(["n", 3, 4, 5], opset=17)
        b("LayerNormalization", weights(rng, *(3, 4, 5)[axis - 1 if axis > 0 else axis :]), axis=axis)
        b("Conv", weights(rng, 2, 3, 2, 2))
        _check(rng, b.save(tmp_path), 3, 4, 5)
    b = Builder(["n", 3], opset=17)
    b("LayerNormalization", weights(rng, 3), axis=0, name="odd")
    refused(b.save(tmp_path), "operator LayerNormalization, node 'odd'", "batch")


@pytest.mark.slow
def test_division_on_the_core(rng, tmp_path):
    """The instruction-level model divides numbers of all sizes with exactly the golden model's bits."""
    b = Builder(["n", 2])
    b.node("Div", _columns(b))
    model, x = tpu.load(b.save(tmp_path)), _of_all_sizes(rng, 0)[::80]
    core = tpu.Config(n=16)
    np.testing.assert_array_equal(model.predict(x, "model", core=core), model.predict(x))


def test_refused(tmp_path):
    b = Builder(["n", 2])
    b("Div", np.array([1, 0], np.float32), name="odd")
    refused(b.save(tmp_path), "operator Div, node 'odd'", "infinite")
