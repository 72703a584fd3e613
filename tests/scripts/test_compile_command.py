"""`tpu compile`: its files, the same each time, whole or not there, and its refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer

from amaranth_tpu.scripts.cli import command_line
from amaranth_tpu.sim.bundle.bundle import FILES
from command import refused, tpu, write_model


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_bytes_twice(tmp_path):
    model = write_model(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.arange(48, dtype=np.float32).reshape(3, 16))
    words = ("compile", "--model", model, "--preset", "tiny", "--batch", 2, "--input", tmp_path / "x.npy", "--name", "digits")
    done = tpu(*words, "-o", tmp_path / "one", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["n"] == 4 and figures["against_model"]["samples"] == 2 and {*figures["files"]} == {*FILES}
    done = tpu(*words, "-o", tmp_path / "deep" / "two", environment={"PYTHONHASHSEED": "7"})
    assert done.returncode == 0, done.stderr
    for text in ("m for n = 4, batch of 2", "region SCRATCH", "model.bin", "x.npy", "difference at most"):
        assert text in done.stdout
    assert contents(tmp_path / "one") == contents(tmp_path / "deep" / "two")
    assert {name: len(data) for name, data in contents(tmp_path / "one").items()} == figures["files"]
    assert (tmp_path / "one" / "samples.bin").read_bytes() == np.arange(32, dtype="<f4").tobytes()
    header = (tmp_path / "one" / "model.h").read_text()
    command = "tpu compile --n 4 --unified-buffer-depth 1024 --accumulator-depth 256 --model m.onnx --batch 2 --name digits"
    assert f"`{command}`" in header and "static const tpu_model digits = {" in header
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "x.npy", "one", "deep"}


def test_refusals(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    refused(tpu("compile", "--model", "d", "-o", tmp_path / "full"), "full", "mine")
    refused(tpu("compile", "--model", "d", "-o", tmp_path / "x", "--name", "tpu_x"), "--name")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine"]


def test_folders_that_are_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "a").touch()
    command_line.replaceable_folder(tmp_path / "ours", ["a", "b"])
    command_line.replaceable_folder(tmp_path / "deep" / "new", ["a"])
    monkeypatch.chdir(tmp_path / "ours")
    for place, words in ((Path(), "current folder"), (tmp_path / "file", "is a file"), (tmp_path / "file" / "x", "is a file")):
        with pytest.raises(typer.BadParameter, match=words):
            command_line.replaceable_folder(place, ["a"])


@pytest.mark.parametrize("at", ["write_bytes", "rename"])
def test_whole_or_not_at_all(tmp_path, monkeypatch, at):
    """A disk that is full, or a folder that cannot take its place: the old one stays."""
    target = tmp_path / "x"
    command_line.write_folder(target, {"a": b"1", "b": b"2"})
    done, calls = getattr(command_line.Path, at), []

    def fail(path, other):
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return done(path, other)

    monkeypatch.setattr(command_line.Path, at, fail)
    with pytest.raises(command_line.RunFailed, match="No space left"):
        command_line.write_folder(target, {"a": b"3", "b": b"4"})
    assert contents(target) == {"a": b"1", "b": b"2"} and list(tmp_path.iterdir()) == [target]
