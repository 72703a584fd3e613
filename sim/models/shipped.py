"""The networks that come with the product, by the names that `tpu run --model` takes."""

from pathlib import Path

__all__ = ["SHIPPED"]

_HERE = Path(__file__).parent

#: Name -> ONNX file. `scripts/train/mlp.py` made the first, `scripts/train/cnn.py` the others.
SHIPPED = {
    "default": _HERE / "mnist_mlp.onnx",
    "a": _HERE / "mnist_conv3x3.onnx",
    "b": _HERE / "mnist_conv5x5.onnx",
    "c": _HERE / "mnist_compact.onnx",
    "d": _HERE / "mnist_dense.onnx",
}
