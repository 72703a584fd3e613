"""Tests of NaN and infinite results, which count as errors where ONNX has other values, and of the comparison with ONNX at the
first `predict`."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.tpu import inference_run as runs
from onnx_models import Builder, weights


def _number(value):
    return np.array(value, np.float32)


def _squares(size):
    b = Builder(["n", size], opset=18)
    x = b("Gemm", np.eye(size, dtype=np.float32))
    return b, x, b.node("Mul", [x, x])


def _root():
    b, _, y = _squares(4)
    b.node("Sqrt", [b.node("Add", [y, _number(1)])])
    return b


def _gathered():
    b, x, y = _squares(4)
    b.node("Add", [x, b.node("Gather", [y, np.array([3, 1, 2, 0])], axis=1)])
    return b


def _sliced():
    b, _, y = _squares(4)
    b.node("MatMul", [b.node("Slice", [y, np.array([0]), np.array([2]), np.array([1])]), np.ones((2, 2), np.float32)])
    return b


@pytest.mark.parametrize("build", [_gathered, _sliced])
def test_nan_where_onnx_has_a_number_is_an_error(tmp_path, build):
    """A NaN that follows from an overflow is an error if ONNX has another value there. The error names the overflowing stage,
    even if only one of 100 samples overflows."""
    model, x = tpu.load(build().save(tmp_path)), np.tile(_number([1, 2, 3, 4]), (100, 1))
    assert model.compare(x).error is None
    x[37, 3] = 1e30
    error = model.compare(x).error
    assert "is nan, onnx" in error and "'Mul_1' has results beyond 3.39e38" in error and "\n" not in error


def test_same_infinity_is_no_error(tmp_path):
    for b in (_squares(4)[0], _root()):
        found = tpu.load(b.save(tmp_path)).compare(_number([[1, 2, 3, 1e30]]))
        assert found.error is None and found.not_finite == 1


def test_equality_is_claimed_of_finite_values_only(tmp_path):
    """Samples whose values are infinite in ONNX too count in no figure, and without others there is no figure."""
    model = tpu.load(_squares(2)[0].save(tmp_path))
    found = model.compare(_number([[1e30, -1e30], [-1e30, 1e30]]))
    assert found.error is None and found.not_finite == 4
    assert (found.largest, found.rms, found.scale, found.top_agreement) == (None, None, None, None)
    found = model.compare(_number([[1e30, 1e30], [2, 3], [3, 1e30]]))
    assert found.not_finite == 3 and found.top_agreement == 1 and found.largest < 0.1


def test_reason_names_the_stage_that_overflows(rng, tmp_path):
    """The error names the stage that overflows, even if depthwise channels share a tile with zeros and turn infinity into NaN."""
    b = Builder(["n", 4, 4, 4])
    x = b("Conv", weights(rng, 4, 4, 1, 1))
    b.node("Mul", [x, x])
    b("Conv", weights(rng, 4, 1, 3, 3), group=4, pads=[1, 1, 1, 1])
    x = rng.normal(size=(3, 4, 4, 4)).astype(np.float32)
    x[1, :, 2, 2] = 1e25
    with pytest.raises(tpu.RunError, match="the result of 'Mul_1' is infinite or NaN for some samples"):
        tpu.load(b.save(tmp_path)).predict(x, "model", core=tpu.Config(n=4))


# ---- the first `predict`


def _save(tmp_path, weight):
    b = Builder(["n", 3])
    b("MatMul", np.full((3, 2), weight, np.float32))
    return b.save(tmp_path)


def test_first_predict_of_a_place_is_checked(rng, tmp_path):
    """The first `predict` on "golden" and on "model" compares with ONNX, and fails for a network that differs from its file. A
    failed check is repeated at the next call."""
    network = load_network(_save(tmp_path, 1))
    _save(tmp_path, 1.5)
    x, core = rng.normal(size=(4, 3)).astype(np.float32), tpu.Config(n=2)
    for place in ("golden", "model"):
        model = tpu.Model(network)
        for _ in range(2):  # a value that was wrong once is not accepted later
            with pytest.raises(tpu.RunError, match="the model was read wrongly; `check=False` skips") as raised:
                model.predict(x, place, core=core)
        assert "\n" not in str(raised.value)
        assert model.predict(x, place, core=core, check=False).shape == (4, 2)
        assert model.predict(x, "onnx").shape == (4, 2)


def test_predict_is_checked_once_for_each_place(rng, tmp_path, monkeypatch):
    asked = []

    def counted(network, rows, *arguments, **options):
        asked.append(len(rows))
        return against(network, rows, *arguments, **options)

    against = runs.against_model
    monkeypatch.setattr(runs, "against_model", counted)
    model, x, core = tpu.load(_save(tmp_path, 1)), rng.normal(size=(4, 3)).astype(np.float32), tpu.Config(n=2)
    model.predict(x, check=False)
    assert not asked
    for _ in range(3):
        model.predict(x)
        model.predict(x, "model", core=core)
        model.predict(x, "onnx")
    assert asked == [4, 4]


def test_file_that_changed_is_not_compared(rng, tmp_path):
    model, x = tpu.load(_save(tmp_path, 1)), rng.normal(size=(4, 3)).astype(np.float32)
    right = model.predict(x, check=False)
    _save(tmp_path, 1.5)
    np.testing.assert_array_equal(model.predict(x), right)
    (tmp_path / "model.onnx").unlink()
    np.testing.assert_array_equal(model.predict(x), right)
