"""Checkpoints of long jobs, in files that are written atomically.

A checkpoint is a safetensors file: named tensors and a JSON header. The header has the facts that determine the results of the
job, and a digest of the whole content. A job can only resume from a checkpoint with equal facts. Training replaces one file; a
run and a sweep have one file per finished part.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import safetensors
from ml_dtypes import bfloat16
from safetensors.numpy import save

from .digits import DataError
from .printable import printable
from .whole_files import remove_partial, write_file

__all__ = ["Checkpoint", "CheckpointError"]

_FORMAT = "2"
_ANEW = "name another folder, or delete the file to begin anew"
_OTHERS = {
    "network": "is of another network; name the one that it was made with",
    "source": "is of another version of amaranth-tpu; name the one that it was made with",
    "data": "is of other samples; give the same ones, with the same options for them",
    "measured": "measured its epochs with other samples; give the same ones to test with",
}
_TYPES = {"F32": np.float32, "F64": np.float64, "BF16": bfloat16, "I64": np.int64}


class CheckpointError(DataError):
    """A checkpoint cannot be used; the message is one line with the file, the cause and the remedy."""


class Checkpoint:
    """A checkpoint file.

    Parameters
    ----------
    path : path
        The file. :meth:`write` creates its folder.
    command : str
        Command that the checkpoint belongs to, for messages.
    """

    def __init__(self, path, command="tpu train"):
        self.path, self.command = Path(path), command

    def exists(self):
        """Returns True if the file exists."""
        return self.path.exists()

    def write(self, facts, progress, tensors):
        """Replaces the previous checkpoint, which is kept if writing fails.

        Parameters
        ----------
        facts : dict of str to str or number
            Values that must be equal in the job that resumes.
        progress : dict
            JSON values; numbers must be finite.
        tensors : dict of str to array
            float32, float64, bfloat16 or int64.

        Raises
        ------
        sim.data.digits.DataError
            If writing fails, for example on a full disk; one line.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{printable(self.path.parent)}: {error.strerror or error}") from None
        remove_partial(self.path)
        tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        described = {"format": _FORMAT, "facts": json.dumps(facts), "progress": json.dumps(progress, allow_nan=False)}
        write_file(self.path, save(tensors, described | {"sha256": _digest(described, tensors)}))

    def read(self, facts, shapes, finite=True):
        """Returns `(progress, tensors)` of the checkpoint.

        Parameters
        ----------
        facts : dict
            Facts of the resuming job, see :meth:`write`.
        shapes : dict of str to (shape, dtype)
            Required tensors; others may be present.
        finite : bool
            Refuse tensors with values that are not finite.

        Raises
        ------
        CheckpointError
        """
        described, tensors = self._parts()
        try:
            if described["format"] != _FORMAT:
                raise self.error(f"is of format {printable(described['format'], 20)}, not {_FORMAT}; {_ANEW}")
            found, progress, digest = dict(json.loads(described["facts"])), json.loads(described["progress"]), described["sha256"]
            differing = [name for name in facts if found.get(name) != facts[name]]
        except (KeyError, TypeError, ValueError):
            raise self.damaged() from None
        if differing:
            raise self.error(_difference(differing[0], found.get(differing[0]), facts[differing[0]]))
        wrong = [name for name, kind in shapes.items() if name not in tensors or _kind(tensors[name]) != kind]
        if wrong:
            raise self.error(f"has no {printable(wrong[0], 80)} of the network's shape: it is of another network; {_ANEW}")
        if _digest(described, tensors) != digest:
            raise self.error(f"is damaged: its digest differs from its content; {_ANEW}")
        if finite and (bad := [name for name, array in tensors.items() if not np.isfinite(array.astype(np.float64)).all()]):
            raise self.error(f"has numbers in {printable(bad[0], 80)} that are not finite; train anew with a lower learning rate")
        return progress, tensors

    def error(self, text):
        """Returns a :class:`CheckpointError` with the file's name and this text."""
        return CheckpointError(f"{printable(self.path)}: {text}")

    def damaged(self):
        """Returns the :class:`CheckpointError` for a file with invalid content."""
        return self.error(f"is no checkpoint of {self.command}, or a damaged one; name another folder")

    def _parts(self):
        """Returns `(strings of the header, tensors)`."""
        try:
            if not self.path.is_file():  # a device may have no end
                raise self.error("is no file; name another folder")
            content = self.path.read_bytes()
        except OSError as error:
            raise self.error(error.strerror or str(error)) from None
        try:
            parts = safetensors.deserialize(content)
            length = int.from_bytes(content[:8], "little")
            described = json.loads(content[8 : 8 + length]).get("__metadata__", {})
            tensors = {name: np.frombuffer(part["data"], _TYPES[part["dtype"]]).reshape(part["shape"]) for name, part in parts}
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise self.error(f"no checkpoint, or a damaged or truncated one ({printable(error, 100)}); {_ANEW}") from None
        return described, tensors


def _kind(array):
    return array.shape, array.dtype


def _digest(described, tensors):
    digest = hashlib.sha256(json.dumps([described[name] for name in ("format", "facts", "progress")]).encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _difference(name, there, here):
    if name in _OTHERS:
        return f"{_OTHERS[name]}, or name another folder"
    return (
        f"was made with {name} {printable(there, 60)}, not {printable(here, 60)}; give the same options, or name another folder"
    )
