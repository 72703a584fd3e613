"""Tests of training by the Python API: `fit` with its history, callbacks and refusals, `evaluate`, and the weights in a file."""

import json
import re
import time
import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.data import progress_lines
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.training import initial_state
from amaranth_tpu.sim.trainer.golden_training import Training
from amaranth_tpu.sim.trainer.loop import TrainingRun
from amaranth_tpu.sim.trainer.new_training import trainable_network
from amaranth_tpu.sim.trainer.plan import Plan
from amaranth_tpu.sim.trainer.samples import LabelledSamples
from amaranth_tpu.sim.trainer.schedules import parse_schedule
from language_models import language_model
from onnx_models import Builder, weights
from suites import slow
from training_runs import CLASSES, INPUTS, clusters, write_dense_model

CORE = tpu.Config(n=4)


@pytest.fixture
def path(rng, tmp_path):
    """Writes a model of two dense layers and a Softmax. Returns its path."""
    return write_dense_model(tmp_path / "small.onnx", rng, last="Softmax")


@pytest.fixture
def data(rng):
    return clusters(rng, 64)


def values(model):
    """Returns the initializers of a loaded model, as `{name: array}`."""
    return {one.name: numpy_helper.to_array(one) for one in onnx.load(model.network.origin.path).graph.initializer}


def same(one, two):
    first, second = values(one), values(two)
    return list(first) == list(second) and all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_a_clipped_norm_on_a_ring(path, data):
    """Clipping changes the steps, and has the same bits on two cores."""
    one, other, options = tpu.load(path), tpu.load(path), {"core": CORE, "cores": 2, "epochs": 1, "verbose": False}
    assert one.fit(*data, clip_norm=0.1, check_steps=1, **options).core["mismatched_bits"] == 0
    other.fit(*data, **options)
    assert not same(one, other)


def test_fit_is_the_trainer(path, data):
    """The trained initializers equal the masters of a training run with the same plan, cut off to bfloat16 for weights."""
    x, y = data
    model = tpu.load(path)
    before = values(model)
    done = model.fit(
        x, y, epochs=2, batch_size=16, optimizer=tpu.Sgd(0.5), learning_rate=0.1, schedule="1,.5", dropout=0.25, seed=4
    )
    network, schedule = trainable_network(tpu.load(path).network), parse_schedule("1,.5")
    plan = Plan(
        optimizer=tpu.Sgd(0.5), learning_rate=0.1, schedule=schedule, batch_size=16, epochs=2, seed=4, dropout=Dropout(0.25, 4)
    )
    samples = LabelledSamples.checked(x, y, CLASSES)
    training = Training(network, plan, samples, None, initial_state(network, plan.optimizer))
    TrainingRun(training=training)()
    found = values(model)
    for name, master in zip(("first.weight", "first.bias", "second.weight", "second.bias"), training.position.state.masters):
        wanted = master.reshape(found[name].shape)
        if name.endswith("weight"):
            wanted = (wanted.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        np.testing.assert_array_equal(found[name], wanted)
        assert (found[name] != before[name]).any()
    assert done.step_losses.tolist() == training.losses.ravel().tolist() and done.own_form and not done.stopped_early
    assert done.history["loss"] == pytest.approx(done.step_losses.reshape(2, 4).mean(axis=1))
    assert done.history["learning_rate"] == [0.1, 0.05] and set(done.history) == {"loss", "accuracy", "learning_rate"}


def test_labels_and_data_in_several_forms(path, data):
    """Class numbers, a column of them and one-hot rows give equal weights, and so do samples of several axes for a model of flat
    samples. `initialize` ignores the weights of the model."""
    x, y = data
    models = [tpu.load(path) for _ in range(4)]
    models[0].fit(x, y, initialize=True)
    models[1].fit({"x": x.astype(np.float64)}, y[:, None].astype(np.float32), initialize=True)
    models[2].fit(x, y)
    models[2].fit(x.reshape(-1, 5, INPUTS // 5), np.eye(CLASSES)[y], initialize=True)
    models[3].fit(x, y)
    assert same(models[0], models[1]) and same(models[0], models[2]) and not same(models[0], models[3])


def test_evaluate(path, data):
    """`evaluate` computes the cross-entropy of the probabilities, on the core's logits and on an interpreter's probabilities."""
    x, y = data
    model = tpu.load(path)
    for on in ("onnx", "golden", "model"):
        core = None if on == "onnx" else CORE
        p = model.predict(x, on, core=core).astype(np.float64)
        wanted = {"loss": -np.log(p[np.arange(64), y]).mean(), "accuracy": (p.argmax(axis=1) == y).mean()}
        for labels in (y, np.eye(CLASSES)[y]):
            assert model.evaluate(x, labels, on, core=core) == pytest.approx(wanted, rel=1e-4)
    assert tpu.load(path, probabilities=True).evaluate(x, y)["loss"] == pytest.approx(wanted["loss"], rel=0.05)
    assert model.score(x, y) == model.evaluate(x, y)["accuracy"]


def test_the_model_runs_with_its_new_weights(path, data, tmp_path):
    """After training, all backends and a saved file compute with the new weights, and programs of the old ones are gone."""
    x, y = data
    model = tpu.load(path)
    old = model.predict(x, "model", core=CORE)
    history = model.fit(x, y, epochs=8, learning_rate=0.01, validation_data=(x, y))
    new = model.predict(x)
    assert (new != old).any() and history.history["val_accuracy"][-1] == pytest.approx(model.score(x, y))
    np.testing.assert_array_equal(model.predict(x, "model", core=CORE), new)
    np.testing.assert_allclose(model.predict(x, "onnx"), new, atol=0.02)
    model.save(tmp_path / "new.onnx")
    np.testing.assert_array_equal(tpu.load(tmp_path / "new.onnx").predict(x), new)
    assert [one.name for one in onnx.load(tmp_path / "new.onnx").graph.node] == ["first", "relu", "second", "last"]
    assert (
        str(history.epochs[0]).startswith("epoch 1, step 2: loss ")
        and "8 steps" not in repr(history)
        and "16 steps" in repr(history)
    )


def test_equivalent_graph_keeps_the_softmax(rng, tmp_path):
    """If weights of the file are not the core's own, here folded with a BatchNormalization, the trained model is another graph
    with the same meaning of its output."""
    b = Builder(["batch", INPUTS])
    b("Gemm", weights(rng, INPUTS, 6))
    b("BatchNormalization", *(rng.uniform(0.5, 1.5, 6).astype(np.float32) for _ in range(4)))
    b("Relu")
    b("Gemm", weights(rng, 6, CLASSES))
    b("Softmax", axis=1)
    model, (x, y) = tpu.load(b.save(tmp_path)), clusters(rng, 64)
    done = model.fit(x, y, epochs=2)
    assert not done.own_form
    for on in ("golden", "onnx"):
        np.testing.assert_allclose(model.predict(x, on).sum(axis=1), 1, atol=1e-5)
    model.fit(x, y)  # the new graph can be trained too


def test_steps_on_the_core(path, data):
    """The instruction-level model repeats steps on one core and on two, and each has the options that training needs."""
    x, y = data
    for cores in (1, 2):
        done = tpu.load(path).fit(x, y, batch_size=8, epochs=1, check_steps=2, on="model", core=CORE, cores=cores)
        assert done.core["rtl_steps"] == 2 and done.core["mismatched_bits"] == 0 < done.core["compared_values"]
        assert (done.core["ring"] is None) == (cores == 1)
    assert tpu.load(path).fit(x, y).core is None


@pytest.mark.parametrize("on, tokens, cores", [("model", 2, 2), *slow(("verilator", 3, 3))])
def test_steps_of_a_language_model_on_a_ring(rng, tmp_path, on, tokens, cores):
    """The cores repeat a step of a network with attention, with the learning rate of the whole batch. Each core sends the number
    of words of the formula."""
    model = tpu.load(language_model(rng, tokens, 4, 1, 3).save(tmp_path))
    x, y = rng.integers(0, 3, (2, 2 * cores, tokens))
    done = model.fit(x, y, batch_size=cores, steps=1, check_steps=1, on=on, core=CORE, cores=cores)
    assert done.core["rtl_steps"] == 1 and done.core["mismatched_bits"] == 0 < done.core["compared_values"]
    sent = None if on == "model" else [done.core["ring"]["formula"]] * cores
    assert done.core["ring"]["words_sent"] == sent


def test_a_wrong_bit_keeps_the_old_weights(path, data, monkeypatch):
    from amaranth_tpu.sim.trainer import core_steps

    x, y = data
    model, found = tpu.load(path), core_steps.StepRunner.__call__

    def wrong(*given):
        steps = found(*given)
        steps.logits[0].view(np.uint32)[3, 1] ^= 1
        return steps

    monkeypatch.setattr(core_steps.StepRunner, "__call__", wrong)
    with pytest.raises(tpu.RunError, match="1 bits differ from the golden model after 2 steps.*logits of step 1"):
        model.fit(x, y, check_steps=2, on="model", core=CORE)
    assert same(model, tpu.load(path))


def test_steps(path, data):
    """`steps` ends training within an epoch, with an evaluation, after the same steps as in a longer run."""
    x, y = data
    model, other, losses = tpu.load(path), tpu.load(path), []
    done = model.fit(x, y, batch_size=16, steps=6)
    assert len(done.step_losses) == 6 and [one.steps for one in done.epochs] == [4, 6] and not done.stopped_early
    each = {"evaluate_every": 2, "callbacks": lambda figures: losses.append(figures.loss)}
    whole = other.fit(x, y, batch_size=16, epochs=2, **each)
    assert done.step_losses.tolist() == whole.step_losses[:6].tolist() and losses == whole.history["loss"]


def test_a_function_ends_training(path, data):
    x, y = data
    done = tpu.load(path).fit(x, y, epochs=9, callbacks=[lambda figures: figures.epoch == 3, lambda figures: 1])
    assert len(done.epochs) == 3 and done.stopped_early


def test_early_stopping_keeps_the_best_epoch(path, data):
    """Training on one half with wrong validation labels soon raises the validation loss."""
    x, y = data
    model = tpu.load(path)
    held = x, (y + 1) % CLASSES
    done = model.fit(x, y, epochs=30, validation_data=held, learning_rate=0.01, callbacks=tpu.EarlyStopping(2))
    losses = done.history["val_loss"]
    assert done.stopped_early and len(losses) == done.best_epoch + 2 < 30 and losses[done.best_epoch - 1] == min(losses)
    assert model.evaluate(*held)["loss"] == pytest.approx(min(losses))


def test_the_best_epoch_without_an_early_end(path, data):
    x, y = data
    held = x, (y + 1) % CLASSES
    done = tpu.load(path).fit(x, y, epochs=5, validation_data=held, learning_rate=0.03, callbacks=tpu.EarlyStopping(None))
    assert len(done.epochs) == 5 and done.best_epoch < 5 and not done.stopped_early


def test_squared_error(rng, tmp_path):
    """The loss `mse` trains a regression, and `evaluate` computes it from wanted results in the shape of the output."""
    b = Builder(["batch", INPUTS])
    b("Gemm", weights(rng, INPUTS, 3), np.zeros(3, np.float32))
    model, x = tpu.load(b.save(tmp_path)), rng.normal(size=(128, INPUTS)).astype(np.float32)
    wanted = x[:, :3] * 2
    before = model.evaluate(x, wanted, loss="mse")
    assert before == {"loss": pytest.approx(np.square(model.predict(x) - wanted).mean(), rel=0.02)}
    done = model.fit(x, wanted, loss="mean_squared_error", epochs=20, learning_rate=0.05)
    assert model.evaluate(x, wanted, "onnx", loss="mse")["loss"] < 0.2 * before["loss"]
    assert done.history.keys() == {"loss", "learning_rate"} and len(done.history["loss"]) == 20


def test_metrics(path, data):
    x, y = data
    model = tpu.load(path)
    found = model.evaluate(x, y, metrics=["top-2", "confusion", "perplexity"])
    p = model.predict(x)
    assert found["top-2"] == pytest.approx((np.argsort(-p, axis=1)[:, :2] == y[:, None]).any(axis=1).mean())
    assert np.trace(found["confusion"]) == round(64 * found["accuracy"]) and found["perplexity"] == pytest.approx(
        np.exp(found["loss"])
    )


def test_words_of_keras(path, data):
    """`batch_size` is another name for `batch`, and the metric `accuracy` is the accuracy that is always there."""
    x, y = data
    model = tpu.load(path)
    wanted = model.evaluate(x, y)
    for metrics in ("accuracy", ["acc"], ["sparse_categorical_accuracy"]):
        assert model.evaluate(x, y, batch_size=16, metrics=metrics) == wanted
    assert model.evaluate(x, y, metrics="top-2").keys() == {"loss", "accuracy", "top-2"}
    for name in ("batch", "batch_size"):
        assert model.run(x, "model", core=CORE, **{name: 7}).program.batch == 7
        assert model.compile(CORE, **{name: 3}).batch == 3
    with pytest.raises(tpu.ArgumentError, match="`batch` and `batch_size` are the same argument; give one"):
        model.predict(x, batch=4, batch_size=4)
    with pytest.raises(TypeError, match="batches"):
        model.predict(x, batches=4)


def test_checkpoint(path, data, tmp_path):
    """A run that resumes gives the bits and the history of a run in one go, also when `steps` ended the first."""
    x, y = data
    models = [tpu.load(path) for _ in range(2)]
    whole = models[0].fit(x, y, batch_size=16, epochs=3)
    models[1].fit(x, y, batch_size=16, epochs=2, callbacks=tpu.Checkpoint(tmp_path / "run"))
    with pytest.raises(tpu.DataError, match=r"exists already; give Checkpoint\(folder, resume=True\)"):
        tpu.load(path).fit(x, y, batch_size=16, epochs=3, callbacks=tpu.Checkpoint(tmp_path / "run"))
    resumed = tpu.load(path)
    done = resumed.fit(x, y, batch_size=16, epochs=3, callbacks=[tpu.Checkpoint(tmp_path / "run", resume=True)])
    assert same(resumed, models[0]) and done.step_losses.tolist() == whole.step_losses.tolist()
    with pytest.raises(tpu.DataError, match="batch 16, not 8"):
        tpu.load(path).fit(x, y, batch_size=8, epochs=3, callbacks=tpu.Checkpoint(tmp_path / "run", resume=True))
    again = tpu.load(path)
    again.fit(x, y, batch_size=16, steps=12, callbacks=tpu.Checkpoint(tmp_path / "run", resume=True))
    assert same(again, models[0])  # no step is left


def test_tensorboard(path, data, tmp_path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    x, y = data
    done = tpu.load(path).fit(x, y, epochs=2, validation_split=0.5, batch_size=16, callbacks=tpu.TensorBoard(tmp_path / "log"))
    (file,) = (tmp_path / "log").iterdir()
    content, found = file.read_bytes(), {}
    while content:
        length = int.from_bytes(content[:8], "little")
        for value in event_pb2.Event.FromString(content[12 : 12 + length]).summary.value:
            found.setdefault(value.tag, []).append(value.simple_value)
        content = content[16 + length :]
    assert found["loss"] == pytest.approx(done.step_losses) and found["measured_loss"] == pytest.approx(done.history["val_loss"])


def test_history_is_plain_numbers(path, data):
    x, y = data
    done = tpu.load(path).fit(x, y, epochs=2, validation_split=0.25)
    assert list(json.loads(json.dumps(done.history))) == ["loss", "accuracy", "learning_rate", "val_loss", "val_accuracy"]


def test_errors_name_arguments(path, data):
    """Every invalid argument is refused in one line that names it, before a step, and without names of options."""
    x, y = data
    model = tpu.load(path)
    held = {"validation_data": (x, y)}
    for error, words, given in [
        (tpu.ArgumentError, "`epochs` and `steps` exclude each other", {"epochs": 1, "steps": 2}),
        (tpu.ArgumentError, "`epochs` must be an integer of at least 1, not 0", {"epochs": 0}),
        (tpu.ArgumentError, "`steps` must be an integer of at least 1, not 1.5", {"steps": 1.5}),
        (tpu.ArgumentError, "`batch_size` must be an integer of at least 1, not 0", {"batch_size": 0}),
        (tpu.ArgumentError, "`learning_rate` must be a number, not '0.1'", {"learning_rate": "0.1"}),
        (tpu.ArgumentError, "`dropout` must be a number, not True", {"dropout": True}),
        (tpu.ArgumentError, "3 is not a schedule; write", {"schedule": 3}),
        (tpu.DataError, "64 training samples do not fill a batch of 65", {"batch_size": 65}),
        (tpu.ArgumentError, "`optimizer` must be one of adam, adamw, rmsprop, sgd", {"optimizer": "adagrad"}),
        (tpu.ArgumentError, "`loss` must be one of cross_entropy", {"loss": "hinge"}),
        (tpu.ArgumentError, "`evaluate_every` must be an integer of at least 1, not 0", {"evaluate_every": 0}),
        (tpu.ArgumentError, "`learning_rate` must be a number above 0, not 0", {"learning_rate": 0}),
        (tpu.ArgumentError, "`learning_rate` 1e-40 or `weight_decay` 0 becomes 0", {"learning_rate": 1e-40}),
        (tpu.ArgumentError, "'cosinus' is not a schedule; write ", {"schedule": "cosinus"}),
        (tpu.ArgumentError, "dropout must be at least 0 and less than 1, not 1", {"dropout": 1}),
        (tpu.ArgumentError, "can't be cut into 3 equal shards", {"cores": 3}),
        (tpu.ArgumentError, "`validation_split` must be at least 0", {"validation_split": 1}),
        (tpu.ArgumentError, "`validation_split` 0.001 of 64 samples leaves a set empty", {"validation_split": 0.001}),
        (tpu.ArgumentError, "`validation_split` and `validation_data` exclude", {"validation_split": 0.5, **held}),
        (tpu.ArgumentError, r"`validation_data` must be \(x, y\), \(x, y, sample_weight\)", {"validation_data": x}),
        (tpu.DataError, "validation_data: label 4 of sample 0 is not a class", {"validation_data": (x, y * 0 + 4)}),
        (tpu.ArgumentError, "EarlyStopping needs `validation_split`", {"callbacks": tpu.EarlyStopping()}),
        (tpu.ArgumentError, "`callbacks` has 2 of Checkpoint", {"callbacks": [tpu.Checkpoint("a"), tpu.Checkpoint("b")]}),
        (tpu.ArgumentError, "`callbacks` takes objects of .*, not <class", {"callbacks": tpu.EarlyStopping}),
        (tpu.ArgumentError, "`check_steps` must be an integer of at least 1, not -1", {"check_steps": -1}),
        (tpu.ArgumentError, "`on` must be one of verilator, icarus, model", {"check_steps": 1, "on": "golden"}),
        (tpu.ConfigError, "core must be a Config", {"check_steps": 1, "core": 4}),
    ]:
        with pytest.raises(error, match=words) as caught:
            model.fit(x, y, **given)
        assert "\n" not in str(caught.value) and "--" not in str(caught.value)
    for words, labels in [
        (r"y: must hold 64 integers of shape \(64,\), one per sample, or one-hot rows \(64, 4\), not", np.zeros((64, 3))),
        ("y: shares of 4 classes must be numbers of at least 0", np.eye(CLASSES)[y] + (np.arange(64) == 5)[:, None]),
        (r"y: must hold .*, not float64 of shape \(64,\)", y * 0 + 0.5),
        ("y: label -1 of sample 0", y * 0 - 1),
    ]:
        for call in (model.fit, model.evaluate):
            with pytest.raises(tpu.DataError, match=words):
                call(x, labels)
    for words, given in [("'top' is not a metric", {"metrics": ["top"]}), ("`loss` must be one", {"loss": 3})]:
        with pytest.raises(tpu.ArgumentError, match=words):
            model.evaluate(x, y, **given)
    with pytest.raises(tpu.ArgumentError, match="`patience` must be an integer of at least 1, or None, not 0"):
        tpu.EarlyStopping(0)
    assert same(model, tpu.load(path))


def test_bytes_are_trained_unscaled_with_a_warning(path, data):
    """Samples of uint8 are trained on as they are: `fit` warns, and the bits equal the bits with float32 samples."""
    x, y = (data[0] > 0) * np.uint8(200), data[1]
    model, other = tpu.load(path), tpu.load(path)
    with pytest.warns(UserWarning, match=r"^x: the values of uint8, up to 255, .* give x / 255") as caught:
        model.fit(x, y)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.fit(x.astype(np.float32), y)
        bits = (x > 0).astype(np.uint8)
        tpu.load(path).fit(bits, y)  # 0 and 1 need no scaling
    assert same(model, other)


def test_progress(path, data, monkeypatch, capsys):
    """A long fit shows its steps before the end of the first epoch, and its steps on a core. `verbose=False` shows nothing."""
    monkeypatch.delenv("TPU_PROGRESS")
    monkeypatch.setattr(progress_lines, "_LINES", 0.001)
    step = TrainingRun._step
    monkeypatch.setattr(TrainingRun, "_step", lambda self: (step(self), time.sleep(0.1))[0])
    x, y = data
    tpu.load(path).fit(x, y, batch_size=16, check_steps=2, core=CORE)
    out, shown = capsys.readouterr()
    assert "compiling a training step for the core (0 s)\n" in shown and not out
    assert re.search(r"^epoch 1 of 1, step 1 of 4: loss [0-9.]+, accuracy [0-9.]+% \(\d+ s\)$", shown, re.MULTILINE)
    tpu.load(path).fit(x, y, batch_size=16, verbose=False)
    assert capsys.readouterr() == ("", "")


def test_tokens_of_a_convolution_with_one_more_in_front(rng, tmp_path):
    """The copy of the tokens to a longer tensor is not a reshape."""
    b = Builder(["batch", 2, 4, 4])
    b("Conv", weights(rng, 6, 2, 2, 2), strides=[2, 2])
    b("Reshape", np.array([0, 6, -1]))
    b("Transpose", perm=[0, 2, 1])
    b("Pad", np.array([0, 1, 0, 0, 0, 0]))
    b("Add", weights(rng, 1, 5, 6))
    b("Relu")
    b("Flatten")
    b("Gemm", weights(rng, 30, CLASSES))
    model, x = tpu.load(b.save(tmp_path)), rng.normal(size=(32, 2, 4, 4)).astype(np.float32)
    done = model.fit(x, np.arange(32) % CLASSES, check_steps=1, core=CORE, verbose=False)
    assert done.core["mismatched_bits"] == 0 and done.own_form


def test_rms_prop_and_a_function_as_schedule(path, data):
    """A core computes the same steps. The factors of the function determine if a checkpoint fits."""
    options = {"optimizer": "rmsprop", "learning_rate": 0.01, "epochs": 2, "check_steps": 2, "core": CORE, "verbose": False}
    done = tpu.load(path).fit(*data, schedule=lambda step: 1 / (1 + step), **options)
    assert done.core["mismatched_bits"] == 0
    assert [one.rate for one in done.epochs] == [0.01 / 2, 0.01 / 4]


def test_classes_of_pixels_computed_together(rng, tmp_path):
    """A network of inference computes several pixels of a ConvTranspose together; labels belong to each pixel."""
    builder = Builder(("batch", 2, 4, 4))
    builder("Conv", rng.normal(0, 1, (3, 2, 1, 1)).astype(np.float32))
    builder("Relu")
    builder("ConvTranspose", rng.normal(0, 1, (3, 3, 2, 2)).astype(np.float32), kernel_shape=[2, 2], strides=[2, 2])
    model = tpu.load(builder.save(tmp_path))
    x, y = rng.normal(0, 1, (16, 2, 4, 4)).astype(np.float32), rng.integers(0, 3, (16, 8, 8))
    assert model.evaluate(x, y)["accuracy"] == pytest.approx((model.predict(x).argmax(axis=1) == y).mean())
    model.fit(x, y, batch_size=8, steps=2, verbose=False)
    assert model.evaluate(x, y)["accuracy"] == pytest.approx((model.predict(x).argmax(axis=1) == y).mean())
