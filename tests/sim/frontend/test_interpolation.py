"""Tests of Resize and Upsample by linear interpolation, against onnxruntime (`sim/frontend/operators/interpolation.py`)."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.operators.interpolation import COORDINATES
from onnx_models import Builder, integers, reference, refused, weights
from suites import slow

FLOAT = np.float32
TOLERANCE = 2.0**-6  # a few roundings to bfloat16, of operands up to the largest


def resize(b, factors=None, sizes=None, **attributes):
    ends = [np.array(factors, FLOAT)] if sizes is None else ["", np.array(sizes)]
    return b.node("Resize", [b.last, "", *ends], name="resize", mode="linear", **attributes)


def agree(b, folder, rng, *shape):
    path, x = b.save(folder), rng.normal(size=(2, *shape)).astype(FLOAT)
    got, want = tpu.load(path).predict(x), reference(path, x)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=TOLERANCE * np.abs(x).max())


FACTORS = [[2, 2], [3, 1], [1.5, 2.5], [0.5, 0.5], *slow([4, 3], [0.75, 2], [8, 8])]


@pytest.mark.parametrize("factors", FACTORS, ids=str)
@pytest.mark.parametrize("mode", COORDINATES)
def test_modes_and_factors(rng, tmp_path, mode, factors):
    """Growing and shrinking, by whole and other factors."""
    b = Builder(["n", 3, 5, 4])
    b("Conv", integers(rng, 3, 3, 1, 1, limit=1))
    resize(b, (1, 1, *factors), coordinate_transformation_mode=mode)
    if mode == "align_corners" and factors[0] * 5 % 1:
        refused(b.save(tmp_path), "node 'resize'", "interpreters read differently; give its sizes")
        return
    agree(b, tmp_path, rng, 3, 5, 4)


@pytest.mark.parametrize("size", [(7, 9), (1, 1), (1, 8), (5, 4)], ids=str)
@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "pytorch_half_pixel"])
def test_sizes(rng, tmp_path, mode, size):
    b = Builder([2, 3, 5, 4])
    b("Conv", integers(rng, 3, 3, 1, 1, limit=1))
    resize(b, sizes=(2, 3, *size), coordinate_transformation_mode=mode)
    agree(b, tmp_path, rng, 3, 5, 4)


def test_whole_factors_of_integers_are_exact(rng, tmp_path):
    """Quarters of small integers are bfloat16 numbers, so nothing is rounded."""
    b = Builder(["n", 2, 4, 3])
    b("Conv", integers(rng, 3, 2, 1, 1, limit=1))
    resize(b, (1, 1, 2, 2))
    path, x = b.save(tmp_path), integers(rng, 2, 2, 4, 3, limit=2)
    np.testing.assert_array_equal(tpu.load(path).predict(x), reference(path, x))


def _mirrored(b, rng):
    b("Conv", integers(rng, 3, 3, 1, 1, limit=1))
    b("Slice", *(np.array([v]) for v in (-1, -99, 2, -1)))


def _next_to_nearest(b, rng):
    factors = np.array([1, 1, 2, 2], FLOAT)
    b.node("Resize", ["x", "", factors], coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _pooled(b, rng):
    b("GlobalAveragePool")


@pytest.mark.parametrize("before", [_mirrored, _next_to_nearest, _pooled])
def test_operands_of_other_layouts(rng, tmp_path, before):
    b = Builder(["n", 3, 5, 4])
    before(b, rng)
    resize(b, (1, 1, 3, 2), coordinate_transformation_mode="align_corners")
    b("Conv", weights(rng, 2, 3, 2, 2))
    agree(b, tmp_path, rng, 3, 5, 4)


def test_channels_last(rng, tmp_path):
    b = Builder([2, 5, 4, 3])
    b("Transpose", perm=[0, 3, 1, 2])
    b("Transpose", perm=[0, 2, 3, 1])
    resize(b, (1, 2, 3, 1))
    agree(b, tmp_path, rng, 5, 4, 3)


@pytest.mark.parametrize("opset", [9, 10])
def test_early_operator_sets_are_asymmetric(rng, tmp_path, opset):
    b = Builder(["n", 3, 5, 4], opset=opset)
    b("Relu")
    b("Upsample" if opset == 9 else "Resize", np.array([1, 1, 2, 3], FLOAT), mode="linear")
    agree(b, tmp_path, rng, 3, 5, 4)


def test_core_interpolates(rng, tmp_path):
    b = Builder([1, 3, 4, 3])
    b("Conv", weights(rng, 5, 3, 1, 1))
    resize(b, (1, 1, 2, 1.5))
    b("Relu")
    model, x = tpu.load(b.save(tmp_path), effort="fast"), rng.normal(size=(1, 3, 4, 3)).astype(FLOAT)
    np.testing.assert_array_equal(model.predict(x, "model", core=tpu.Config(n=4)), model.predict(x))
