"""Caches on disk, shared by processes. They map keys to bytes.

A file contains a digest and the content, and is written atomically. A file that is truncated, changed or unreadable counts as
missing. If the folder is not writable, the cache is disabled. The content of files is never executed.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

__all__ = ["DiskCache"]

_DIGEST = 32  # size of a SHA-256 digest in bytes


class DiskCache:
    """A cache: a folder in the build directory, with one file per key.

    Parameters
    ----------
    name : str
        Name of the folder. Without a final `s`, it is also the suffix of the files.
    """

    def __init__(self, name):
        self.name = name

    def _path(self, key):
        from amaranth_tpu.hw.tools.process import build_directory

        return build_directory() / self.name / f"{key.hex()[:40]}.{self.name.removesuffix('s')}"

    def load(self, key):
        """Returns the content stored under a key, or None. The key is a SHA-256 digest. The file becomes the most recently
        used."""
        with contextlib.suppress(OSError, RuntimeError):
            path = self._path(key)
            written = path.read_bytes()
            seal, content = written[:_DIGEST], written[_DIGEST:]
            if seal == _seal(key, content):
                os.utime(path)
                return content
        return None

    def store(self, key, content, most):
        """Stores bytes under a key. Then deletes the least recently used files, until the total size is at most `most` bytes."""
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
        with contextlib.suppress(FileNotFoundError):  # another process may have deleted it
            status = path.stat()
            files.append((status.st_mtime_ns, status.st_size, path))
    total = 0
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > most:
            path.unlink(missing_ok=True)
