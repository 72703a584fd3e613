"""Files of other frameworks: their names, and the way from each to a model."""

__all__ = ["other_format"]

_ZIP = b"PK\x03\x04"
_KERAS = "is a Keras model, not ONNX; in Python, load it with `keras.models.load_model`, and give the result to `tpu.from_keras`"
_TORCH = "is a file of PyTorch, not ONNX; in Python, give the module to `tpu.from_torch`, or export it with `torch.onnx.export`"


def other_format(path, content):
    """Returns the name of a file's format and the way to a model, as one line, or None if the file may be ONNX. `content` are the
    bytes of the file."""
    if content.startswith(b"\x89HDF\r\n\x1a\n") or content.startswith(_ZIP) and path.suffix == ".keras":
        return _KERAS
    if path.suffix in (".pt", ".pth") and content.startswith((_ZIP, b"\x80")):
        return _TORCH
    if content[4:8] == b"TFL3":
        return "is a model of TensorFlow Lite, not ONNX; convert it with tf2onnx, or export the original model as ONNX"
    if content.startswith(_ZIP):
        return "is a ZIP archive, not ONNX; name the ONNX file in it"
    return None
