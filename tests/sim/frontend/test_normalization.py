"""Tests of normalisations (`sim/frontend/operators/normalization.py`, `norm_stages.py`, `sim/frontend/formulas/norms.py`)
against binary64 and onnxruntime. A normalisation in small operators must match the operator bit for bit. Similar graphs must not
be recognised as normalisations."""

import numpy as np
import onnx
import pytest

from amaranth_tpu.scripts.random_models.perturbed import first_deviation
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.load import load_network
from onnx_models import Builder, reference, refused, weights
from suites import slow

ONE, EPSILON = np.ones(1, np.float32), np.array(1e-5, np.float32)


def _bfloat16(x):
    return (np.float32(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _error(got, want):
    return np.sqrt(np.square(np.float64(got) - want).mean() / np.square(np.float64(want)).mean())


def _exact(x, axes, epsilon, centred=True):
    x = np.float64(x)
    values = x - x.mean(axes, keepdims=True) if centred else x
    return values / np.sqrt(np.square(values).mean(axes, keepdims=True) + epsilon)


def _operator(name, shape, opset=23, **attributes):
    b = Builder(["n", *shape], opset=opset)
    count = {"LayerNormalization": shape[-1], "RMSNormalization": shape[-1]}.get(name, shape[0])
    b(name, np.ones(count, np.float32), *([] if name[0] == "R" else [np.zeros(count, np.float32)]), **attributes)
    return b


_LAYER, _RMS, _INSTANCE, _GROUP = "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"


@pytest.mark.parametrize(
    "name,shape",
    [
        (_LAYER, (5, 24)),  # centred by one dense layer
        (_LAYER, (3, 96)),  # by a mean in two parts
        (_RMS, (5, 24)),
        (_INSTANCE, (6, 4, 5)),
        (_GROUP, (6, 4, 5)),
        *slow((_LAYER, (3, 768)), (_RMS, (3, 768)), (_INSTANCE, (3, 32, 32)), (_GROUP, (32, 8, 8))),
    ],
)
def test_error_is_a_rounding_for_values_of_any_size(rng, tmp_path, name, shape):
    """The error of a normalisation is about 0.3 % of the result. This holds for values of 1e-12 and 1e12, and for a mean of 8
    standard deviations."""
    extra, axes, centred = {}, -1, name != _RMS
    if name == _GROUP:
        extra = {"num_groups": 2}
    for size, mean in ((1, 0), (1e-12, 0), (1e12, 0), (1, 8)):
        x = _bfloat16((rng.normal(size=(30, *shape)) + mean) * size)
        epsilon = 1e-5 * min(1, size) ** 2
        b = _operator(name, shape, epsilon=epsilon, **extra)
        if shape[1:] and name in (_INSTANCE, _GROUP):  # after a layer, so that the channels are channels
            b = Builder(["n", *shape], opset=23)
            b("Conv", np.eye(shape[0], dtype=np.float32)[..., None, None])
            b(name, np.ones(shape[0], np.float32), np.zeros(shape[0], np.float32), epsilon=epsilon, **extra)
        got = tpu.load(b.save(tmp_path)).predict(x)
        rows = x.reshape(30, 2, -1) if name == _GROUP else x.reshape(30, shape[0], -1) if name == _INSTANCE else x
        want = _exact(rows, axes, epsilon, centred).reshape(got.shape)
        assert 0.001 < _error(got, want) < 0.004, (size, mean)


def _written(b, *, square="Pow", divide="Div", centred=True, keep=1, twice=False, epsilon=EPSILON, axes=(-1,), shape=None):
    x = b.last

    def mean(value):
        made = b.node("ReduceMean", [value, np.array(axes)], keepdims=keep)
        return made if keep else b.node("Reshape", [made, np.array(shape)])

    def centre():
        return b.node("Sub", [x, mean(x)]) if centred else x

    values = centre()
    inner = centre() if twice else values
    squares = b.node("Pow", [inner, np.array(2, np.float32)]) if square == "Pow" else b.node("Mul", [inner, inner])
    variance = mean(squares)
    variance = b.node("Add", [epsilon, variance]) if epsilon is not None else variance
    if divide == "Pow":
        return b.node("Mul", [values, b.node("Pow", [variance, np.array(-0.5, np.float32)])])
    root = b.node("Sqrt", [variance]) if divide != "Pow 0.5" else b.node("Pow", [variance, np.array(0.5, np.float32)])
    if divide == "Reciprocal":
        return b.node("Mul", [b.node("Reciprocal", [root]), values])
    if divide == "1 /":
        return b.node("Mul", [values, b.node("Div", [ONE, root])])
    return b.node("Div", [values, root])


_FORMS = [
    {},
    {"square": "Mul", "divide": "Reciprocal"},
    {"divide": "1 /", "twice": True},
    {"keep": 0, "shape": (-1, 6, 1), "divide": "Pow"},
    {"divide": "Pow 0.5", "epsilon": np.full((1, 1, 1), 1e-5, np.float32)},
    {"centred": False},
    {"centred": False, "square": "Mul", "divide": "Reciprocal"},
]


@pytest.mark.parametrize("form", _FORMS)
def test_written_out_forms_have_the_bits_of_the_operator(rng, tmp_path, form):
    scale, bias, x = weights(rng, 16), weights(rng, 16), _bfloat16(rng.normal(size=(4, 6, 16)))
    first = weights(rng, 16, 16)

    def built(written):
        b = Builder(["n", 6, 16], opset=23)
        b("MatMul", first)
        if written:
            _written(b, **form)
            b("Mul", scale)
        else:
            b("LayerNormalization" if form.get("centred", True) else "RMSNormalization", scale)
        b("Add", bias)
        b("MatMul", first)
        return b.save(tmp_path)

    path = built(False)
    operator, stages = tpu.load(path).predict(x), len(load_network(path).stages)
    path = built(True)
    np.testing.assert_array_equal(tpu.load(path).predict(x), operator)
    assert len(load_network(path).stages) == stages
    assert _error(operator, reference(path, x)) < 0.006


def test_instance_normalization_written_out(rng, tmp_path):
    """Instance normalisation in small operators is recognised, over the positions of an image and over single channels of a
    position."""
    x, kernel = _bfloat16(rng.normal(size=(3, 4, 3, 5))), weights(rng, 4, 4, 1, 1)
    found = {}
    for axes in ((2, 3), (1,), None):
        b = Builder(["n", 4, 3, 5], opset=23)
        b("Conv", kernel)
        if axes is None:
            b("InstanceNormalization", np.ones(4, np.float32), np.zeros(4, np.float32))
        else:
            _written(b, axes=axes)
        path = b.save(tmp_path)
        found[axes] = tpu.load(path).predict(x)
        assert first_deviation(onnx.load(path), {"x": x}, {b.last: found[axes]}) is None
    np.testing.assert_array_equal(found[2, 3], found[None])


def _epsilon_outside(b):
    x, root = b.last, None
    values = b.node("Sub", [x, b.node("ReduceMean", [x, np.array([-1])])])
    root = b.node("Sqrt", [b.node("Add", [b.node("ReduceMean", [b.node("Mul", [values, values]), np.array([-1])]), EPSILON])])
    b.node("Div", [values, b.node("Add", [root, np.array(0.5, np.float32)])])


def _with(first, second, third, divided="centred", squared="centred", keep=1):
    """Returns a function that builds a graph similar to a normalisation. The arguments are the axes of the mean, of the mean
    inside the variance, and of the variance, and the values that are divided."""

    def build(b):
        x = b.last

        def mean(value, axis):
            return b.node("ReduceMean", [value, np.array([axis])], keepdims=keep)

        centred = b.node("Sub", [x, mean(x, first)])
        other = b.node("Sub", [x, mean(x, second)]) if second != first else centred
        inner = {"centred": other, "x": x}[squared]
        root = b.node("Sqrt", [b.node("Add", [mean(b.node("Mul", [inner, inner]), third), EPSILON])])
        b.node("Div", [{"centred": centred, "x": x}[divided], root])

    return build


_SIMILAR = {
    "epsilon outside of the root": _epsilon_outside,
    "mean over another axis": _with(1, -1, -1),
    "variance about another mean": _with(-1, 1, -1),
    "variance over another axis": _with(-1, -1, 1),
    "all over the other axis": _with(1, 1, 1),
    "divides x itself": _with(-1, -1, -1, divided="x"),
    "squares of x itself": _with(-1, -1, -1, squared="x"),
    "no axis kept, so rows meet columns": _with(-1, -1, -1, keep=0),
    "a factor for each position": lambda b: b.node("Mul", [_written(b), np.arange(1, 9, dtype=np.float32).reshape(8, 1)]),
    "another factor for each value": lambda b: b.node("Mul", [_written(b), np.eye(8, dtype=np.float32) + 1]),
    "an epsilon for each position": lambda b: _written(b, epsilon=np.arange(1, 9, dtype=np.float32).reshape(8, 1)),
    "means of rows for columns": lambda b: _written(b, keep=0, shape=(-1, 1, 8)),
    "epsilon 0": lambda b: _written(b, epsilon=None),
    "a negative epsilon": lambda b: _written(b, epsilon=np.array(-1e-3, np.float32)),
}


@pytest.mark.parametrize("name", _SIMILAR)
def test_similar_graphs_are_computed_right_or_refused(rng, tmp_path, name):
    """Graphs that are similar to normalisations are computed correctly or refused. Rows and columns have the same size, so that
    a wrong axis does not change the shapes."""
    b = Builder(["n", 8, 8], opset=23)
    b("MatMul", weights(rng, 8, 8))
    _SIMILAR[name](b)
    path, x = b.save(tmp_path), _bfloat16(rng.normal(1, 1, size=(3, 8, 8)))
    try:
        got = tpu.load(path, strict=True).predict(x)
    except tpu.ModelError as error:
        assert "operator" in str(error) and "node" in str(error)
        assert name in ("no axis kept, so rows meet columns", "a negative epsilon", "an epsilon for each position")
    else:
        assert _error(got, reference(path, x)) < 0.012


def test_heads_are_normalised_by_themselves(rng, tmp_path):
    """Channels are normalised in groups, like the queries and keys of some transformers."""
    b = Builder(["n", 6, 24], opset=23)
    b("MatMul", weights(rng, 24, 24))
    b("Reshape", np.array([-1, 6, 3, 8]))
    b("RMSNormalization", 1 + weights(rng, 8))
    path, x = b.save(tmp_path), _bfloat16(rng.normal(size=(3, 6, 24)))
    assert _error(tpu.load(path).predict(x), reference(path, x)) < 0.008
    assert all(stage.size == (1, 6) for stage in load_network(path).stages)  # no copies


def test_refused_normalizations(rng, tmp_path):
    b = Builder(["n", 6, 4], opset=23)
    b("GroupNormalization", np.ones(6, np.float32), np.ones(6, np.float32), num_groups=4, name="odd")
    refused(b.save(tmp_path), "operator GroupNormalization, node 'odd'", "num_groups of 4")
    b = Builder(["n", 6], opset=23)
    b("InstanceNormalization", np.ones(6, np.float32), np.ones(6, np.float32), name="odd")
    refused(b.save(tmp_path), "operator InstanceNormalization, node 'odd'", "three axes")
    b = Builder(["n", 6, 4], opset=23)
    b("RMSNormalization", np.ones(4, np.float32), axis=0, name="odd")
    refused(b.save(tmp_path), "operator RMSNormalization, node 'odd'", "batch")
    b = Builder(["n", 6, 4], opset=23)
    b("RMSNormalization", np.ones(3, np.float32), name="odd")
    refused(b.save(tmp_path), "operator RMSNormalization, node 'odd'", "does not fit")
    b = Builder(["n", 4, 4], opset=23)
    b.node("RMSNormalization", [weights(rng, 1, 4, 4), "x"], name="odd")
    refused(b.save(tmp_path), "operator RMSNormalization, node 'odd'", "constant")
