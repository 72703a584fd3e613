"""The networks that come with the product, by the names that `tpu run --model` takes."""

from pathlib import Path

__all__ = ["SHIPPED"]

_HERE = Path(__file__).parent

#: Name -> ONNX file. `scripts/train.py` made the first, `scripts/train_cnn.py` the others.
SHIPPED = {
    "default": _HERE / "mnist_mlp.onnx",
    "a": _HERE / "models" / "mnist_conv3x3.onnx",
    "b": _HERE / "models" / "mnist_conv5x5.onnx",
    "c": _HERE / "models" / "mnist_compact.onnx",
    "d": _HERE / "models" / "mnist_dense.onnx",
}
