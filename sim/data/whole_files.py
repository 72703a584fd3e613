"""Files that are either whole or not there, whatever happens while they are written."""

import contextlib
import os
from pathlib import Path

from .errors import DataError
from .printable import printable

__all__ = ["write_file", "remove_partial"]

_PARTIAL = "partial"


def write_file(path, content):
    """Writes bytes beside a file and, once they are on the disk, puts them in its place; a link, a device or a pipe is written
    through, never replaced. After a failure, a kill or a power cut there is the old file or the new one.

    Raises
    ------
    DataError
        If it can't be written, as on a full disk: one line.
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
    """Puts a folder's new names on the disk, where its file system can."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(number)
    finally:
        os.close(number)


def remove_partial(path):
    """Removes what processes left that were killed inside of :func:`write_file` for this path."""
    path = Path(path)
    for left in path.parent.glob(f"{path.name}.*.{_PARTIAL}"):
        with contextlib.suppress(OSError):
            left.unlink()
