"""Tests of tensors that are written out with a position for each pixel, against onnxruntime (`sim/frontend/index/fine.py`)."""

import tracemalloc

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.index import phases, views
from amaranth_tpu.sim.ir.errors import ModelError
from onnx_models import Builder, integers, reference, weights


@pytest.fixture
def always_fine(monkeypatch):
    """Writes every fine tensor out that a convolution or a Concat reads. Returns the list of written tensors."""
    written = []

    def counted(*arguments, original=views.written_out):
        written.append(original(*arguments))
        return written[-1]

    monkeypatch.setattr(phases, "_MOST_WEIGHTS", 0)
    monkeypatch.setattr(phases, "_MOST_CHANNELS", 0)
    monkeypatch.setattr(views, "written_out", counted)
    return written


def upsampled(rng, b, channels):
    """Appends an upsampling operator with 2 or 3 pixels for each position along both axes, or along one. Returns the new number
    of channels, and the (factor of the height, factor of the width)."""
    kind, factors = rng.integers(3), [int(v) for v in rng.choice([(2, 2), (3, 1), (1, 2), (3, 2)])]
    if kind == 0:
        way = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        b.node("Resize", [b.last, "", np.array([1, 1, *factors], np.float32)], **way)
        return channels, factors
    if kind == 1 and channels % 4 == 0:
        b("DepthToSpace", blocksize=2, mode=str(rng.choice(["DCR", "CRD"])))
        return channels // 4, [2, 2]
    kernel = [f + int(rng.integers(0, 2)) for f in factors]
    weights = integers(rng, channels, 4, *kernel, limit=1)
    b("ConvTranspose", weights, integers(rng, 4), strides=factors, pads=[0, 0, *(k - f for k, f in zip(kernel, factors))])
    return 4, factors


def random_network(rng):
    channels, size = 4, [int(v) for v in rng.integers(1, 6, 2)]
    b = Builder(["n", channels, *size])
    start = b("Conv", integers(rng, channels, channels, 1, 1, limit=1))
    for _ in range(rng.integers(1, 3)):
        if rng.integers(2):
            b("Relu")
        channels, factors = upsampled(rng, b, channels)
        size = [have * factor for have, factor in zip(size, factors)]
        if rng.integers(2):
            b("Conv", integers(rng, channels, channels, 3, 3, limit=1), pads=[1] * 4)
    if rng.integers(2):  # concatenated with another tensor of the same size, in either order
        last = b.last
        other = b.node("Resize", [start, "", "", np.array([1, 4, *size])], coordinate_transformation_mode="asymmetric",
                       nearest_mode="floor")  # fmt: skip
        b.node("Concat", [last, other] if rng.integers(2) else [other, last], axis=1)
        channels += 4
    kernel, stride, pads = rng.integers(1, 4, 2), rng.integers(1, 4, 2), rng.integers(0, 2, 4)
    groups = int(rng.choice([one for one in (1, 2, channels) if channels % one == 0]))
    w = integers(rng, 2 * groups, channels // groups, *kernel, limit=1)
    b("Conv", w, integers(rng, len(w)), strides=stride.tolist(), pads=pads.tolist(), group=groups, name="after")
    return b


@pytest.mark.parametrize("rounds", [6, pytest.param(150, marks=pytest.mark.slow)])
def test_written_out_tensors_have_the_values_of_onnx(rng, tmp_path, always_fine, rounds):
    accepted = 0
    while accepted < rounds:
        b = random_network(rng)
        path, shape = b.save(tmp_path), [d.dim_value for d in b.inputs[0].type.tensor_type.shape.dim[1:]]
        x = integers(rng, 2, *shape, limit=1)
        try:
            wanted = reference(path, x)
        except Exception as error:  # a window that does not fit
            assert "onnxruntime" in type(error).__module__
            continue
        try:
            model = tpu.load(path)
        except ModelError as error:
            assert "node '" in str(error), error
            continue
        accepted += 1
        exact = np.abs(wanted).max() < 256 and all(abs(value).max() <= 256 for value in model.trace(x).values())
        if exact:
            np.testing.assert_array_equal(model.predict(x, check=False), wanted, err_msg=str(path))
        else:
            assert model.compare(x).error is None
    assert any(one is not None for one in always_fine)
    model.predict(x[:1], on="model", core=tpu.Config(n=4))  # the bits of the compiled program


def test_many_channels_are_written_out_by_themselves(rng, tmp_path):
    """A Resize to eight times the size beside finer tensors, as in text detection."""
    b = Builder(["n", 3, 16, 16])
    fine = b("Conv", weights(rng, 24, 3, 3, 3), pads=[1] * 4)
    b("Conv", weights(rng, 24, 24, 8, 8), strides=[8, 8])
    b.node("Resize", [b.last, "", np.array([1, 1, 8, 8], np.float32)], mode="nearest")
    b.node("Concat", [b.last, fine], axis=1)
    b("Conv", weights(rng, 8, 48, 3, 3), pads=[1] * 4)
    path = b.save(tmp_path)
    model = tpu.load(path)
    assert sum(model.network.macs) < 256 * 48 * 9 * 48
    assert model.compare(rng.random((2, 3, 16, 16), np.float32)).error is None


def test_a_vector_in_many_columns_is_not_copied_by_weights(rng, tmp_path):
    """A vector of 8,192 values in 128 columns took a matrix of weights for each column, 540 MB; strides copy it."""
    b = Builder([1, 2])
    b("Gemm", integers(rng, 2, 8192))
    b("Reshape", np.array([1, 64, 128]))
    b("ReduceMin", axes=[2])
    path, x = b.save(tmp_path), integers(rng, 1, 2)
    tracemalloc.start()
    try:
        model = tpu.load(path)
        assert tracemalloc.get_traced_memory()[1] < 80e6
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(model.predict(x), reference(path, x))
