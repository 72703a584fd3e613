"""Files in the format GGUF (versions 2 and 3) that hold language models: metadata, and tensors as views of the file."""

import mmap
import struct
from dataclasses import dataclass
from math import prod

import numpy as np
from ml_dtypes import bfloat16

from .errors import DataError
from .gguf_blocks import BYTES, decode
from .printable import printable, quoted

__all__ = ["GgufFile", "Tensor"]

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # struct codes by type
_STRING, _ARRAY = 8, 9
_MOST_AXES, _MOST_DEPTH = 4, 2
#: Types of tensors by code, and the types of plain numbers.
_KINDS = {0: "F32", 1: "F16", 30: "BF16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0"}
_PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(bfloat16)}
_BLOCK = 32


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file.

    Parameters
    ----------
    shape : tuple of int
        The slowest axis first: (outputs, inputs) of a matrix.
    kind : str
        `F32`, `F16`, `BF16`, or a key of :data:`.BYTES`.
    data : uint8 array (outputs, bytes of an output)
    title : str
        Names the file and the tensor in messages.
    """

    shape: tuple
    kind: str
    data: np.ndarray
    title: str = ""

    def values(self, rows=slice(None)):
        """Returns the tensor, or some rows of it, as float32. Raises DataError for numbers that are not finite."""
        try:
            return self._values(rows)
        except DataError as error:
            raise DataError(f"{self.title}: {error}") from None

    def _values(self, rows):
        data = np.ascontiguousarray(self.data[rows])
        if self.kind in _PLAIN:
            found = data.view(_PLAIN[self.kind]).astype(np.float32)
            if not np.isfinite(found).all():
                raise DataError("a weight is infinite or NaN; the file is damaged, copy it again")
        else:
            found = decode(self.kind, data.reshape(-1), self.shape[-1])
        return found.reshape(-1, *self.shape[1:]) if len(self.shape) > 1 else found.reshape(self.shape)


class _Cursor:
    """Reads values from a file's bytes, and never beyond their end."""

    def __init__(self, data):
        self.data, self.place = data, 0

    def take(self, size):
        first, self.place = self.place, self.place + size
        if self.place > len(self.data):
            raise DataError(f"it ends after {len(self.data):,} bytes, within its header")
        return first

    def number(self, code):
        return struct.unpack_from("<" + code, self.data, self.take(struct.calcsize("<" + code)))[0]

    def text(self):
        size = self.number("Q")
        first = self.take(size)
        return self.data[first : first + size].decode("utf-8", "replace")

    def value(self, kind, depth=0):
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY and depth < _MOST_DEPTH:
            inner, count = self.number("I"), self.number("Q")
            if code := _NUMBERS.get(inner):
                size = struct.calcsize("<" + code)
                return np.frombuffer(self.data, np.dtype(f"<{code}"), count, self.take(count * size)) if count else ()
            if count > len(self.data):
                self.take(len(self.data) + 1)
            return [self.value(inner, depth + 1) for _ in range(count)]
        if kind not in _NUMBERS:
            raise DataError(f"its header has a value of the unknown type {kind}")
        return self.number(_NUMBERS[kind])


class GgufFile:
    """An opened GGUF file.

    Parameters
    ----------
    path : path

    Members
    -------
    facts : dict
        Metadata by key.
    tensors : dict of str to Tensor

    Raises
    ------
    DataError
        If the file cannot be read, is damaged, or has weights in blocks of another kind. The message is one line.
    """

    def __init__(self, path):
        self._name = printable(path)
        try:
            with open(path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or "the file is empty"
            raise DataError(f"{self._name}: {cause}; give a GGUF file") from None
        try:
            self._read(data)
        except DataError as error:
            raise DataError(f"{self._name}: {error}; download the file again, or give another one") from None

    def _read(self, data):
        if data[:4] != _MAGIC:
            raise DataError("it is not a GGUF file")
        cursor = _Cursor(data)
        cursor.place = len(_MAGIC)
        version = cursor.number("I")
        if version not in _VERSIONS:
            raise DataError(f"it has version {version} of GGUF; versions 2 and 3 of little-endian files can be read")
        count, entries = cursor.number("Q"), cursor.number("Q")
        self.facts = {}
        for _ in range(self._checked(entries, data)):
            key = cursor.text()
            self._once(key, self.facts)
            self.facts[key] = cursor.value(cursor.number("I"))
        infos = [self._info(cursor) for _ in range(self._checked(count, data))]
        align, self.tensors = self.facts.get("general.alignment", 32), {}
        if type(align) is not int or align < 1 or align % 8:
            raise DataError("its general.alignment must be a positive multiple of 8")
        first = -(-cursor.place // align) * align
        for name, shape, kind, offset in infos:
            self._once(name, self.tensors)
            self.tensors[name] = self._tensor(name, shape, kind, data, first + offset)

    @staticmethod
    def _once(name, before):
        if name in before:
            raise DataError(f"its header has {quoted(name)} twice")

    @staticmethod
    def _checked(count, data):
        if count > len(data):
            raise DataError(f"its header counts {count:,} entries, more than it has bytes")
        return count

    @staticmethod
    def _info(cursor):
        name, axes = cursor.text(), cursor.number("I")
        if axes > _MOST_AXES:
            raise DataError(f"tensor {quoted(name)} has {axes} axes")
        shape = tuple(cursor.number("Q") for _ in range(axes))[::-1]
        return name, shape, cursor.number("I"), cursor.number("Q")

    def _tensor(self, name, shape, code, data, first):
        kind = _KINDS.get(code)
        if kind is None:
            raise DataError(f"tensor {quoted(name)} has type {code}; {', '.join(_KINDS.values())} can be read")
        if not shape or 0 in shape or shape[-1] % _BLOCK and kind not in _PLAIN:
            raise DataError(
                f"tensor {quoted(name)} with the shape {shape} has rows that are not whole blocks of {_BLOCK} weights"
            )
        each = shape[-1] * _PLAIN[kind].itemsize if kind in _PLAIN else shape[-1] // _BLOCK * BYTES[kind]
        rows = prod(shape[:-1])
        if first + rows * each > len(data):
            raise DataError(f"tensor {quoted(name)} ends behind the end of the file, after {len(data):,} bytes")
        return Tensor(
            shape,
            kind,
            np.frombuffer(data, np.uint8, rows * each, first).reshape(rows, each),
            f"{self._name}: tensor {quoted(name)}",
        )

    def fact(self, key, kind=int, default=None):
        """Returns a value of the metadata, converted to `kind`. Raises DataError if there is neither it nor a default."""
        try:
            return kind(self.facts[key] if default is None else self.facts.get(key, default))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise DataError(f"its metadata has no usable {quoted(key)}; give a whole GGUF file") from None

    def texts(self, key):
        """Returns a list of texts in the metadata. Raises DataError if the file lacks it."""
        found = self.facts.get(key)
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise DataError(f"its metadata has no list {quoted(key)}; give a whole GGUF file")
        return found
