"""NumPy array files: functions that read samples and labels, and write results."""

import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from .digits import DataError
from .labels import as_labels, as_wanted
from .printable import printable, quoted
from .samples import as_samples, joined_inputs
from .whole_files import write_file

__all__ = ["read_samples", "read_labels", "read_wanted", "read_array", "is_archive", "write_array", "write_arrays"]


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
    """Reads labels from a `.npy` file, with the checks of :func:`sim.data.labels.as_labels`. Raises DataError."""
    return as_labels(read_array(path, "labels"), count, classes, positions, printable(path))


def read_wanted(path, count, size):
    """Reads wanted results from a `.npy` file, with the checks of :func:`sim.data.labels.as_wanted`. Raises DataError."""
    return as_wanted(read_array(path, "labels"), count, size, printable(path))


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
            raise DataError(f"{printable(path)}: is not a .npy or .npz file; save an array with numpy.save")
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
