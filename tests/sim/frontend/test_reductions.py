"""Tests of maxima and minima over axes, against onnxruntime."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from onnx_models import Builder, integers, reference, refused


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_extremes_along_an_axis_are_exact(rng, tmp_path, operator):
    """The numbers have both signs. Extremes of extremes, and negative axes."""
    for axes, keep in ([2], 0), ([-1], 1), ([2, 3], 0):
        b = Builder([1, 2, 5, 4])
        b("Add", integers(rng, 1, 2, 5, 4))
        b(operator, axes=axes, keepdims=keep)
        if axes == [2]:
            b(operator, axes=[2], keepdims=0)
        path, x = b.save(tmp_path), integers(rng, 1, 2, 5, 4)
        np.testing.assert_array_equal(tpu.load(path).predict(x, check=False), reference(path, x))


def test_range_of_each_channel(rng, tmp_path):
    """The difference of maximum and minimum, by which models normalise."""
    b = Builder([1, 3, 4, 4])
    top = b.node("ReduceMax", ["x"], axes=[2, 3], keepdims=1)
    b.node("Sub", [top, b.node("ReduceMin", ["x"], axes=[2, 3], keepdims=1)])
    path, x = b.save(tmp_path), integers(rng, 1, 3, 4, 4)
    np.testing.assert_array_equal(tpu.load(path).predict(x, check=False), reference(path, x))


@pytest.mark.parametrize(
    "shape, axes",
    [
        ((1, 7, 5, 4), [1]),
        ((1, 21, 3, 2), [-3]),
        ((2, 6, 5), [1]),
        ((3, 9), [-1]),
        ((1, 7, 5, 4), [1, 2]),
        ((1, 5, 3, 4), [1, 2, 3]),
        ((2, 1, 4, 3), [1]),
    ],
)
@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_extremes_over_channels_are_exact(rng, tmp_path, operator, shape, axes):
    """Channels in one block and in several, with and without height and width, and an axis of one channel."""
    for keep in (0, 1):
        b = Builder(["n", *shape[1:]])
        b("Add", integers(rng, 1, *shape[1:]))
        b(operator, axes=axes, keepdims=keep)
        path, x = b.save(tmp_path), integers(rng, *shape)
        np.testing.assert_array_equal(tpu.load(path).predict(x, check=False), reference(path, x))


def test_core_computes_extremes_over_channels(rng, tmp_path):
    b = Builder([1, 9, 4, 3])
    b("Conv", integers(rng, 9, 9, 1, 1, limit=1))
    b("ReduceMin", axes=[1])
    model, x = tpu.load(b.save(tmp_path), effort="fast"), integers(rng, 1, 9, 4, 3)
    np.testing.assert_array_equal(model.predict(x, "model", core=tpu.Config(n=4)), reference(tmp_path / "model.onnx", x))


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin", "ReduceSum"])
def test_reductions_of_many_axes(rng, tmp_path, operator):
    """Neighbouring axes are joined, as for Maxout; more than three groups of axes are refused."""
    for axes in ([2], [-1], [3, 4], [1, 2], [2, 4]):
        b = Builder(["n", 6, 5, 4], opset=18)
        b("Add", integers(rng, 1, 6, 5, 4))
        b("Reshape", np.array([0, 3, 2, 5, 4]))
        b(operator, np.array(axes), keepdims=0)
        path, x = b.save(tmp_path), integers(rng, 2, 6, 5, 4)
        if axes == [2, 4] and operator != "ReduceSum":
            refused(path, "up to three axes of a sample are supported; join axes by a Reshape before it")
            continue
        np.testing.assert_array_equal(tpu.load(path).predict(x, check=False), reference(path, x))
