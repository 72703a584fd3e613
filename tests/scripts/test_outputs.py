"""Tests that a command refuses an output that is one of its inputs or has an unsuitable suffix."""

import os
import shutil

import numpy as np
import onnx
import pytest
import typer

from amaranth_tpu.scripts.cli.outputs import Output, check_outputs
from command import refused, write_idx, write_model
from onnx_models import Builder


@pytest.fixture
def files(tmp_path, rng, monkeypatch):
    """Creates a folder with a model, samples and labels, and with links to the model and to the samples. Changes the current
    folder to it."""
    write_model(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", rng.normal(size=(8, 16)).astype(np.float32))
    np.save(tmp_path / "labels.npy", rng.integers(0, 3, 8))
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    (tmp_path / "x.json").symlink_to("x.npy")
    os.link(tmp_path / "x.npy", tmp_path / "hard.npy")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


GOLDEN = ("run", "--model", "m.onnx", "--input", "x.npy", "--simulator", "golden")
TRAIN = ("train", "--model", "m.onnx", "--input", "x.npy", "--labels", "labels.npy", "--batch", 4, "--epochs", 1)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((*GOLDEN, "--output", "x.npy"), "x.npy is a file of --input"),
        ((*GOLDEN, "--output", "hard.npy"), "hard.npy is a file of --input"),
        ((*GOLDEN, "--output", "./../{folder}/x.npy"), "is a file of --input"),
        ((*GOLDEN, "--labels", "labels.npy", "--output", "labels.npy"), "labels.npy is a file of --labels"),
        (("run", "--model", "m.onnx", "--input", "x.npy", "--trace", "x.json"), "x.json is a file of --input"),
        ((*GOLDEN, "--output", "m.onnx"), "m.onnx: name a file that ends in .npy or .npz"),
        ((*GOLDEN, "--output", "y"), "y: name a file that ends in .npy or .npz"),
        (("run", "--model", "m.onnx", "--trace", "run.txt"), "run.txt: name a file that ends in .json"),
        ((*TRAIN, "-o", "link.onnx"), "link.onnx is a file of --model"),
        ((*TRAIN, "-o", "m.npy"), "m.npy: name a file that ends in .onnx"),
        (("sweep", "--model", "d,m.onnx", "--csv", "m.onnx"), "m.onnx: name a file that ends in .csv"),
        (("generate", "-o", "m.onnx"), "m.onnx: name a file that ends in .v or .sv"),
    ],
    ids=str,
)
def test_output_that_is_an_input_is_refused(command, files, arguments, said):
    before = _contents(files)
    refused(command(*(str(one).format(folder=files.name) for one in arguments)), said)
    assert _contents(files) == before


def test_folder_with_the_model_is_not_replaced(command, files):
    (files / "out").mkdir()
    shutil.copy(files / "m.onnx", files / "out" / "model.bin")
    refused(command("compile", "--model", "out/model.bin", "-o", "out"), "out contains the file of --model")
    assert (files / "out" / "model.bin").read_bytes() == (files / "m.onnx").read_bytes()


def test_weights_beside_the_model_are_inputs(tmp_path, rng):
    b = Builder(["n", 16])
    b("MatMul", rng.normal(size=(16, 16)).astype(np.float32))
    model = onnx.load(b.save(tmp_path))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.npy", size_threshold=0)
    with pytest.raises(typer.BadParameter, match="w.npy is a file of --model"):
        check_outputs({"--model": [tmp_path / "m.onnx"]}, Output("--output", tmp_path / "w.npy", (".npy",)))


def test_valid_outputs_are_accepted(tmp_path):
    """A new file, an older result, an input that is a device, and a suffix in capitals are accepted as outputs."""
    (tmp_path / "y.npy").touch()
    for path in (tmp_path / "new.npy", tmp_path / "y.npy", tmp_path / "Y.NPY"):
        check_outputs({"--input": [tmp_path / "x.npy", None]}, Output("--output", path, (".npy",)))
    with open(os.devnull) as device:
        check_outputs({"--input": [device.name]}, Output("--output", tmp_path / "y.npy", (".npy",)))


def test_padded_last_batch_is_reported(command, files, rng):
    """If the last batch is padded with zeros, a line on stderr reports the padding, and names a batch size that needs no
    padding. The default batch size needs no padding."""
    arguments = ("run", "--preset", "tiny", "--model", "m.onnx", "--input", "x.npy", "--simulator", "model")
    done = command(*arguments, "--batch", 7)
    assert done.returncode == 0, done.stderr
    assert "--batch 7: the last of 2 runs has 1 samples and is padded with zeros; --batch 4 needs no more runs" in done.stderr
    for batch in ((), ("--batch", 4), ("--batch", 8), ("--batch", 100)):
        assert "fill" not in command(*arguments, *batch).stderr


def test_digits_of_a_folder_are_kept(command, files, rng):
    write_idx(files / "data", rng.integers(0, 256, (4, 28, 28)).astype(np.uint8), np.arange(4, dtype=np.uint8))
    before = _contents(files / "data")
    target = files / "data" / "t10k-images-idx3-ubyte.gz"
    refused(command("run", "--model", "d", "--data", files / "data", "--output", target), "name a file that ends in")
    assert _contents(files / "data") == before
