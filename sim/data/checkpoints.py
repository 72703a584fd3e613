"""Checkpoints of long jobs, in files that are written atomically.

A checkpoint is a safetensors file: named tensors and a JSON header. The header contains the facts that determine the results of
the job, and a digest of the content. A job can resume only from a checkpoint with equal facts. Training replaces a single file.
Simulations and sweeps have one file per finished work item.
"""

import contextlib
import fcntl
import hashlib
import json
import os
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
    """An error for a checkpoint that cannot be used. The message is one line with file, cause and remedy."""


class Checkpoint:
    """The file of a checkpoint.

    Parameters
    ----------
    path : path
        Path of the file. :meth:`write` creates the folder if needed.
    command : str
        Command that writes the checkpoint, for messages.
    """

    def __init__(self, path, command="tpu train"):
        self.path, self.command = Path(path), command

    def exists(self):
        """Returns True if the file exists."""
        return self.path.exists()

    @contextlib.contextmanager
    def alone(self):
        """Holds the folder during the `with` block, so that no other process writes a checkpoint there. The operating system
        releases it if this process dies. A new folder that stays empty is removed. Raises CheckpointError if another process
        holds the folder."""
        is_new = not self.path.parent.exists()
        self._make_folder()
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise self.error("another process trains into this folder; wait for it, or name another folder") from None
            yield
        finally:
            os.close(folder)
            if is_new:
                with contextlib.suppress(OSError):  # it has a checkpoint
                    self.path.parent.rmdir()

    def _make_folder(self):
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{printable(self.path.parent)}: {error.strerror or error}") from None

    def numbered(self, number):
        """Returns the :class:`Checkpoint` of a file beside this one whose name ends in a number."""
        return Checkpoint(self.path.with_stem(f"{self.path.stem}-{number}"), self.command)

    def write(self, facts, progress, tensors):
        """Writes the checkpoint in place of the previous one, which is kept if writing fails. Raises DataError if writing
        fails, for example on a full disk. The message is one line.

        Parameters
        ----------
        facts : dict of str to str or number
            Facts that must be equal in the job that resumes.
        progress : dict
            State of the job as JSON values. Numbers must be finite.
        tensors : dict of str to array
            State of the job as float32, float64, bfloat16 or int64 arrays.
        """
        self._make_folder()
        remove_partial(self.path)
        tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        described = {"format": _FORMAT, "facts": json.dumps(facts), "progress": json.dumps(progress, allow_nan=False)}
        write_file(self.path, save(tensors, described | {"sha256": _digest(described, tensors)}))

    def read(self, facts, shapes, finite=True, earlier=None):
        """Reads the checkpoint. Returns `(progress, tensors)` as given to :meth:`write`. Raises CheckpointError.

        Parameters
        ----------
        facts : dict
            Facts of the job that resumes, as in :meth:`write`.
        shapes : dict of str to (shape, dtype)
            Tensors that must be in the file. It may contain others.
        finite : bool
            Refuse a file with tensors that contain infinities or NaNs.
        earlier : dict or None
            Facts of files of earlier versions, which do not name them.
        """
        described, tensors = self._parts()
        try:
            found = (earlier or {}) | dict(json.loads(described["facts"]))
            progress, digest = json.loads(described["progress"]), described["sha256"]
            differing = [name for name in facts if name in found and found[name] != facts[name]]
            is_of_this_version = described["format"] == _FORMAT and (differing or found.keys() == facts.keys())
        except (KeyError, TypeError, ValueError):
            raise self.damaged() from None
        if not is_of_this_version:
            raise self.of_another_version()
        if differing:
            raise self.error(_difference(differing[0], found[differing[0]], facts[differing[0]]))
        wrong = [name for name, kind in shapes.items() if name not in tensors or _kind(tensors[name]) != kind]
        if wrong:
            raise self.error(f"has no {printable(wrong[0], 80)} of the network's shape: it is of another network; {_ANEW}")
        if _digest(described, tensors) != digest:
            raise self.error(f"is damaged: its digest differs from its content; {_ANEW}")
        if finite and (bad := [name for name, array in tensors.items() if not np.isfinite(array.astype(np.float64)).all()]):
            raise self.error(f"has numbers in {printable(bad[0], 80)} that are not finite; train anew with a lower learning rate")
        return progress, tensors

    def error(self, text):
        """Returns a :class:`CheckpointError` whose message is the file's name and `text`."""
        return CheckpointError(f"{printable(self.path)}: {text}")

    def damaged(self):
        """Returns the :class:`CheckpointError` for a file with invalid content."""
        return self.error(f"is not a checkpoint of {self.command}, or a damaged one; name another folder")

    def of_another_version(self):
        """Returns the :class:`CheckpointError` for a file whose content has other names than this version writes."""
        return self.error(f"was written by another version of amaranth-tpu; {_ANEW}, or resume with that version")

    def _parts(self):
        """Reads the file. Returns `(header as a dict of strings, tensors)`."""
        try:
            if not self.path.is_file():  # a device may never end
                raise self.error("is not a file; name another folder")
            content = self.path.read_bytes()
        except OSError as error:
            raise self.error(error.strerror or str(error)) from None
        try:
            parts = safetensors.deserialize(content)
            length = int.from_bytes(content[:8], "little")
            described = json.loads(content[8 : 8 + length]).get("__metadata__", {})
            tensors = {name: np.frombuffer(part["data"], _TYPES[part["dtype"]]).reshape(part["shape"]) for name, part in parts}
        except (safetensors.SafetensorError, KeyError, ValueError) as error:
            raise self.error(f"is not a checkpoint, or a damaged or truncated one ({printable(error, 100)}); {_ANEW}") from None
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
