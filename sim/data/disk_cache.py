"""Caches on disk: bytes by key, for other processes.

A file holds a digest and its content. It is written whole or not at all. A file that is truncated, changed or not readable counts
as absent, and so does all of the cache where its folder can't be written. Nothing in a file is ever executed.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

__all__ = ["DiskCache"]

_DIGEST = 32  # bytes of a SHA-256


class DiskCache:
    """A folder of the build directory with a file for each key.

    Parameters
    ----------
    name : str
        Of the folder; files end in `.name`, without a final `s`.
    """

    def __init__(self, name):
        self.name = name

    def _path(self, key):
        from amaranth_tpu.hw.tools.process import build_directory

        return build_directory() / self.name / f"{key.hex()[:40]}.{self.name.removesuffix('s')}"

    def load(self, key):
        """Returns the content that :meth:`store` wrote under a key, a SHA-256, or None. The file becomes the newest."""
        with contextlib.suppress(OSError, RuntimeError):
            path = self._path(key)
            written = path.read_bytes()
            seal, content = written[:_DIGEST], written[_DIGEST:]
            if seal == _seal(key, content):
                os.utime(path)
                return content
        return None

    def store(self, key, content, most):
        """Keeps bytes under a key, and deletes the oldest files beyond `most` bytes in all."""
        with contextlib.suppress(OSError, RuntimeError):
            path = self._path(key)
            path.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
                try:
                    file.write(_seal(key, content) + content)
                    file.close()
                    os.replace(file.name, path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            _evict(path.parent, most)


def _seal(key, content):
    return hashlib.sha256(key + content).digest()


def _evict(folder, most):
    files = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process deleted it
            status = path.stat()
            files.append((status.st_mtime_ns, status.st_size, path))
    total = 0
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > most:
            path.unlink(missing_ok=True)
