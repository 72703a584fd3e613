"""Tests of Keras' own objects in `fit`, and of a Keras script that runs on eight cores once its strategy is replaced."""

import os
import re

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.tpu.keras_objects import loss_name, metric_name

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


@pytest.fixture
def keras():
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs the packages keras and torch")
    pytest.importorskip("onnxscript", reason="needs the packages keras, torch and onnxscript")
    keras.utils.set_random_seed(3)
    return keras


@pytest.fixture
def data():
    """Returns 256 samples of 4 classes: noise around a centre for each class."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 4, 256)
    return (rng.normal(0, 1, (4, 12))[y] + rng.normal(0, 0.7, (256, 12))).astype(np.float32), y


def _net(keras, last=None):
    layers = keras.layers
    return keras.Sequential([layers.Input((12,)), layers.Dense(16, activation="relu"), layers.Dense(4, activation=last)])


def test_a_script_with_a_strategy(keras, data, tmp_path):
    """A script as Keras' guides write it, with all its lines but the strategy's."""
    x, y = data
    strategy = tpu.Strategy(cores=8, settings={"check_steps": 1, "core": tpu.Config(n=4)})
    batch_size = 8 * strategy.num_replicas_in_sync
    with strategy.scope():
        model = _net(keras)
        model.compile(
            optimizer=keras.optimizers.Adam(learning_rate=0.01),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["sparse_categorical_accuracy"],
        )
    callbacks = [
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=3, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), monitor="val_loss", save_best_only=True),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch == 2 else rate),
    ]
    history = model.fit(x, y, batch_size=batch_size, epochs=4, validation_split=0.25, callbacks=callbacks, verbose=0)
    loss, accuracy = model.evaluate(x, y, batch_size=batch_size)

    assert history.core["mismatched_bits"] == 0 and history.epoch == [0, 1, 2, 3]
    assert history.history["learning_rate"] == pytest.approx([0.01, 0.01, 0.005, 0.005])
    assert history.history["loss"][0] > history.history["loss"][-1] and accuracy > 0.6
    theirs = keras.Model.evaluate(model, x, y, verbose=0)
    assert theirs == pytest.approx([loss, accuracy], rel=0.02)
    held = keras.Model.evaluate(model, x[192:], y[192:], verbose=0)  # Keras holds out the end
    assert held[0] == pytest.approx(min(history.history["val_loss"]), rel=0.02)
    best = keras.models.load_model(tmp_path / "best.keras")
    assert best.evaluate(x[192:], y[192:], verbose=0)[0] == pytest.approx(held[0], rel=0.02)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert "val_sparse_categorical_accuracy" in lines[0] and len(lines) == 5
    assert model.predict(x[:5]).argmax(1).tolist() == keras.Model.predict(model, x[:5], verbose=0).argmax(1).tolist()
    again = _net(keras)
    again.compile("adam", "sparse_categorical_crossentropy")
    assert again.fit.__self__ is again  # outside of the scope, the methods are Keras'


def test_own_callbacks_read_the_weights(keras, data):
    """A callback sees the weights of its epoch, and ends training; at the end, it sees the result's."""
    x, y = data
    net, seen = _net(keras), []

    class Mine(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(keras.Model.get_weights(self.model)[0])
            self.model.stop_training = epoch == 1

        def on_train_end(self, logs=None):
            seen.append("end")

    before = net.get_weights()[0]
    done = tpu.from_keras(net).fit(x, y, epochs=5, callbacks=[Mine()], verbose=False)
    assert len(done.epochs) == 2 and done.stopped_early and seen.pop() == "end"
    assert (seen[0] != before).any() and (seen[0] != seen[1]).any() and (seen[1] == net.get_weights()[0]).all()


def test_an_error_restores_the_weights(keras, data):
    x, y = data
    net = _net(keras)
    before = net.get_weights()

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        tpu.from_keras(net).fit(x, y, callbacks=[Fails()], verbose=False)
    assert all(map(np.array_equal, before, net.get_weights()))


@pytest.mark.parametrize(
    "optimizer, ours, schedule",
    [
        (lambda keras: keras.optimizers.SGD(0.02, momentum=0.5), tpu.Sgd(0.5), "constant"),
        (lambda keras: keras.optimizers.AdamW(0.02, weight_decay=0.01), tpu.Adam(weight_decay=0.01), "constant"),
        (
            lambda keras: keras.optimizers.RMSprop(0.02, rho=0.8, clipvalue=0.01),
            tpu.RmsProp(second=0.8, clip_value=0.01),
            "constant",
        ),
        (lambda keras: keras.optimizers.SGD(0.02, global_clipnorm=0.1), tpu.Sgd(0.0, clip_norm=0.1), "constant"),
        (
            lambda keras: keras.optimizers.Adam(
                keras.optimizers.schedules.ExponentialDecay(0.02, 10, np.float64(0.5)), beta_1=0.8
            ),
            tpu.Adam(first=0.8),
            "exponential:0.5/10",
        ),
        (
            lambda keras: keras.optimizers.Adam(keras.optimizers.schedules.PiecewiseConstantDecay([4, 9], [0.02, 0.01, 0.005])),
            tpu.Adam(),
            lambda step: [1, 0.5, 0.25][(step > 4) + (step > 9)],
        ),
    ],
)
def test_optimizers(keras, data, optimizer, ours, schedule):
    """An optimizer of Keras gives the bits of the library's own."""
    (x, y), net = data, _net(keras)
    start, results = net.get_weights(), []
    for given in ({"optimizer": optimizer(keras)}, {"optimizer": ours, "learning_rate": 0.02, "schedule": schedule}):
        net.set_weights(start)
        results.append(tpu.from_keras(net).fit(x, y, epochs=2, verbose=False, **given).step_losses)
    assert (results[0] == results[1]).all()


def test_losses_and_metrics(keras):
    losses, metrics = keras.losses, keras.metrics
    assert loss_name(losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1)) == ("binary_crossentropy", 0.1)
    assert (
        loss_name(losses.Huber()) == ("huber", 0)
        and loss_name(losses.Huber(delta=2.0)) == ("huber:2.0", 0)
        and loss_name("mse") == ("mse", 0)
    )
    assert metric_name(metrics.SparseTopKCategoricalAccuracy(k=3)) == "top-3"
    assert metric_name(metrics.MeanAbsoluteError()) == "mae" and metric_name("f") == "f"


def _remedies(keras):
    """Yields words of a message, the refused argument, and the argument that the message names."""
    sgd, calls, loss = keras.optimizers.SGD, keras.callbacks, keras.losses.SparseCategoricalCrossentropy
    for words, given, instead in (
        ("nesterov, which the core lacks; leave nesterov out", sgd(0.1, 0.9, nesterov=True), sgd(0.1, 0.9)),
        ("clipnorm, one norm for each weight; give global_clipnorm", sgd(0.1, clipnorm=1.0), sgd(0.1, global_clipnorm=1.0)),
        ("beside the momentum; give tpu.Sgd(momentum, weight_decay)", sgd(0.1, 0.9, weight_decay=0.1), tpu.Sgd(0.9, 0.1)),
        ("Lion of Keras is not the core's; give Adam,", keras.optimizers.Lion(), keras.optimizers.Adam()),
        ("epsilon=0.1, which the core lacks; leave epsilon out", keras.optimizers.Adam(epsilon=0.1), keras.optimizers.Adam()),
        ("kernel from weight decay; exclude biases alone", *(_decaying(keras, name) for name in ("kernel", "bias"))),
    ):
        yield words, {"optimizer": given}, {"optimizer": instead}
    plain = {"loss": loss(from_logits=True)}
    yield "Hinge of Keras is not the library's; give one of Sparse", {"loss": keras.losses.Hinge()}, plain
    yield "has the reduction sum; leave `reduction` out", {"loss": loss(from_logits=True, reduction="sum")}, plain
    words = "ignores class 0; give `sample_weight` 0 to what does not count"
    yield words, {"loss": loss(from_logits=True, ignore_class=0)}, plain | {"sample_weight": np.arange(256) % 2}
    yield "in its own way; give `schedule`", {"callbacks": calls.ReduceLROnPlateau()}, {"schedule": "1,.5"}
    words = "on_train_batch_end, which fit does not call; do its work in on_epoch_end"
    called = (calls.LambdaCallback(**{name: lambda *_: None}) for name in ("on_train_batch_end", "on_epoch_end"))
    yield words, *({"callbacks": [one]} for one in called)
    for settings in ({"monitor": "loss"}, {"mode": "max"}):
        stopping = calls.EarlyStopping(**settings, restore_best_weights=True), tpu.EarlyStopping(2)
        yield "with restore_best_weights has settings", *({"callbacks": [one]} for one in stopping)
    halves = {"callbacks": [calls.LearningRateScheduler(lambda epoch, rate: rate / 2)], "optimizer": "sgd"}
    yield "needs the first learning rate; give `learning_rate`", halves, halves | {"learning_rate": 0.1}
    mine = {"metrics": [lambda labels, results: float((results.argmax(1) == labels).mean())]}
    yield "AUC of Keras is not the library's; give a function of labels", {"metrics": [keras.metrics.AUC()]}, mine
    yield "has the threshold 0.3; give a function of", {"metrics": [keras.metrics.BinaryAccuracy(threshold=0.3)]}, mine


def _decaying(keras, excluded):
    made = keras.optimizers.AdamW(weight_decay=0.1)
    made.exclude_from_weight_decay(var_names=[excluded])
    return made


def test_remedies(keras, data):
    """Objects that are refused train once they are replaced as the message says."""
    model, options = tpu.from_keras(_net(keras)), {"epochs": 1, "validation_split": 0.5, "verbose": False}
    for words, refused, accepted in _remedies(keras):
        with pytest.raises(tpu.ArgumentError, match=re.escape(words)):
            model.fit(*data, **options, **refused)
        model.fit(*data, **options, **accepted)


@pytest.mark.parametrize(
    "last, of_logits, message",
    [
        ("softmax", True, "`loss`: the model ends in probabilities; give the loss from_logits=False"),
        (None, False, "`loss`: the model ends in logits; give the loss from_logits=True"),
    ],
)
def test_ends_that_do_not_fit_the_loss(keras, data, last, of_logits, message):
    """The last layer may be inside a model, and before layers that keep its values."""
    with tpu.Strategy().scope():
        net = keras.Sequential([keras.layers.Input((12,)), _net(keras, last), keras.layers.Reshape((4,))])
        net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=of_logits))
    for fit in (net.fit, lambda *data: tpu.from_keras(net).fit(*data, loss=net.loss)):
        with pytest.raises(tpu.ArgumentError) as error:
            fit(*data)
        assert str(error.value) == message
    with tpu.Strategy().scope():
        net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=not of_logits))
    net.fit(*data, verbose=0)


def test_models_without_known_inputs(keras):
    class Own(keras.Model):
        def call(self, x):
            return x

    for net in (keras.Sequential([keras.layers.Dense(3)]), Own()):
        with pytest.raises(
            tpu.ModelError, match=r"its inputs are not known; make it by keras.Model\(inputs, outputs\), or begin"
        ):
            tpu.from_keras(net)
    assert tpu.from_keras(keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])).network.input_size == 4


def test_arguments_that_a_strategy_lacks(keras, data):
    with tpu.Strategy().scope():
        net = _net(keras)
        net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(
        tpu.ArgumentError, match="`initial_epoch` is not supported in a strategy's scope; leave it out, or give 0"
    ):
        net.fit(*data, initial_epoch=2)
    net.fit(*data, initial_epoch=0, verbose=0)
    with pytest.raises(tpu.ArgumentError, match="`settings` are arguments of fit, not 'learning_speed'"):
        tpu.Strategy(settings={"learning_speed": 1})


def test_two_inputs_and_outputs(keras):
    """Losses, names and results of several outputs are as in Keras; lists and dicts name them."""
    rng, layers = np.random.default_rng(3), keras.layers
    a, b = rng.normal(size=(96, 6)).astype(np.float32), rng.normal(size=(96, 5)).astype(np.float32)
    y = {"kind": a[:, :3].argmax(1), "size": b[:, :1] * 2}
    one, two = layers.Input((6,), name="left"), layers.Input((5,), name="right")
    joined = layers.Concatenate()([layers.Dense(8, activation="relu")(one), layers.Dense(8)(two)])
    ends = [layers.Dense(3, activation="softmax", name="kind")(joined), layers.Dense(1, name="size")(joined)]
    with tpu.Strategy().scope():
        net = keras.Model([one, two], ends)
        facts = {"loss_weights": {"kind": 1, "size": 0.5}, "metrics": {"kind": ["accuracy"]}}
        net.compile("adam", {"kind": "sparse_categorical_crossentropy", "size": "mse"}, **facts)
    history = net.fit([a, b], [y["kind"], y["size"]], epochs=2, validation_split=0.25, verbose=0).history
    assert {"val_kind_loss", "val_size_loss", "val_kind_accuracy"} <= history.keys()
    ours = net.evaluate([a, b], [y["kind"], y["size"]])
    theirs = keras.Model.evaluate(net, [a, b], [y["kind"], y["size"]], verbose=0)
    assert ours == pytest.approx(theirs, rel=0.02, abs=0.02)
    assert [one.shape for one in net.predict([a, b])] == [(96, 3), (96, 1)]


def test_validation_is_as_in_keras(keras, data, tmp_path):
    """The validation loss has the smoothed labels and the factors of samples, but not those of classes. Metrics have Keras'
    names. Keras rounds the number of samples down."""
    (x, y), factors = data, np.random.default_rng(3).uniform(0, 3, 256)
    with tpu.Strategy().scope():
        net = _net(keras)
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.3)
        net.compile(keras.optimizers.SGD(0.1), loss, metrics=[keras.metrics.TopKCategoricalAccuracy(k=2)])
    y, weights = np.eye(4, dtype=np.float32)[y], {"class_weight": {1: 5.0}, "sample_weight": factors}
    settings = {"monitor": "val_top_k_categorical_accuracy", "mode": "max", "save_best_only": True}
    best = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), **settings)
    history = net.fit(x, y, epochs=2, validation_split=0.27, callbacks=[best], verbose=0, **weights).history
    held = keras.Model.evaluate(net, x[186:], y[186:], sample_weight=factors[186:], verbose=0)
    assert [history["val_loss"][-1], history["val_top_k_categorical_accuracy"][-1]] == pytest.approx(held, rel=0.02)
    assert (tmp_path / "best.keras").exists()
    assert net.evaluate(x, y) == pytest.approx(keras.Model.evaluate(net, x, y, verbose=0), rel=0.02)


def test_data_sets_in_a_strategy(keras, data):
    """Batches are read as in Keras: `steps_per_epoch` and `validation_steps` count them."""
    torch = pytest.importorskip("torch")
    x, y = map(torch.tensor, data)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 32)
    with tpu.Strategy().scope():
        net = _net(keras, "softmax")
        net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = net.fit(loader, epochs=2, steps_per_epoch=6, validation_data=loader, validation_steps=2, verbose=0)
    assert len(history.history["val_accuracy"]) == 2
    held = keras.Model.evaluate(net, data[0][:64], data[1][:64], verbose=0)
    assert [history.history["val_loss"][-1], history.history["val_accuracy"][-1]] == pytest.approx(held, rel=0.02, abs=0.02)
    assert net.evaluate(loader) == pytest.approx(keras.Model.evaluate(net, *data, verbose=0), rel=0.02, abs=0.01)
