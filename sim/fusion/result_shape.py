"""Shapes of the ONNX model's outputs, for any number of samples."""

from dataclasses import dataclass
from math import prod

__all__ = ["ResultShape"]


@dataclass(frozen=True)
class ResultShape:
    """The shape of an output, as a function of the number of samples."""

    dims: tuple[int, ...]  # shape of the output for one sample, including all axes
    #: Axis that grows with the number of samples. All axes before it have size 1. None: the model takes one sample.
    batch: int | None
    bare: bool = False  # True if the batch axis is missing for one sample
    has_batch: bool = True  # True if the model's input has a batch axis, possibly of size 1

    def of(self, count):
        """Returns the shape for `count` samples. With None, the batch axis has the size None.

        If the model has no batch axis, the sample axis precedes all others. If the model takes one sample and its output has no
        leading axis of size 1, several samples get an additional leading axis too.
        """
        if self.batch is not None:
            sizes = list(self.dims)
            sizes[self.batch] = None if count is None else sizes[self.batch] * count
            return tuple(sizes[1:] if self.bare and count == 1 else sizes)
        if not self.has_batch:
            return (count, *self.dims)
        if self.dims[:1] == (1,):
            return (count, *self.dims[1:])
        return self.dims if count in (None, 1) else (count, *self.dims)

    @property
    def sample(self):
        """Returns the shape of one sample's values, without the batch axis. It is one flat axis if a sample is not a slice of the
        output."""
        if self.batch is None:
            return self.dims if not self.has_batch else self.dims[1:] if self.dims[:1] == (1,) else (prod(self.dims),)
        return self.dims[1:] if self.batch == 0 and self.dims[0] == 1 else (prod(self.dims),)
