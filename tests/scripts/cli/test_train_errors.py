"""Tests of errors of `tpu train`: one line each, and no partial files."""

import sys

import numpy as np
import pytest

from command import refused, tpu_on_full_disk, write_model
from suites import slow
from train_command import run
from training_runs import CLASSES, INPUTS, write_dense_model

# ---- options refused before any work


def test_options_that_do_not_go_together(command, model, data, tmp_path):
    (tmp_path / "file").touch()
    for given, *said in (
        ((*data, "--data", tmp_path), "--data applies to digits"),
        (("--labels", data[3]), "--labels needs --input"),
        ((*data, "--test-labels", data[3]), "--test-labels needs --test-input"),
        ((*data, "--optimizer", "adam", "--momentum", 0.5), "--momentum needs --optimizer sgd"),
        ((*data, "--early-stopping", 2), "--validation 0.1"),
        ((*data, "--resume"), "--checkpoint DIR"),
        ((*data, "--n", 8), "--n sets the core for the comparison of steps: give their number with --rtl-steps"),
        ((*data, "--simulator", "icarus"), "--simulator sets the core"),
        ((*data, "--explain", "--simulator", "icarus"), "--simulator sets the core"),
        ((*data, "--explain", "--rtl-steps", 1), "--explain compiles a step and runs none"),
        ((*data, "--rtl-steps", "x"), "--rtl-steps must be `all` or a number"),
        ((*data, "--rtl-steps", 3, "--preset", "tiny", "--simulator", "model"), "core with training; choose one with --training"),
        ((*data, "--rtl-steps", 3, "--pauses", 9, "--simulator", "model"), "set the host memory of the RTL"),
        ((*data, "--schedule", "quadratic"), "'quadratic' is not a schedule"),
        ((*data, "--rate", -1), "`--rate` must be a number above 0"),
        ((*data, "--rate", "nan"), "`--rate` must be a number above 0"),
        ((*data, "--clip-norm", 0), "`--clip-norm` must be above 0"),
        ((*data, "--rate", 1e300), "becomes 0 or infinite in bfloat16"),
        ((*data, "--rate", 1e-60), "becomes 0 or infinite in bfloat16"),
        ((*data, "--rate", 1e-37), "becomes 0 or infinite in bfloat16"),
        ((*data, "--weight-decay", 1e60), "becomes 0 or infinite in bfloat16"),
        ((*data, "--weight-decay", 1e-41), "becomes 0 or infinite in bfloat16"),
        ((*data, "--weight-decay", "inf"), "weight decay must be at least 0 and finite"),
        ((*data, "--momentum", 0.999), "--momentum", "less than or equal to 0.998"),
        ((*data, "--batch", 10**170, "--optimizer", "adam"), "--batch"),
        ((*data, "--batch", 301), "do not fill a batch of 301"),
        ((*data, "--cores", 3), "a batch of 64 samples can't be cut into 3 equal shards"),
        ((*data, "--cores", 9), "less than or equal to 8"),
        ((*data, "--cores", 2, "--no-ring", "--rtl-steps", 1, "--simulator", "model"), "2 cores need the ring"),
        ((*data, "--validation", 0.001), "leaves a set empty"),
        (("--input", data[1]), "has no labels"),
        ((*data, "-o", tmp_path), "is a folder; name a file"),
        ((*data, "--checkpoint", tmp_path / "file"), "is a file; name a folder"),
        ((*data, "--log", tmp_path / "file"), "is a file; name a folder"),
        ((*data, "--curve", tmp_path / "curve.txt"), "a curve is not written to such a file; name one that ends in .svg"),
        ((), "28 x 28"),
    ):
        refused(command("train", "--model", model, *given), *said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model.onnx", "train-labels.npy", "train.npy"]


def test_wrong_labels(command, model, data, tmp_path):
    labels = np.load(data[3])
    for wrong, said in (
        (labels + 1, "label 4 of sample"),
        (labels - 1, "label -1 of sample"),
        (labels[:-1], "(300,)"),
        (labels / 2, "integers"),
    ):
        np.save(tmp_path / "wrong.npy", wrong)
        refused(command("train", "--model", model, *data[:2], "--labels", tmp_path / "wrong.npy"), "wrong.npy", said)


def test_models_that_can_not_be_trained(command, data, tmp_path, rng):
    refused(command("train", "--model", write_model(tmp_path / "m.onnx", INPUTS, CLASSES), *data), "the model ends in relu")
    model = write_dense_model(tmp_path / "n.onnx", rng, last="Tanh")
    refused(command("train", "--model", model, *data), "node 'second'", "the model ends in tanh")
    refused(command("train", "--model", tmp_path / "none.onnx", *data), "none.onnx")


@pytest.mark.parametrize("package, option, said", [("tensorboardX", "--log", "the log"), ("matplotlib", "--curve", "curve")])
def test_a_package_that_is_not_there(command, model, data, tmp_path, monkeypatch, package, option, said):
    monkeypatch.setitem(sys.modules, package, None)
    refused(command("train", "--model", model, *data, option, tmp_path / "x.svg"), f"pip install {package}", said)


@pytest.mark.parametrize("package, option, said", [("tensorboardX", "--log", "the log"), ("matplotlib", "--curve", "curve")])
def test_a_damaged_package(command, model, data, tmp_path, monkeypatch, package, option, said):
    """A damaged package (truncated file, incompatible dependency), which raises errors other than ImportError, gives a one-line
    error."""
    (tmp_path / f"{package}.py").write_text("raise EOFError('marshal data\\nis too short')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    refused(command("train", "--model", model, *data, option, tmp_path / "x.svg"), "data\\nis too short", said)


# ---- failures during training


def test_overflow_in_the_last_step_is_an_error(command, model, data, tmp_path):
    """A last step that makes a parameter or the loss infinite is an error. The printed losses do not show the overflow, because
    each loss is computed before its step."""
    given = ("--model", model, *data, "-o", tmp_path / "new.onnx", "--epochs", 1, "--batch", 300, "--schedule", "constant")
    for rate, what in ((8e40, "a parameter"), (1e38, "the loss")):
        refused(command("train", "--json", *given, "--rate", rate), f"{what} is no longer finite", "give a lower learning rate")
    assert not (tmp_path / "new.onnx").exists()


def test_a_rate_that_is_too_high(command, model, data, tmp_path):
    given = ("--model", model, *data, "-o", tmp_path / "new.onnx", "--checkpoint", tmp_path / "c")
    refused(command("train", *given, "--rate", 1e30), "error: the loss is ", "give a lower learning rate")
    assert not (tmp_path / "new.onnx").exists() and not (tmp_path / "c").exists()


def test_checkpoints_that_do_not_fit(command, model, data, tmp_path):
    given = ("--model", model, *data, "--checkpoint", tmp_path / "c")
    run(command, *given, "--epochs", 1)
    refused(command("train", *given), "exists already", "--resume")
    refused(command("train", *given, "--resume", "--batch", 32), "was made with batch 64, not 32")
    refused(command("train", *given, "--resume", "--optimizer", "adam"), "optimizer")
    refused(command("train", *given, "--resume", "--cores", 4), "was made with batch 64, not 64 on 4 cores")
    path = tmp_path / "c" / "checkpoint.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    refused(command("train", *given, "--resume"), "damaged or truncated")
    assert path.read_bytes() == content[:-5]


def test_nothing_to_resume_yet(command, model, data, tmp_path):
    done = command("train", "--model", model, *data, "--checkpoint", tmp_path / "c", "--resume", "--epochs", 1)
    assert done.returncode == 0 and "no checkpoint yet: starting at the first step" in done.stderr


@pytest.mark.parametrize("option, name", [("-o", "new.onnx"), *slow(("--checkpoint", "c"), ("--curve", "c.svg")), ("--log", "l")])
def test_a_full_disk(model, data, tmp_path, option, name):
    """On a full disk, training fails with a one-line error, leaves no partial file, and keeps an older file."""
    target = tmp_path / name
    if target.suffix:
        target.write_text("old")
    done = tpu_on_full_disk("train", "--model", model, *data, "--epochs", 3, "--json", option, target)
    refused(done, name, "File too large")
    if target.suffix:
        assert target.read_text() == "old"
    assert not [path for path in tmp_path.rglob("*") if "partial" in path.name or "safetensors" in path.name]
