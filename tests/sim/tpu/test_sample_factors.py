"""Tests of factors of the loss and of soft labels in `fit`: they are numbers that the host writes, with the bits of the core."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.data.errors import DataError
from amaranth_tpu.sim.trainer.order import held_out
from onnx_models import Builder, weights
from training_runs import CLASSES, INPUTS

COUNT = 48


def _fit(path, x, y, check_steps=0, **given):
    """Returns the trained model and the losses of its steps, with SGD without momentum and all samples in each step."""
    model = tpu.load(path)
    given = {"batch_size": COUNT if y is None else len(x), "optimizer": tpu.Sgd(0.0), "learning_rate": 0.1, "steps": 2} | given
    done = model.fit(x, y, check_steps=check_steps, core=tpu.Config(n=4), verbose=False, **given)
    assert not check_steps or done.core["mismatched_bits"] == 0
    return model, done.step_losses


def _losses(path, x, y):
    """Returns the cross-entropy of each sample, with shares of the classes in `y`."""
    logits = tpu.load(path).predict(x, "onnx").astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return (np.log(np.exp(logits).sum(axis=1, keepdims=True)) - logits) * y


def test_factor_is_of_the_loss_of_a_sample(rng, path, data):
    """The loss is the mean of factor times loss over all samples, also those with the factor 0."""
    x, y = data
    factors = rng.uniform(0, 3, COUNT) * (rng.random(COUNT) < 0.8)
    _, found = _fit(path, x, y, 2, sample_weight=factors)
    wanted = (_losses(path, x, np.eye(CLASSES)[y]).sum(axis=1) * factors).mean()
    np.testing.assert_allclose(found[0], wanted, rtol=0.03, atol=0.01)


def test_samples_with_factor_zero_are_left_out(path, data):
    """Half of the samples with the factor 0 is a step on the others with half the learning rate."""
    (x, y), half = data, COUNT // 2
    left, _ = _fit(path, x, y, sample_weight=np.arange(COUNT) < half, steps=1)
    other, _ = _fit(path, x[:half], y[:half], learning_rate=0.05, steps=1)
    whole, _ = _fit(path, x, y, steps=1)
    results = [model.predict(x) for model in (left, other, whole)]
    np.testing.assert_allclose(results[0], results[1], rtol=0.02, atol=0.02)
    assert abs(results[0] - results[2]).max() > abs(results[0] - results[1]).max()


def test_factor_of_a_class_is_the_factor_of_its_samples(path, data):
    x, y = data
    one, losses = _fit(path, x, y, 1, class_weight={0: 2, 3: 0.25})
    other, same = _fit(path, x, y, sample_weight=np.array([2, 1, 1, 0.25])[y])
    assert (losses == same).all() and (one.predict(x) == other.predict(x)).all()
    both, _ = _fit(path, x, y, class_weight={0: 2}, sample_weight=np.where(y == 0, 0.5, 1))
    plain, _ = _fit(path, x, y)
    assert (both.predict(x) == plain.predict(x)).all()


def test_smoothed_labels_are_shares(path, data):
    """Label smoothing gives each class a share, and the loss is the loss of the shares."""
    x, y = data
    shares = np.eye(CLASSES)[y] * 0.8 + 0.2 / CLASSES
    one, losses = _fit(path, x, y, 1, label_smoothing=0.2)
    other, same = _fit(path, x, shares)
    assert (losses == same).all() and (one.predict(x) == other.predict(x)).all()
    np.testing.assert_allclose(losses[0], _losses(path, x, shares).sum(axis=1).mean(), rtol=0.03, atol=0.01)
    assert losses[0] != _fit(path, x, y)[1][0]
    found = tpu.load(path).evaluate(x, shares, "onnx")
    np.testing.assert_allclose(found["loss"], _losses(path, x, shares).sum(axis=1).mean(), rtol=1e-4)
    assert found["accuracy"] == tpu.load(path).evaluate(x, y, "onnx")["accuracy"]


def test_the_validation_loss_has_factors_and_shares(rng, path, data, tmp_path):
    """Factors of samples and smoothed labels belong to the validation loss, factors of classes do not."""
    (x, y), factors = data, rng.uniform(0, 3, COUNT)
    shares = np.eye(CLASSES)[y] * 0.8 + 0.2 / CLASSES
    for split in (0.25, 0):
        given = {"validation_split": split, "sample_weight": factors} if split else {"validation_data": (x, y, factors)}
        model = tpu.load(path)
        done = model.fit(x, y, class_weight={1: 3}, label_smoothing=0.2, verbose=False, **given)
        model.save(tmp_path / "trained.onnx")
        held = held_out(1, COUNT, split)[1] if split else np.arange(COUNT)
        losses = _losses(tmp_path / "trained.onnx", x, shares).sum(axis=1) * factors
        np.testing.assert_allclose(done.epochs[-1].measured_loss, losses[held].mean(), rtol=0.02)
        assert done.epochs[-1].accuracy == model.evaluate(x[held], y[held])["accuracy"]


def test_wanted_numbers_with_factors(rng, path, data):
    x, _ = data
    wanted, factors = rng.normal(size=(COUNT, CLASSES)), rng.uniform(0, 2, COUNT)
    _, found = _fit(path, x, wanted, 1, loss="mse", sample_weight=factors)
    errors = ((tpu.load(path).predict(x, "onnx") - wanted) ** 2).mean(axis=1)
    np.testing.assert_allclose(found[0], (errors * factors).mean(), rtol=0.03, atol=0.02)


def test_positions_have_factors_and_shares(rng, tmp_path):
    """Pixels have a factor each, besides padding, and shares of the classes."""
    b = Builder(["batch", 2, 3, 3])
    b("Conv", weights(rng, 3, 2, 3, 3), pads=[1] * 4)
    path, x = b.save(tmp_path), rng.normal(size=(COUNT, 2, 3, 3)).astype(np.float32)
    y = rng.integers(0, 3, (COUNT, 9))
    y[:, 0] = -100
    factors = rng.uniform(0.5, 2, (COUNT, 9))
    _, found = _fit(path, x, y, 1, sample_weight=factors, class_weight={1: 2})
    logits = tpu.load(path).predict(x, "onnx").reshape(COUNT, 3, 9).transpose(0, 2, 1).astype(np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, np.maximum(y, 0)[..., None], -1)[..., 0]
    counted = (y != -100) * factors * np.where(y == 1, 2, 1)
    np.testing.assert_allclose(found[0], (losses * counted).sum() / (COUNT * 8), rtol=0.03, atol=0.01)
    shares = rng.dirichlet(np.ones(3), (COUNT, 9))
    _, found = _fit(path, x, shares, 1)
    wanted = (np.log(np.exp(logits).sum(-1)) - (logits * shares).sum(-1)).mean()
    np.testing.assert_allclose(found[0], wanted, rtol=0.03, atol=0.01)


def test_batches_are_samples(rng, path, data):
    """A generator of batches, and one with factors, give the bits of their arrays; so does validation data in batches."""
    (x, y), factors = data, rng.uniform(0.5, 2, COUNT)
    given = {"steps": None, "epochs": 2, "batch_size": 16}
    one, losses = _fit(path, ((x[first : first + 20], y[first : first + 20]) for first in (0, 20, 40)), None, **given)
    other, same = _fit(path, x, y, **given)
    assert (losses == same).all() and (one.predict(x) == other.predict(x)).all()
    _, losses = _fit(path, [(x[:20], y[:20], factors[:20]), (x[20:], y[20:], factors[20:])], None, **given)
    _, same = _fit(path, x, y, sample_weight=factors, **given)
    assert (losses == same).all()
    results = []
    for held in ((x, y), iter([(x, y)])):
        done = tpu.load(path).fit(x, y, validation_data=held, verbose=False)
        results.append((done.epochs[0].measured_loss, done.epochs[0].accuracy))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "batches, message",
    [
        ([], "x: has no batches; an iterator can be read once only"),
        ([np.zeros((3, 2))], r"x: batch 0 must be a tuple \(x, y\), or"),
        ([(np.zeros((3, 2)), np.zeros(3)), (np.zeros((3, 2)), np.zeros(3), np.ones(3))], "x: batch 1 must be a tuple"),
        ([(np.zeros((3, 2)), np.zeros(4))], r"x: batch 0 has arrays of shapes \(3, 2\) and \(4,\), not of one number of samples"),
        ([(np.zeros((3, 2)), np.zeros(3)), (np.zeros((3, 5)), np.zeros(3))], "x: has batches of samples of different shapes"),
        (np.zeros((3, INPUTS)), "`x` without `y` must be an iterable of batches"),
    ],
)
def test_batches_that_are_refused(path, batches, message):
    with pytest.raises((tpu.ArgumentError, DataError), match=message):
        tpu.load(path).fit(batches)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"sample_weight": np.ones(3)}, r"sample_weight: must have shape \(48,\) or \(48, 1\), not \(3,\)"),
        ({"sample_weight": {"y": np.ones(COUNT)}}, "sample_weight: must be one array, for all outputs together, not a dict"),
        ({"sample_weight": np.full(COUNT, -1.0)}, "sample_weight: must hold finite numbers of at least 0"),
        ({"class_weight": {CLASSES: 1}}, "`class_weight` must be a dict of numbers by class number, 0 to 3, not"),
        ({"class_weight": {0: float("nan")}}, "`class_weight` must hold finite numbers of at least 0"),
        ({"label_smoothing": 1.0}, "`label_smoothing` must be at least 0 and less than 1, not 1.0"),
        ({"label_smoothing": 0.1, "loss": "mse"}, "`label_smoothing` needs the loss cross_entropy or binary_crossentropy"),
    ],
)
def test_refusals(path, data, given, message):
    x, y = data
    y = y if "loss" not in given else np.zeros((COUNT, CLASSES))
    with pytest.raises((tpu.ArgumentError, DataError), match=message):
        _fit(path, x, y, **given)


def test_shares_that_are_not_shares_are_refused(path, data):
    x, y = data
    with pytest.raises(DataError, match="y: shares of 4 classes must be numbers of at least 0 with the sum 1 for each position"):
        _fit(path, x, np.eye(CLASSES)[y] * 2.5)
