"""Tests that the reader's errors name the number or part at fault exactly once."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from onnx_models import Builder, refused, weights


def image(opset=13):
    return Builder(["n", 2, 6, 6], opset=opset)


def vector(opset=13):
    return Builder(["n", 4], opset=opset)


@pytest.mark.parametrize(
    "attributes, words",
    [
        ({"pads": [-1, 0, 0, 0]}, "pads [-1, 0, 0, 0] must not be below 0; cut with a Slice before it"),
        ({"pads": [1, 1]}, "pads [1, 1] has 2 numbers; 2 spatial axes need 4"),
        ({"strides": [1]}, "strides [1] has 1 numbers; 2 spatial axes need 2"),
    ],
)
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_lists_of_windows(tmp_path, operator, attributes, words):
    b = image()
    b(operator, np.ones((2, 2, 3, 3), np.float32), name="odd", **attributes)
    refused(b.save(tmp_path), "node 'odd'", words)


OTHER_FORMATS = {
    "net.h5": (b"\x89HDF\r\n\x1a\n\0", "Keras model", "tpu.from_keras"),
    "net.keras": (b"PK\x03\x04\x14\0", "Keras model", "tpu.from_keras"),
    "net.pt": (b"PK\x03\x04\0\0", "PyTorch", "tpu.from_torch"),
    "old.pth": (b"\x80\x02\x8a\n", "PyTorch", "tpu.from_torch"),
    "net.tflite": (b"\x1c\0\0\0TFL3", "TensorFlow Lite", "tf2onnx"),
    "net.zip": (b"PK\x03\x04\x14\0", "ZIP archive"),
    "net.onnx": (b"<html>", "not an ONNX model"),
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_files_of_other_frameworks(tmp_path, name):
    content, *words = OTHER_FORMATS[name]
    (tmp_path / name).write_bytes(content + bytes(100))
    refused(tmp_path / name, *words)


def test_root_of_negative_numbers(rng, tmp_path):
    b = vector()
    b("MatMul", weights(rng, 4, 4))
    b("Sqrt", name="odd")
    refused(b.save(tmp_path), "node 'odd'", "it is not a number at -1; add a Clip before it")


def test_error_names_the_operator_once(rng, tmp_path):
    """An error inside an operator's expansion names the operator exactly once."""
    b = Builder([2, 2, 2], opset=13)
    b("LogSoftmax", axis=0, name="odd")
    with pytest.raises(tpu.ModelError) as caught:
        tpu.load(b.save(tmp_path), strict=True)
    assert str(caught.value).count("node 'odd'") == 1, caught.value


def test_einsum_without_an_arrow(rng, tmp_path):
    """An Einsum equation without an arrow gives the letters that occur once, in alphabetical order. Other equations are
    refused."""
    b = vector()
    b("Einsum", weights(rng, 4, 3), name="odd", equation="bi,io")
    x = rng.normal(size=(3, 4)).astype(np.float32)
    model = tpu.load(b.save(tmp_path))
    assert model.predict(x).shape == (3, 3) and model.compare(x).error is None
    for equation in ("bi,ii->b", "bi,bo->io", "bi,oi->bi", "bi,io->bob"):
        b = vector()
        b("Einsum", np.ones((4, 4), np.float32), name="odd", equation=equation)
        refused(b.save(tmp_path), "node 'odd'", f"its equation {equation} is not a product of a tensor with constant")
