"""NumPy array files: functions that read samples and labels, and write results."""

import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16

from .digits import DataError
from .printable import printable, quoted
from .samples import as_samples, joined_inputs
from .whole_files import write_file

__all__ = ["PADDING", "read_samples", "read_labels", "read_wanted", "read_array", "is_archive", "write_array", "write_arrays"]

#: Label of a position that does not count, as in PyTorch.
PADDING = -100

_MAGIC = np.lib.format.MAGIC_PREFIX
_MOST_BYTES = 1 << 32  # limit for the unpacked size of an array in an archive, in bytes


def read_samples(path, network, most=None):
    """Reads samples from a `.npy` file, or from a `.npz` file whose arrays are named like the model's inputs.

    For a model with several inputs, each row of a `.npy` file contains the values of all inputs, one input after the other.

    Returns `(samples, count)`: a :class:`sim.data.samples.Samples` with at most `most` samples, and the number of samples in the
    file. Raises DataError.
    """
    names = [one.name for one in network.origin.inputs] if network.origin and len(network.origin.inputs) > 1 else []
    if names and Path(path).is_file() and is_archive(path):
        array = {name: read_array(path, name) for name in names}
    else:
        array = read_array(path, network.origin.input if network.origin else None)
    try:
        array = joined_inputs(network, array) if isinstance(array, dict) else array
        samples = as_samples(network, array, most)
    except DataError as error:
        raise DataError(f"{printable(path)}: {error}") from None
    return samples, 1 if samples.alone else len(array)


def read_labels(path, count, classes, positions=1):
    """Reads labels from a `.npy` file: the class number of each sample, below `classes`.

    Integers of shape (count,) or (count, 1), or one-hot rows (count, classes) of any type, fit a model of one position. For
    several positions, integers of shape (count, positions) or (count, height, width) fit, where -100 does not count.

    Returns int64 (count,), or (count, positions). Raises DataError.
    """
    array = read_array(path, "labels")
    if positions == 1 and classes > 1 and array.shape == (count, classes) and _are_one_hot(array):
        return array.argmax(axis=1).astype(np.int64)
    wanted = (count,) if positions == 1 else (count, positions)
    fits = array.ndim and len(array) == count and array.size == count * positions
    if array.dtype.kind not in "iu" or not fits:
        each = "one per sample" if positions == 1 else f"{positions} per sample"
        raise DataError(
            f"{printable(path)}: must hold {count * positions} integers of shape {wanted}, {each}, not {array.dtype} of "
            f"shape {array.shape}"
        )
    array = array.astype(np.int64).reshape(wanted)
    wrong = np.argwhere(((array < 0) | (array >= classes)) & ((array != PADDING) | (positions == 1)))
    if len(wrong):
        at = f"sample {wrong[0][0]}" + (f", position {wrong[0][1]}," if positions > 1 else "")
        raise DataError(
            f"{printable(path)}: label {array[tuple(wrong[0])]} of {at} is not a class of the model, 0 to {classes - 1}"
        )
    return array


def _are_one_hot(array):
    return bool((((array == 0) | (array == 1)).all(axis=1) & ((array == 1).sum(axis=1) == 1)).all())


def read_wanted(path, count, size):
    """Reads wanted results from a `.npy` file, `size` numbers for each of `count` samples. Returns bfloat16 (count, size). Raises
    DataError."""
    array = read_array(path, "labels")
    if array.dtype.kind not in "fiub" or not array.ndim or len(array) != count or array.size != count * size:
        raise DataError(
            f"{printable(path)}: must hold the wanted results, numbers of shape ({count}, {size}), not {array.dtype} of shape "
            f"{array.shape}"
        )
    values = array.astype(np.float32).reshape(count, size)
    if not np.isfinite(values.astype(bfloat16).astype(np.float32)).all():
        raise DataError(f"{printable(path)}: has wanted results that are not finite in bfloat16; scale them")
    return values.astype(bfloat16)


def read_array(path, name=None):
    """Reads the array in a `.npy` file, or the array `name` in a `.npz` archive. Raises DataError.

    Memory is used only for data that is in the file, whatever size the header claims.
    """
    path = Path(path)
    try:
        return _from_archive(path, name) if is_archive(path) else _from_file(path)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{printable(path)}: {error.strerror or error}") from None
    except Exception as error:  # numpy and zipfile raise many types of exceptions for damaged files
        raise DataError(
            f"{printable(path)}: damaged, or not a file of numpy.save or numpy.savez; save it again "
            f"({type(error).__name__}: {printable(error, 100)})"
        ) from None


def is_archive(path):
    """Returns True if a file is a `.npz` archive. Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        return file.read(2) == b"PK"


def _from_file(path):
    if path.stat().st_size == 0:
        raise DataError(f"{printable(path)}: empty file; save an array with numpy.save")
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DataError(f"{printable(path)}: no .npy or .npz file; save an array with numpy.save")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # maps the file into memory; refuses a size beyond its end
    except ValueError as error:
        if "Python objects" not in str(error):
            raise
        raise DataError(f"{printable(path)}: holds Python objects, not numbers; save it as float32") from None
    if array.dtype.hasobject or array.dtype.kind == "V":
        raise DataError(f"{printable(path)}: holds {array.dtype}, not numbers; save it as float32")
    return array


def _from_archive(path, name):
    with zipfile.ZipFile(path) as archive:
        names = [entry.removesuffix(".npy") for entry in archive.namelist() if entry.endswith(".npy")]
        if name not in names:
            held = ", ".join(map(quoted, names[:10])) + (", ..." if len(names) > 10 else "")
            raise DataError(f"{printable(path)}: holds no array {quoted(name)}; it has {held or 'none'}")
        entry = archive.getinfo(f"{name}.npy")
        if entry.file_size > _MOST_BYTES:
            raise DataError(
                f"{printable(path)}: its array {quoted(name)} has {entry.file_size} bytes, the limit is "
                f"{_MOST_BYTES}; save it with numpy.save"
            )
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "array.npy"
            with archive.open(entry) as packed, open(part, "wb") as plain:
                while chunk := packed.read(1 << 20):
                    plain.write(chunk)
            return np.array(_from_file(part))


def write_array(path, array):
    """Writes an array to a `.npy` file, atomically (:func:`sim.data.whole_files.write_file`)."""
    whole = io.BytesIO()  # numpy needs a file that can seek, which a pipe cannot
    np.save(whole, array, allow_pickle=False)
    write_file(path, whole.getbuffer())


def write_arrays(path, arrays):
    """Writes named arrays to a `.npz` file, atomically (:func:`sim.data.whole_files.write_file`)."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:  # numpy.savez does not accept all names, such as those of its own parameters
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    write_file(path, whole.getbuffer())
