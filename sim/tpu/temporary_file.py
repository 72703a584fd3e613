"""ONNX models in temporary files: interpreters and messages need a path."""

import shutil
import tempfile
import weakref
from pathlib import Path

from ..data.printable import printable
from ..frontend.load import load_network
from ..ir.errors import ModelError

__all__ = ["TemporaryFile"]


class TemporaryFile:
    """An ONNX file in a temporary folder. The folder is removed with this object.

    Parameters
    ----------
    model : onnx.ModelProto or bytes
    name : str
        Name of the network, for messages. Characters other than letters, digits, `-`, `_` and `.` become `_`.

    Attributes
    ----------
    path : Path
    """

    def __init__(self, model, name):
        folder = Path(tempfile.mkdtemp(prefix="amaranth-tpu-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        name = "".join(one if one.isalnum() or one in "-_." else "_" for one in printable(name, 80)).lstrip(".")
        self.path = folder / f"{name or 'model'}.onnx"
        self.path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString(deterministic=True))

    def load(self, **options):
        """Reads the model, with the options of :func:`.load_network`. Errors name the network, not the temporary file."""
        try:
            return load_network(self.path, **options)
        except ModelError as error:
            raise ModelError(str(error).replace(f"{self.path.parent}/", "", 1).replace(".onnx:", ":", 1)) from None
