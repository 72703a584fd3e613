"""Tests of the losses and metrics of `fit` and `evaluate`, against numpy in binary64 on the results of an ONNX interpreter."""

import numpy as np
import pytest
from onnx import numpy_helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.data.errors import DataError
from onnx_models import Builder, weights
from training_runs import INPUTS, clusters

COUNT = 48
#: Losses of one number, for results y and wanted numbers t.
LOSSES = {
    "mean_absolute_error": lambda y, t: abs(y - t),
    "huber:2": lambda y, t: np.where(abs(y - t) < 2, (y - t) ** 2 / 2, 2 * abs(y - t) - 2),
    "binary_crossentropy": lambda y, t: -t * np.log(y) - (1 - t) * np.log(1 - y),
}


def _model(rng, folder, results=3, last=None):
    b = Builder(["n", INPUTS])
    b("Gemm", weights(rng, INPUTS, 8), weights(rng, 8))
    b("Relu")
    b("Gemm", weights(rng, 8, results), weights(rng, results))
    if last:
        b(last)
    return tpu.load(b.save(folder))


def _given(loss, **given):
    given = {"optimizer": tpu.Sgd(0.0), "learning_rate": 0.1, "batch_size": COUNT, "check_steps": 2, "steps": 4} | given
    return {"loss": loss, "core": tpu.Config(n=4), "verbose": False} | given


@pytest.mark.parametrize("loss", LOSSES)
def test_losses(rng, tmp_path, loss):
    """The loss of the first step and of `evaluate` is the loss in binary64, the bits of two steps are the core's, and the loss
    falls."""
    is_binary = loss == "binary_crossentropy"
    model = _model(rng, tmp_path, last="Sigmoid" if is_binary else None)
    x = clusters(rng, COUNT)[0]
    y = rng.random((COUNT, 3)) if is_binary else rng.normal(0, 2, (COUNT, 3))
    wanted = LOSSES[loss](model.predict(x, "onnx").astype(float), y).mean()
    assert model.evaluate(x, y, "onnx", loss=loss)["loss"] == pytest.approx(wanted, rel=0.01)
    assert model.evaluate(x, y, loss=loss)["loss"] == pytest.approx(wanted, rel=0.03)
    done = model.fit(x, y, **_given(loss))
    assert done.core["mismatched_bits"] == 0
    assert done.step_losses[0] == pytest.approx(wanted, rel=0.03) and done.step_losses[-1] < done.step_losses[0]
    assert ("accuracy" in done.history) == is_binary


def test_large_targets(rng, tmp_path):
    """Adam learns targets near 2,000. The limits of its second moment are in their units."""
    model, x = _model(rng, tmp_path), clusters(rng, COUNT)[0]
    y = (x @ rng.normal(size=(INPUTS, 3)) * 2000).astype(np.float32)
    losses = model.fit(x, y, **_given("mse", optimizer="adam", learning_rate=1.0, steps=12, check_steps=0)).step_losses
    assert losses[-1] < losses[0]


def test_binary_labels(rng, tmp_path):
    """The accuracy is the share of results on the right side of 0.5. Classes have factors, and labels are smoothed."""
    model, (x, y) = _model(rng, tmp_path, 1, "Sigmoid"), clusters(rng, COUNT)
    y = y > 1
    results = [_model(np.random.default_rng(1), tmp_path, 1, "Sigmoid") for _ in range(3)]
    one = results[0].fit(x, y, **_given("binary_crossentropy", class_weight={1: 2.5}, label_smoothing=0.2))
    smoothed, factors = np.where(y, 0.9, 0.1), np.where(y, 2.5, 1)
    other = results[1].fit(x, smoothed, **_given("binary_crossentropy", sample_weight=factors))
    results[2].fit(x, y, **_given("binary_crossentropy"))
    assert (one.step_losses == other.step_losses).all() and one.core["mismatched_bits"] == 0
    found = [result.predict(x) for result in results]
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()
    done = model.fit(x, y, **_given("binary_crossentropy", optimizer="adam", learning_rate=0.02, steps=60))
    share = ((model.predict(x, "onnx")[:, 0] > 0.5) == y).mean()
    assert model.evaluate(x, y, "onnx", loss="binary_crossentropy")["accuracy"] == share
    assert done.history["accuracy"][-1] > done.history["accuracy"][0]


@pytest.mark.parametrize("last", [None, "Softmax", "Sigmoid"])
def test_metrics(rng, tmp_path, last):
    """A metric is a name, or a function of the labels and of the model's own results."""
    model = _model(rng, tmp_path, 4, last)
    x, y = clusters(rng, COUNT)
    loss = {"Sigmoid": "binary_crossentropy"}.get(last, "cross_entropy")
    y = np.eye(4)[y] if last == "Sigmoid" else y
    seen = []

    def first(labels, results):
        seen.append((labels, results))
        return results[:, 0].mean()

    names = ["accuracy", first, "mae" if last == "Sigmoid" else "top-2"]
    done = model.fit(x, y, validation_data=(x, y), metrics=names, **_given(loss))
    results = model.predict(x)
    assert (seen[-1][0].reshape(y.shape) == y).all()
    np.testing.assert_allclose(seen[-1][1], results, rtol=0.01, atol=0.004)
    assert done.history["val_first"][-1] == pytest.approx(results[:, 0].mean(), rel=0.02, abs=0.004)
    found = model.evaluate(x, y, loss=loss, metrics=names)
    assert found["first"] == pytest.approx(results[:, 0].mean(), abs=0.004 if last == "Sigmoid" else 1e-6)
    if last == "Sigmoid":
        assert done.history["val_mae"][-1] == pytest.approx(abs(results - y).mean(), rel=0.02)
    else:
        above = (results > np.take_along_axis(results, y[:, None], 1)).sum(1)
        assert found["top-2"] == done.history["val_top-2"][-1] == (above < 2).mean()
    assert "first" in str(done.epochs[-1])


@pytest.mark.parametrize(
    "given, message",
    [
        ({"loss": "binary_crossentropy"}, "y: the binary cross-entropy needs labels from 0 to 1; give 0 and 1, or another loss"),
        ({"loss": "hinge"}, "`loss` must be one of cross_entropy, .*, not 'hinge'"),
        ({"loss": "huber:0"}, "`loss` must be one of .*, or huber:DELTA, such as huber:0.5, not 'huber:0'"),
        ({"loss": "mae", "class_weight": {0: 2}}, "`class_weight` needs the loss cross_entropy, or binary_crossentropy of one"),
        ({"loss": "mae", "label_smoothing": 0.1}, "`label_smoothing` needs the loss cross_entropy or binary_crossentropy"),
        ({"loss": "mae", "metrics": ["top-2"], "validation_split": 0.2}, "`metrics`: 'top-2' needs the loss cross_entropy"),
        ({"loss": "mae", "metrics": [3], "validation_split": 0.2}, "`metrics`: 3 is neither a name nor a function of labels and"),
        ({"loss": "mae", "metrics": ["mse"]}, "`metrics` need `validation_split` or `validation_data`"),
    ],
)
def test_refusals(rng, tmp_path, given, message):
    x, y = clusters(rng, COUNT)[0], np.full((COUNT, 3), 2.0)
    with pytest.raises((tpu.ArgumentError, DataError), match=message):
        _model(rng, tmp_path).fit(x, y, verbose=False, **given)


def test_loss_of_probabilities_near_one(rng, tmp_path):
    """Results that bfloat16 rounds to 1 have the loss of their logits, also on the core."""
    b = Builder(["n", INPUTS])
    b("Gemm", np.eye(INPUTS, 2, dtype=np.float32), np.zeros(2, np.float32))
    b("Sigmoid")
    model, x = tpu.load(b.save(tmp_path)), np.zeros((4, INPUTS), np.float32)
    x[:, 0], x[:, 1] = [7, 9, -9, 8], 8
    y = np.array([[0, 1], [1, 0], [1, 1], [0, 0]])
    wanted = np.log(1 + np.exp(np.where(y == 1, -x[:, :2], x[:, :2]))).mean()
    assert model.predict(x).max() == 1
    for on in ("golden", "model", "onnx"):
        core = None if on == "onnx" else tpu.Config(n=4)
        assert model.evaluate(x, y, on, loss="binary_crossentropy", core=core)["loss"] == pytest.approx(wanted, rel=1e-3), on


#: Derivatives of the losses of one number, for logits or results z.
SLOPES = {
    "mse": lambda z, t: 2 * (z - t),
    "mae": lambda z, t: np.sign(z - t),
    "huber": lambda z, t: np.clip(z - t, -1, 1),
    "huber:0.5": lambda z, t: np.clip(z - t, -0.5, 0.5),
    "binary_crossentropy": lambda z, t: 1 / (1 + np.exp(-z)) - t,
}


@pytest.mark.parametrize("loss", SLOPES)
def test_a_step_is_the_rate_times_the_slope_of_the_mean(rng, tmp_path, loss):
    """A bias moves by the learning rate times the derivative of the mean loss over samples and results."""
    b = Builder(["n", INPUTS])
    b("Gemm", weights(rng, INPUTS, 3), np.zeros(3, np.float32), name="last")
    model, x, rate = tpu.load(b.save(tmp_path)), clusters(rng, COUNT)[0], 0.25
    y = rng.random((COUNT, 3)) if loss == "binary_crossentropy" else rng.normal(0, 2, (COUNT, 3))
    slope = SLOPES[loss](model.predict(x, "onnx").astype(float), y).sum(axis=0) / (COUNT * 3)
    model.fit(x, y, **_given(loss, steps=1, learning_rate=rate, check_steps=0))
    (bias,) = (numpy_helper.to_array(one) for one in model.proto().graph.initializer if one.dims == [3])
    np.testing.assert_allclose(-bias / rate, slope, rtol=0.05, atol=0.02)
