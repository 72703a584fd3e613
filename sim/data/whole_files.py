"""Atomic file writes: after a failure, a file has either its old or its new content, and no mixture."""

import contextlib
import os
from pathlib import Path

from .errors import DataError
from .printable import printable

__all__ = ["write_file", "remove_partial"]

_PARTIAL = "partial"


def write_file(path, content):
    """Writes bytes to a temporary file, syncs it to the disk, and renames it to `path`. Raises DataError if writing fails, for
    example on a full disk. The message is one line.

    If `path` is a link, a device or a pipe, the bytes are written to its target, and it is not replaced. After a failure, a kill
    or a power cut, either the old or the new file exists.
    """
    path = Path(path)
    target = Path(os.path.realpath(path))
    partial = target.with_name(f"{target.name}.{os.getpid()}.{_PARTIAL}")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        _sync_folder(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError(f"{printable(path)}: {error.strerror or error}") from None
        raise


def _sync_folder(folder):
    number = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(number)
    finally:
        os.close(number)


def remove_partial(path):
    """Removes the temporary files of processes that were killed in :func:`write_file` for this path."""
    path = Path(path)
    for left in path.parent.glob(f"{path.name}.*.{_PARTIAL}"):
        with contextlib.suppress(OSError):
            left.unlink()
