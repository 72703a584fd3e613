"""The shipped networks by their names for `tpu run --model`."""

from pathlib import Path

__all__ = ["GPT", "GPT_NAME", "SHIPPED"]

_HERE = Path(__file__).parent

#: Name -> ONNX file. `tpu train --model NAME --data DIR` trains these networks anew, except vit.
SHIPPED = {
    "default": _HERE / "mnist_mlp.onnx",
    "a": _HERE / "mnist_conv3x3.onnx",
    "b": _HERE / "mnist_conv5x5.onnx",
    "c": _HERE / "mnist_compact.onnx",
    "d": _HERE / "mnist_dense.onnx",
    "vit": _HERE / "mnist_vit.onnx",
}

#: Weights of the character GPT. `tpu train --model gpt` trains it anew.
GPT = _HERE / "gpt.safetensors"
#: Name of the character GPT for `tpu train --model`.
GPT_NAME = "gpt"
