"""Tests that checkpoints are written completely or not at all, and are refused if they do not match the training."""

import json
import os

import numpy as np
import pytest
import safetensors.numpy
from ml_dtypes import bfloat16

from amaranth_tpu.sim.data import checkpoints, whole_files
from amaranth_tpu.sim.data.checkpoints import Checkpoint, CheckpointError
from amaranth_tpu.sim.data.digits import DataError

FILE = "checkpoint.safetensors"
FACTS = {"network": "n1", "data": "d1", "optimizer": "Sgd(momentum=0.9)", "batch": 8, "rate": 0.05}
SHAPES = {"master/w": ((3, 4), np.float32), "momentum/w": ((3, 4), bfloat16)}


@pytest.fixture
def tensors(rng):
    return {
        "master/w": rng.normal(size=(3, 4)).astype(np.float32),
        "momentum/w": rng.normal(size=(3, 4)).astype(bfloat16),
        "losses": rng.random(5),
        "right": rng.integers(0, 9, 5),
    }


@pytest.fixture
def folder(tmp_path, tensors):
    folder = Checkpoint(tmp_path / "new" / "run" / FILE)
    folder.write(FACTS, {"epoch": 3, "best": None}, tensors)
    return folder


def refused(folder, *said, facts=None, shapes=None):
    with pytest.raises(CheckpointError) as caught:
        folder.read(facts or FACTS, shapes or SHAPES)
    message = str(caught.value)
    assert "\n" not in message and FILE in message
    for text in said:
        assert text in message, message


def test_what_was_written(folder, tensors):
    progress, found = folder.read(FACTS, SHAPES)
    assert progress == {"epoch": 3, "best": None} and found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype and found[name].tobytes() == array.tobytes()
    assert [path.name for path in folder.path.parent.iterdir()] == [FILE]


def test_safetensors_reads_a_checkpoint(folder, tensors):
    """The safetensors package reads from a checkpoint the tensors and facts that were written."""
    with safetensors.safe_open(folder.path, "numpy") as file:
        assert set(file.keys()) == set(tensors) and json.loads(file.metadata()["facts"]) == FACTS
        assert (file.get_tensor("master/w") == tensors["master/w"]).all()


def test_of_another_run(folder):
    for name, value, said in (
        ("network", "n2", "is of another network"),
        ("data", "d2", "is of other samples; give the same ones, with the same options for them, or name another folder"),
        ("optimizer", "Adam()", "was made with optimizer Sgd(momentum=0.9), not Adam()"),
        ("batch", 16, "was made with batch 8, not 16"),
    ):
        refused(folder, said, facts=FACTS | {name: value})
    for name in SHAPES:
        refused(folder, name, facts=FACTS, shapes=SHAPES | {name: ((4, 3), np.float32)})
    refused(folder, "second/w", shapes=SHAPES | {"second/w": ((3, 4), np.float32)})


def test_of_another_version(folder, monkeypatch):
    """A file with another format, or with facts of other names, is of another version. It is not damaged."""
    said = "was written by another version of amaranth-tpu; name another folder, or delete the file to begin anew"
    refused(folder, said, facts=FACTS | {"evaluation": "every 5 steps"})
    refused(folder, said, facts={name: value for name, value in FACTS.items() if name != "rate"})
    monkeypatch.setattr(checkpoints, "_FORMAT", "3")
    refused(folder, said)


def test_every_truncation_and_damage(folder, rng):
    content = folder.path.read_bytes()
    for length in {0, 1, 7, 8, 9, 100, len(content) - 1, *rng.integers(0, len(content), 40).tolist()}:
        folder.path.write_bytes(content[:length])
        refused(folder)
    for place in rng.integers(0, len(content), 60):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        folder.path.write_bytes(damaged)
        refused(folder)
    for other in (b"nonsense" * 20, b"\x93NUMPY", b"PK\x03\x04" + bytes(90)):
        folder.path.write_bytes(other)
        refused(folder, "not a checkpoint")
    folder.path.write_bytes(safetensors.numpy.save({"a": np.zeros(3, np.float32)}))
    refused(folder, "not a checkpoint of tpu train")
    folder.path.write_bytes(safetensors.numpy.save({"a": np.zeros(3, np.int8)}))
    refused(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["master/w", "momentum/w", "losses"])
def test_numbers_that_are_not_finite(tmp_path, tensors, name, value):
    folder = Checkpoint(tmp_path / FILE)
    tensors[name].reshape(-1)[2] = value
    folder.write(FACTS, {}, tensors)
    refused(folder, "not finite", name)


def test_there_is_none(tmp_path):
    folder = Checkpoint(tmp_path / FILE)
    assert not folder.exists()
    refused(folder, "is not a file")
    folder.path.symlink_to("/dev/zero")
    refused(folder, "is not a file")


@pytest.mark.parametrize("place", ["write", "fsync", "replace"])
def test_a_disk_that_is_full_keeps_the_last_one(folder, tensors, monkeypatch, place):
    """If the disk is full while a checkpoint is written, synced or renamed, the error has one line, and the old checkpoint stays
    without partial files."""

    def full(*_):
        raise OSError(28, "No space left on device")

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, content):
            self.file.write(content[:10])
            full()

    before = folder.path.read_bytes()
    if place == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    elif place == "replace":
        monkeypatch.setattr(whole_files.Path, "replace", full)
    else:
        monkeypatch.setattr(whole_files, "open", lambda *a: Full(open(*a)), raising=False)
    with pytest.raises(DataError, match="No space left on device") as caught:
        folder.write(FACTS, {"epoch": 4}, tensors)
    assert FILE in str(caught.value)
    monkeypatch.undo()
    assert folder.path.read_bytes() == before and [path.name for path in folder.path.parent.iterdir()] == [FILE]


def test_partial_file_of_a_killed_process_is_removed(folder, tensors):
    """Writing a checkpoint removes the partial file of a killed process, and no other file."""
    left = folder.path.with_name(f"{FILE}.4711.partial")
    left.write_bytes(b"half")
    mine = folder.path.with_name("notes.partial")
    mine.touch()
    folder.write(FACTS, {"epoch": 4}, tensors)
    assert not left.exists() and mine.exists() and folder.read(FACTS, SHAPES)[0] == {"epoch": 4}


def test_a_place_for_no_folder(tmp_path, tensors):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file"):
        Checkpoint(tmp_path / "file" / FILE).write(FACTS, {}, tensors)


def test_devices_and_links_are_written_through(tmp_path):
    whole_files.write_file("/dev/null", b"x")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    for content in (b"new", b"over it"):
        whole_files.write_file(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "file").read_bytes() == content
    with pytest.raises(DataError, match="No such file"):
        whole_files.write_file(tmp_path / "none" / "x", b"")
