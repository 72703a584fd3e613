"""The networks that come with the product, by the names that `tpu run --model` takes."""

from pathlib import Path

__all__ = ["SHIPPED"]

_HERE = Path(__file__).parent

#: Name -> ONNX file. `scripts/train.py` made the first, `scripts/train_cnn.py` the others.
SHIPPED = {
    "default": _HERE / "mnist_mlp.onnx",
    "d": _HERE / "models" / "mnist_dense.onnx",
}
