"""Tests of `tpu train` in a separate process that is interrupted or killed, and then resumed."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from command import tpu
from training_runs import parameters, write_dense_model, write_samples


@pytest.fixture
def job(tmp_path, rng):
    rows, labels = write_samples(tmp_path, rng, 300)
    model = write_dense_model(tmp_path / "model.onnx", np.random.default_rng(5))
    return "--model", model, "--input", rows, "--labels", labels


def test_ctrl_c(job, tmp_path):
    """Ctrl-C prints one line and leaves only a complete checkpoint, from which training resumes."""
    folder = tmp_path / "c"
    command = [sys.executable, "-m", "amaranth_tpu.scripts.tpu", "train", *job, "--epochs", "100000", "--json"]
    command += ["--checkpoint", folder, "--schedule", "constant"]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _wait_for(folder / "checkpoint.safetensors", process)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    told = said.removesuffix("interrupted\n")  # a slow machine has told how long 100,000 epochs take
    assert (process.returncode, out) == (130, "") and told != said and (not told or "this takes" in told)
    assert [path.name for path in folder.iterdir()] == ["checkpoint.safetensors"]


def _wait_for(path, process):
    ended = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None and time.monotonic() < ended
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_at_any_moment(job, rng, tmp_path, seed):
    """A training that is killed and resumed many times ends with the same bits as an uninterrupted one."""
    chance = random.Random(seed)
    rows, labels = write_samples(tmp_path, rng, 80, "test")
    given = ["train", *job, "--test-input", rows, "--test-labels", labels, "--epochs", 40, "--batch", 8, "--dropout", 0.2]
    given += ["--json", "--optimizer", "adam", "--clip-norm", 0.1, "--schedule", "warmup:50+cosine"]
    whole = tpu(*given, "--checkpoint", tmp_path / "whole", "-o", tmp_path / "whole.onnx")
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "amaranth_tpu.scripts.tpu", *given, "--checkpoint", tmp_path / "c", "--resume"]
    command = [*map(str, [*command, "-o", tmp_path / "killed.onnx"])]
    checkpoint, kills = tmp_path / "c" / "checkpoint.safetensors", 0
    while True:
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if kills < 4:
            while process.poll() is None and (checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0) == before:
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.4))
            process.send_signal(signal.SIGKILL)
        out, said = process.communicate(timeout=300)
        if process.returncode != -signal.SIGKILL:
            break
        kills += 1
    assert process.returncode == 0, said
    one, two = json.loads(whole.stdout), json.loads(out)
    assert two["resumed_at"] and kills
    for figures in (one, two):
        for epoch in figures["epochs"]:
            epoch.pop("seconds")
    assert one["epochs"] == two["epochs"] and one["accuracy"] == two["accuracy"]
    assert (tmp_path / "whole.onnx").read_bytes() == (tmp_path / "killed.onnx").read_bytes()
    first, second = (parameters(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "c"))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first) and len(first) == 4
