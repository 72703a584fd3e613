"""Tests of calibration: weights are rounded so that sums keep their means over samples."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.fusion.calibration import round_windows
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from onnx_models import Builder, reference


def _dense(b, rng):
    b("Gemm", rng.standard_normal((40, 6)).astype(np.float32), rng.standard_normal(6).astype(np.float32))


def _grouped(b, rng):
    b("Reshape", np.array([-1, 4, 5, 2]))
    b("Conv", rng.standard_normal((6, 2, 3, 2)).astype(np.float32), group=2, strides=[2, 1])
    b("Flatten")


def _two_layers(b, rng):
    b("MatMul", rng.standard_normal((40, 30)).astype(np.float32))
    b("Relu")
    b("MatMul", rng.standard_normal((30, 60)).astype(np.float32))


@pytest.mark.parametrize("build, channels, gain", [(_dense, 6, 100), (_grouped, 6, 4), (_two_layers, 60, 2)])
def test_sums_keep_their_means(tmp_path, rng, build, channels, gain):
    """Inputs are small integers with a mean, so that the weights alone are rounded. The error of the means shrinks by `gain`."""
    b = Builder([None, 40])
    build(b, rng)
    path = b.save(tmp_path)
    x = (3 + rng.integers(-2, 3, (50, 40))).astype(np.float32)
    wanted = reference(path, x).reshape(50, -1)
    errors = {}
    for name, samples in (("rounded", None), ("calibrated", x)):
        found = tpu.load(path, effort="fast", calibration=samples).predict(x, check=False).reshape(50, -1)
        errors[name] = np.sqrt(np.square((found - wanted).mean(0).reshape(channels, -1).mean(1)).mean())
    assert errors["calibrated"] < errors["rounded"] / gain


def test_samples_far_from_the_calibration_are_no_fault_of_the_compiler(tmp_path):
    b = Builder([None, 4])
    b("MatMul", np.full((4, 3), 1.003, np.float32))
    model = tpu.load(b.save(tmp_path), calibration=np.full((1, 4), 100))
    compared = model.run(np.zeros((1, 4), np.float32)).compare()
    assert compared.error is None and compared.largest > 1 and "keep their means" in compared.note


def test_errors_in_a_window_cancel(rng):
    weights = rng.standard_normal((3, 5, 7, 20))
    weights[:, ::2, ::3] = round_bfloat16(weights[:, ::2, ::3].astype(np.float32))  # these stay
    rounded, nearest = round_windows(weights), round_bfloat16(weights.astype(np.float32))
    errors, least = (np.float64(one) - weights.astype(np.float32) for one in (rounded, nearest))
    assert np.square(errors.sum((0, 1))).mean() < np.square(least.sum((0, 1))).mean() / 2
    assert np.square(errors).mean() < 4 * np.square(least).mean()
    step = 2.0 ** (np.floor(np.log2(np.abs(weights))) - 7)
    assert (np.abs(errors) < step * 1.001).all()  # a neighbour of the exact weight
    assert (errors[least == 0] == 0).all()


def test_exact_weights_stay(tmp_path, rng):
    """Calibration changes no bit of a network whose weights bfloat16 represents."""
    b, weights = Builder([None, 2, 4, 4]), round_bfloat16(rng.standard_normal((3, 2, 3, 3)).astype(np.float32))
    b("Conv", weights.astype(np.float32), rng.standard_normal(3).astype(np.float32))
    path, x = b.save(tmp_path), rng.standard_normal((4, 2, 4, 4)).astype(np.float32)
    plain, calibrated = (tpu.load(path, calibration=samples).network for samples in (None, x))
    assert plain.constants.keys() == calibrated.constants.keys()
    assert all(np.array_equal(plain.constants[name], calibrated.constants[name]) for name in plain.constants)


def test_calibration_of_other_models_is_refused(tmp_path):
    b = Builder([1, 4])
    b("Relu", b("Det", b("Reshape", np.array([2, 2]))))
    with pytest.raises(tpu.ModelError, match="Det"):
        tpu.load(b.save(tmp_path), calibration=np.zeros((1, 4)))
    with pytest.raises(tpu.ArgumentError, match="leave `weights` out"):
        tpu.load("d", weights="mxfp4", calibration=np.zeros((1, 784)))
