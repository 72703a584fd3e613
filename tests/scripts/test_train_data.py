"""Tests of `tpu train` on texts, pixels and wanted numbers, of further metrics, and of the weights that it keeps."""

from types import SimpleNamespace

import numpy as np
import pytest

from amaranth_tpu.scripts.cli import train_command, train_data, train_job
from amaranth_tpu.sim.golden.sums import Sums
from command import refused
from json_output import printed
from language_models import language_model
from onnx_models import Builder, weights
from suites import slow
from training_runs import CLASSES, FIXED, clusters, write_dense_model, write_samples


@pytest.fixture(autouse=True)
def in_numpy(monkeypatch):
    """Replaces numba by numpy for sums, because numba compiles longer than these small networks train."""
    monkeypatch.setattr(train_job, "fastest_sums", Sums)


def _run(command, *arguments):
    done = command("train", "--json", *arguments)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return printed("train", done.stdout)


def test_token_ids(command, tmp_path):
    """A language model learns a period of four ids. The last tenth of the ids is the validation set."""
    model = language_model(np.random.default_rng(FIXED)).save(tmp_path)
    np.save(tmp_path / "ids.npy", np.tile([5, 0, 3, 2], 60))
    plan = "--steps 12 --eval-every 4 --batch 4 --optimizer adamw --rate 0.01 --schedule warmup:5+cosine".split()
    metrics = "--metric", "perplexity", "--metric", "top-2"
    figures = _run(command, "--model", model, "--data", tmp_path / "ids.npy", *plan, *metrics, "-o", tmp_path / "new.onnx")
    assert (figures["samples"], figures["validation_samples"], figures["weight_decay"]) == (43, 4, 0.01)
    assert [one["steps"] for one in figures["epochs"]] == [4, 8, 12] and figures["own_form"]
    assert figures["epochs"][-1]["loss"] < figures["epochs"][0]["loss"]
    assert (
        figures["final_loss"] == figures["epochs"][-1]["measured_loss"] == pytest.approx(np.log(figures["metrics"]["perplexity"]))
    )
    assert figures["metrics"]["top-2"] >= figures["accuracy"] and figures["text"] is None
    refused(command("train", "--model", model), "the alphabet of this model is not known", "--data FILE.npy")
    np.save(tmp_path / "ids.npy", np.arange(60))
    refused(
        command("train", "--model", model, "--data", tmp_path / "ids.npy"), "token ids, integers of shape (tokens,) from 0 to 5"
    )


def test_pixels(command, tmp_path, rng):
    """Labels of several positions have the shape of the image, and -100 does not count."""
    b = Builder(["n", 2, 4, 3])
    b("Conv", weights(rng, 4, 2, 1, 1), weights(rng, 4))
    labels = rng.integers(0, 4, (20, 4, 3))
    labels[:, 0] = -100
    np.save(tmp_path / "x.npy", rng.normal(size=(20, 2, 4, 3)))
    np.save(tmp_path / "y.npy", labels)
    files = "--model", b.save(tmp_path), "--input", tmp_path / "x.npy", "--labels", tmp_path / "y.npy"
    figures = _run(command, *files, "--batch", 4, "--epochs", 1, "--metric", "confusion")
    assert np.sum(figures["metrics"]["confusion"]) == (labels >= 0).sum()
    labels[3, 1, 2] = 4
    np.save(tmp_path / "y.npy", labels)
    refused(command("train", *files), "label 4 of sample 3, position 5, is not a class of the model, 0 to 3")


def test_squared_error(command, tmp_path):
    """Without labels, the samples are the wanted results. There is no accuracy."""
    b, rng = Builder(["n", 6]), np.random.default_rng(FIXED)
    b("Gemm", weights(rng, 6, 3), weights(rng, 3))
    b("Gemm", weights(rng, 3, 6), weights(rng, 6))
    np.save(tmp_path / "x.npy", rng.normal(size=(64, 6)))
    files = "--model", b.save(tmp_path), "--input", tmp_path / "x.npy", "--loss", "mse", "--batch", 8, "--rate", 0.02
    figures = _run(command, *files, "--curve", tmp_path / "curve.svg")
    assert figures["loss"] == "mse" and figures["accuracy"] is figures["epochs"][0]["training_accuracy"] is None
    assert figures["final_loss"] < figures["epochs"][0]["loss"]
    np.save(tmp_path / "y.npy", rng.normal(size=(64, 5)))
    refused(command("train", *files, "--labels", tmp_path / "y.npy"), "must hold the wanted results, numbers of shape (64, 6)")
    refused(command("train", *files, "--metric", "top-2"), "--metric top-2 needs classes")


@pytest.mark.parametrize("form", ["column", "one-hot"])
def test_labels_of_other_forms(command, tmp_path, form):
    model, losses = write_dense_model(tmp_path / "model.onnx", np.random.default_rng(5)), []
    rows, labels = write_samples(tmp_path, np.random.default_rng(2), 60)
    for array in (np.load(labels), np.load(labels)[:, None] if form == "column" else np.eye(CLASSES)[np.load(labels)]):
        np.save(labels, array)
        losses.append(
            _run(command, "--model", model, "--input", rows, "--labels", labels, "--epochs", 1, "--batch", 8)["epochs"][0]["loss"]
        )
        np.save(labels, clusters(np.random.default_rng(2), 60)[1])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("shape, given", [((1, 5, 2), (5, 2)), ((5, 2, 1), (5, 2)), ((10,), (5, 2)), ((5, 2), (1, 5, 2))])
def test_samples_of_other_forms(command, tmp_path, shape, given):
    """Samples without the channel axis of the model's input, or images for a model of flat samples, train as flat samples."""
    rng, losses = np.random.default_rng(5), []
    b = Builder(["n", *shape])
    b("Flatten")
    b("Gemm", weights(rng, 10, CLASSES), weights(rng, CLASSES))
    model, (rows, labels) = b.save(tmp_path), write_samples(tmp_path, rng, 60)
    flat = np.load(rows)
    for array in (flat, flat.reshape(-1, *given)):
        np.save(rows, array)
        options = "--input", rows, "--labels", labels, "--epochs", 1, "--batch", 8
        losses.append(_run(command, "--model", model, *options)["epochs"][0]["loss"])
    assert losses[0] == losses[1]
    np.save(rows, flat.reshape(-1, 2, 5).transpose(0, 2, 1)[:, :, :1])
    refused(command("train", "--model", model, *options), "do not fit the model")


def test_weights_that_are_kept(command, tmp_path, rng):
    model, (rows, labels) = write_dense_model(tmp_path / "model.onnx", rng), write_samples(tmp_path, rng, 60)
    files = "--model", model, "--input", rows, "--labels", labels, "--epochs", 2, "--batch", 20
    refused(command("train", *files, "--keep", "best"), "--keep best needs a validation or test set: --validation 0.1")
    refused(command("train", *files, "--keep", "all"), "--keep all needs the checkpoints' folder: --checkpoint DIR")
    refused(command("train", *files, "--steps", 3), "--steps and --epochs exclude each other")
    _run(command, *files, "--keep", "all", "--checkpoint", tmp_path / "kept")
    assert len(list((tmp_path / "kept").glob("checkpoint-*.safetensors"))) == 2
    figures = _run(command, *files, "--keep", "best", "--validation", 0.3, "--rate", 0.5, "--batch", 4)
    assert figures["final_loss"] == min(one["measured_loss"] for one in figures["epochs"])


@pytest.mark.slow
def test_a_text_and_the_model_for_tpu_text(command, tmp_path):
    """`tpu train --model gpt` takes a text file. `tpu text --model` writes with the trained weights."""
    (tmp_path / "text.txt").write_text("The quick brown fox " * 40)
    options = "--data", tmp_path / "text.txt", "--steps", 2, "--batch", 2, "-o", tmp_path / "new.onnx"
    options += "--checkpoint", tmp_path / "kept"
    figures = _run(command, "--model", "gpt", *options)
    assert figures["text"].startswith("The ") and figures["own_form"] and figures["data"]["kind"] == "text"
    done = command(
        "text", "--model", tmp_path / "new.onnx", "--simulator", "golden", "--letters", 8, "--prompt", "The ", "--json"
    )
    assert figures["text"].startswith("The " + printed("text", done.stdout)["text"])
    done = command("train", "--model", "gpt", *options, "--resume", "--preset", "training")
    assert done.returncode == 1 and "was made with normalize 1, not 0; give" in done.stderr.splitlines()[-1]
    np.save(tmp_path / "x.npy", np.zeros(3))
    refused(command("text", "--model", tmp_path / "x.npy"), "cannot be read", "give a file of tpu train --model gpt")


def test_letters_outside_the_alphabet(command, tmp_path, monkeypatch):
    """The shipped weights have an alphabet. Letters that it lacks are counted before training. More than 5% are refused, except
    with --drop-letters."""
    monkeypatch.setattr(train_job, "_LETTERS", 2)
    path, words = tmp_path / "text.txt", "the quick brown fox " * 40
    for outside, share in ("", None), ("0123\u00e4" * 8, "40 of 840 letters (4.8%, most often '0', '1', '2', '3')"):
        path.write_text(words + outside)
        ids, note = train_data._ids(SimpleNamespace(data=path, model="gpt", drop_letters=False), 64)
        assert len(ids) == 800 and note == (share and f"without {share}, which are not in the model's alphabet")
    path.write_text(words + "\u00e4\u00f6" * 22)
    share = "44 of 844 letters (5.2%, most often '\u00e4', '\u00f6')"
    options = "train", "--model", "gpt", "--no-initialize", "--steps", 1, "--batch", 1, "--data", path
    refused(command(*options), f"{path}: {share} are not in", "or leave them out with --drop-letters")
    done = command(*options, "--drop-letters")
    assert done.returncode == 0 and done.stderr.startswith(f"{path}: without {share}, which are not in the model's alphabet\n")
    for other in ((), ("--model", "gpt")):
        refused(command("train", "--drop-letters", *other), "--drop-letters applies to a text")


@pytest.mark.parametrize(
    "text, alphabet", [("Gr\u00fc\u00dfe 123! ", "10 letters"), *slow(("".join(map(chr, range(0x4E00, 0x4F40))), "bytes"))]
)
def test_a_text_has_its_own_alphabet(command, tmp_path, monkeypatch, text, alphabet):
    """Fresh weights get the text's alphabet, which is in the file. `tpu text` writes with it, and training goes on with it."""
    monkeypatch.setattr(train_job, "_LETTERS", 2)
    monkeypatch.setattr(train_command, "_SAMPLE", 2)
    path, model = tmp_path / "text.txt", tmp_path / "new.onnx"
    path.write_text(text * (1200 // len(text)), encoding="utf-8")
    options = "--data", path, "--steps", 2, "--eval-every", 1, "--batch", 2
    done = command("train", "--model", "gpt", *options, "-o", model)
    assert done.returncode == 0 and "its alphabet is " in done.stderr and alphabet in done.stderr
    lines = done.stderr.splitlines()
    assert sum(line.startswith("  ") for line in lines) == 1  # a sample after the first evaluation
    done = command("text", "--model", model, "--simulator", "golden", "--letters", 9, "--prompt", text[:3], "--json")
    found = printed("text", done.stdout)["text"]
    assert alphabet == "bytes" or set(found) <= {*text}
    figures = _run(command, "--model", model, *options)
    assert figures["data"]["file"] == str(path) and figures["steps"] == 2
    done = command("text", "--model", model, "--simulator", "golden", "--letters", 1, "--prompt", text[0] + "\u20ac")
    assert ("without 1 of 2 letters" in done.stderr) == (alphabet != "bytes")


def test_prompt_with_letters_outside_the_alphabet(command):
    done = command("text", "--prompt", "In 1 + 2", "--letters", 1, "--simulator", "golden")
    assert done.stderr.startswith("--prompt: without 3 of 8 letters (37.5%, most often '1', '+', '2'), which are not in")


def test_text_refuses_other_weights_and_empty_prompts(command):
    """A missing file is named once, with the remedy, and so are a prompt without a letter of the alphabet,
    and a picture that cannot be written."""
    done = command("text", "--model", "none")
    refused(done, "error: none: No such file; give a file of tpu train --model gpt")
    assert done.stderr.count("none") == 1 == done.stderr.count("No such file")
    for prompt in ("", "123"):
        refused(command("text", "--prompt", prompt), "--prompt", "no letter of the model's alphabet", "give some text")
    for words, said in (
        (("--plot", "none/p.svg"), "--plot: none/p.svg: there is no folder none"),
        (("--model", "smollm2", "--plot", "p.svg"), "--plot: only the small GPT has this picture"),
    ):
        refused(command("text", *words), said)
