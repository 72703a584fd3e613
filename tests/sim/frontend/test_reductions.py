"""Tests of maxima and minima over axes, against onnxruntime."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from onnx_models import Builder, integers, reference

pytest.importorskip("onnxruntime")


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
