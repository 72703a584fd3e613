"""Masks as exporters write them, before Softmax and elsewhere, against onnxruntime."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from onnx_models import Builder, close, refused, weights
from suites import slow

onnxruntime = pytest.importorskip("onnxruntime")
CORE = Config(n=4, training=True)
SIZE, DEPTH = 4, 4
LOWEST = float(np.finfo(np.float32).min)
CAUSAL = np.triu(np.ones((SIZE, SIZE), bool), 1)


def number(value):
    return np.array(value, np.float32)


def graph(pad=None, batch="n"):
    b = Builder([batch, SIZE, DEPTH], opset=17)
    if pad:
        b.inputs.append(helper.make_tensor_value_info("pad", pad, [batch, SIZE]))
    return b


def scores(b, rng, heads=2):
    """The products of queries and keys, (batch, heads, SIZE, SIZE)."""

    def projected(perm):
        b.node("MatMul", ["x", weights(rng, DEPTH, heads * DEPTH)])
        b("Reshape", np.array([0, SIZE, heads, DEPTH]))
        return b("Transpose", perm=perm)

    return b.node("MatMul", [projected([0, 2, 1, 3]), projected([0, 2, 3, 1])])


def finished(b, rng, heads=2):
    shares = b("Softmax", axis=-1)
    b.node("MatMul", ["x", weights(rng, DEPTH, heads * DEPTH)])
    b("Reshape", np.array([0, SIZE, heads, DEPTH]))
    b.node("MatMul", [shares, b("Transpose", perm=[0, 2, 1, 3])])
    b("Transpose", perm=[0, 2, 1, 3])
    b("Reshape", np.array([0, SIZE, heads * DEPTH]))
    return b


def compared(path, feeds, tolerance=0.08, on=("golden",)):  # large scores are rounded by a part of their differences
    model = tpu.load(path)
    right = tpu.Interpreter("onnxruntime")
    for place in on:
        run = model.run(feeds, on=place, **({} if place == "golden" else {"core": CORE}))
        assert not run.result.mismatched_bits
        close(run.output, model.run(feeds, on=right).output, tolerance)
    found = model.compare(feeds)
    assert found.error is None and found.rounding <= 1 and found.reading < 0.5
    return model


def additive(b, low):
    return b("Add", np.where(CAUSAL, number(low), number(0)))


def computed(b, low):
    """The mask of torch's scaled_dot_product_attention(is_causal=True): sizes from Shape, Trilu, and Where between constants."""
    last, sizes = b.last, b.node("Slice", [b.node("Shape", [b.last]), np.array([2]), np.array([4])])
    b.node("ConstantOfShape", [sizes], value=helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]))
    b("Trilu", upper=0)
    b("Cast", to=TensorProto.BOOL)
    return b.node("Add", [last, b("Where", ..., number(0), number(low))])


def ranged(b, low):
    last = b.last
    b.node("Range", [np.array(0), np.array(SIZE), np.array(1)])
    columns = b.node("Unsqueeze", [b.last, np.array([0])])
    rows = b.node("Unsqueeze", [b.nodes[-2].output[0], np.array([1])])
    later = b.node("Not", [b.node("LessOrEqual", [columns, rows])])
    return b.node("Where", [later, number(low), last])


def filled(b, low):
    return b("Where", CAUSAL[None, None], number(low), ...)


def kept(b, low):
    return b("Where", ~CAUSAL, ..., np.full((SIZE, SIZE), low, np.float32))


@pytest.mark.parametrize("low", [-np.inf, LOWEST, -1e9, -1e4])
@pytest.mark.parametrize("mask", [additive, computed, ranged, filled, kept])
def test_causal(rng, tmp_path, mask, low):
    b = graph()
    scores(b, rng, 1)
    mask(b, low)
    path, x = finished(b, rng, 1).save(tmp_path), rng.normal(size=(2, SIZE, DEPTH)).astype(np.float32)
    model = compared(path, {"x": x})
    later = x.copy()
    later[:, -1] += 3  # no position sees a later one
    np.testing.assert_array_equal(model.predict(later)[:, :-1], model.predict(x)[:, :-1])


def test_bits(rng, tmp_path):
    """Masks of minus infinity give no NaN on the core's model, with heads side by side."""
    b = graph()
    scores(b, rng)
    filled(b, -np.inf)
    path = finished(b, rng).save(tmp_path)
    compared(path, {"x": rng.normal(size=(2, SIZE, DEPTH)).astype(np.float32)}, on=("golden", "model"))


def padding_of(b, kind, low):
    """A padding mask (batch, 1, 1, SIZE), 0 or `low`, of an input in which True means padding, or in float32 0."""
    if kind == TensorProto.FLOAT:
        b.node("Sub", [number(1), "pad"])
        b("Mul", number(max(low, LOWEST)))
    elif kind == TensorProto.INT64:
        b.node("Cast", ["pad"], to=TensorProto.BOOL)
        b("Not")
        b("Where", ..., number(0), number(low))
    else:
        b.node("Where", ["pad", number(low), number(0)])
    return b("Reshape", np.array([0, 1, 1, SIZE]))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL])
@pytest.mark.parametrize("low", [-np.inf, LOWEST, -1e9])
def test_padding(rng, tmp_path, kind, low):
    """A mask that is an input, with a causal one. Integers other than 0 are true."""
    b = graph(kind)
    products = scores(b, rng)
    b.node("Add", [products, padding_of(b, kind, low)])
    additive(b, -np.inf)
    path = finished(b, rng).save(tmp_path)
    x, pad = rng.normal(size=(3, SIZE, DEPTH)).astype(np.float32), np.zeros((3, SIZE), np.int64)
    pad[1, 2:], pad[2, 1] = 1 if kind != TensorProto.INT64 else 300, 1
    pad = (1 - pad if kind == TensorProto.FLOAT else pad).astype(helper.tensor_dtype_to_np_dtype(kind))
    model = compared(path, {"x": x, "pad": pad})
    other = x.copy()
    other[1, 2:] -= 5  # nobody sees what is padded
    np.testing.assert_array_equal(model.predict({"x": other, "pad": pad})[1, :2], model.predict({"x": x, "pad": pad})[1, :2])


def test_fill_by_an_input(rng, tmp_path):
    """masked_fill of scores by an input, and by And and Or of it with constants."""
    for operator in (None, "And", "Or"):
        b = graph(TensorProto.BOOL)
        products = scores(b, rng)
        b.node("Reshape", ["pad", np.array([0, 1, 1, SIZE])])
        if operator:
            b(operator, np.array([False, True, False, True]))
        b.node("Where", [b.last, number(-np.inf), products])
        pad = np.array([[False] * SIZE, [False, True, True, False]])
        compared(finished(b, rng).save(tmp_path), {"x": rng.normal(size=(2, SIZE, DEPTH)).astype(np.float32), "pad": pad})


def test_where_without_softmax(rng, tmp_path):
    """Checks Where with a constant condition: numbers, two tensors, and broadcasting."""
    chosen = rng.random((SIZE, DEPTH)) < 0.5
    for make in (
        lambda b: b("Where", chosen, ..., number(2.5)),
        lambda b: b("Where", chosen[:, :1], weights(rng, 1, DEPTH), ...),
        lambda b: b.node("Where", [chosen, b.last, b.node("Relu", ["x"])]),
    ):
        b = graph()
        b("Tanh")
        make(b)
        path = b.save(tmp_path)
        compared(path, {"x": rng.normal(size=(3, SIZE, DEPTH)).astype(np.float32)})


def test_one_factor_moves_nothing(rng, tmp_path):
    """A factor of the queries in a common dense layer, as in torch's scaled_dot_product_attention, adds no stage."""

    def stages(factor):
        b = graph()
        b.node("MatMul", ["x", weights(rng, DEPTH, 3 * DEPTH)])
        queries, keys, _ = (
            b.node("Slice", [b.nodes[0].output[0], np.array([DEPTH * k]), np.array([DEPTH * (k + 1)]), np.array([2])])
            for k in range(3)
        )
        keys = b.node("Transpose", [keys], perm=[0, 2, 1])
        if factor:
            queries, keys = (b.node("Mul", [one, number(0.7)]) for one in (queries, keys))
        b.node("MatMul", [queries, keys])
        b("Softmax", axis=-1)
        path = b.save(tmp_path)
        return len(compared(path, {"x": rng.normal(size=(2, SIZE, DEPTH)).astype(np.float32)}).network.stages)

    assert stages(True) == stages(False)


def test_refusals(rng, tmp_path):
    """Minus infinity may only meet Softmax."""
    for after in ("Tanh", "Neg", "ReduceMax", None):
        b = graph()
        scores(b, rng)
        filled(b, -np.inf)
        if after:
            b(after, **({"axes": [3]} if after == "ReduceMax" else {}))
        refused(b.save(tmp_path), "infinite values of a mask")
    b = graph(TensorProto.BOOL)
    values = b.node("MatMul", ["x", weights(rng, DEPTH, SIZE)])
    b.node("Where", [b.node("Reshape", ["pad", np.array([0, 1, SIZE])]), number(-np.inf), values])
    refused(b.save(tmp_path), "the result has infinite values of a mask")
    b = graph(TensorProto.INT64)
    b.node("Where", [b.node("Equal", ["pad", np.array(300)]), number(0), "x"])
    refused(b.save(tmp_path), "Equal", "compares integers with 300")


@pytest.mark.parametrize("by", ["IsNaN", "Where"])
def test_zero_in_place_of_completely_hidden_rows_is_refused(rng, tmp_path, by):
    """A constant mask hides a whole row, and the model replaces its shares (NaN) by 0. The core would multiply NaN by 0."""
    b = graph()
    scores(b, rng)
    hidden = np.zeros((SIZE, SIZE), np.float32)
    hidden[1] = -np.inf
    b("Add", hidden)
    shares = b("Softmax", axis=-1)
    condition = b("IsNaN") if by == "IsNaN" else np.isneginf(hidden[:, :1])
    b.node("Where", [condition, number(0), shares])
    refused(b.save(tmp_path), by, "rows that a constant mask hides completely")


def test_zero_in_place_of_rows_that_an_input_hides(rng, tmp_path):
    """An input hides values by Where with minus infinity. Rows that it hides completely are NaN, which the model replaces by 0;
    any other number in their place is refused."""
    for number_, right in ((0, True), (1, False)):
        b = Builder(["n", SIZE, SIZE], opset=17)
        b.inputs.append(helper.make_tensor_value_info("kept", TensorProto.BOOL, ["n", 1, SIZE]))
        b("MatMul", weights(rng, SIZE, SIZE))
        b.node("Where", ["kept", b.last, number(-np.inf)])
        shares = b("Softmax", axis=-1)
        b.node("Where", [b("IsNaN"), number(number_), shares])
        path, kept = b.save(tmp_path), rng.random((3, 1, SIZE)) < 0.5
        if not right:
            refused(path, "after IsNaN, only 0 in place of the Softmax itself is supported")
            continue
        kept[0], kept[1] = False, True
        feeds = {"x": rng.normal(size=(3, SIZE, SIZE)).astype(np.float32), "kept": kept}
        want = onnxruntime.InferenceSession(path).run(None, feeds)[0]
        assert not want[0].any()
        close(tpu.load(path).predict(feeds), want)


def test_minus_infinity_beside_other_low_numbers_is_refused(rng, tmp_path):
    """The number in place of minus infinity is above -3.4e38, so a row with both would give its shares to the wrong values."""
    for first, second in ((-3.4028235e38, -np.inf), (-np.inf, -3.4028235e38), (-np.inf, -1e30)):
        b = Builder(["n", SIZE, SIZE], opset=17)
        for name in ("kept", "hidden"):
            b.inputs.append(helper.make_tensor_value_info(name, TensorProto.BOOL, ["n", 1, SIZE]))
        b("MatMul", weights(rng, SIZE, SIZE))
        b.node("Where", ["kept", b.last, number(first)])
        b.node("Where", ["hidden", number(second), b.last])
        b("Softmax", axis=-1, name="end")
        path = b.save(tmp_path)
        if second != -1e30:
            refused(path, "node 'end'", "minus infinity and numbers as low as -3.39e+38", "use minus infinity for both")
            continue
        kept, hides = rng.random((4, 1, SIZE)) < 0.5, rng.random((4, 1, SIZE)) < 0.5
        kept[:, :, 0], hides[:, :, 0], kept[0], hides[0] = True, False, False, True
        hides[0, :, 0], kept[0, :, 1] = True, True
        feeds = {"x": rng.normal(size=(4, SIZE, SIZE)).astype(np.float32), "kept": kept, "hidden": hides}
        close(tpu.load(path).predict(feeds), onnxruntime.InferenceSession(path).run(None, feeds)[0])


@pytest.mark.parametrize("low", [-1e9, *slow(-1e4, -1e6, -1e30)])
@pytest.mark.parametrize("form", ["Where", "Not", "product", "two constants"])
def test_large_negative_number_hides_no_digits(rng, tmp_path, form, low):
    """Values keep their digits where a mask of an input adds a large number elsewhere: -1e9 + values + 1e9 has none left."""
    b = graph(TensorProto.BOOL)
    pad = b.node("Unsqueeze", ["pad", np.array([1])])
    if form == "Where":
        b.node("Where", [pad, "x", number(low)])
    elif form == "Not":
        b.node("Where", [b.node("Not", [pad]), number(low), "x"])
    elif form == "product":
        hidden = b.node("Sub", [number(1), b.node("Cast", [pad], to=TensorProto.FLOAT)])
        b.node("Add", ["x", b.node("Mul", [hidden, number(low)])])
    else:
        b.node("Add", ["x", b.node("Where", [pad, np.linspace(-1, 1, DEPTH).astype(np.float32), number(low)])])
    b("Softmax", axis=-1)
    b("Mul", number(2))
    pad = rng.random((3, SIZE)) < 0.5
    pad[:, :2] = True, False
    compared(b.save(tmp_path), {"x": rng.normal(size=(3, SIZE, DEPTH)).astype(np.float32), "pad": pad}, on=("golden", "model"))
