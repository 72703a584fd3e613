"""The shapes of a model's outputs, as ONNX has them for any number of samples."""

from dataclasses import dataclass
from math import prod

__all__ = ["ResultShape"]


@dataclass(frozen=True)
class ResultShape:
    """The shape of an output.

    Parameters
    ----------
    dims : tuple of int
        Shape for one sample, with all axes of the output.
    batch : int or None
        The axis that grows with the number of samples; all axes before it have size 1. None: the model takes one sample.
    bare : bool
        Whether the batch's axis is missing if there is one sample.
    has_batch : bool
        Whether the model's input has an axis for samples, be it of size 1.
    """

    dims: tuple[int, ...]
    batch: int | None
    bare: bool = False
    has_batch: bool = True

    def of(self, count):
        """Returns the shape for `count` samples; None stands for any number, and for the size of the axis that it leaves open.

        The only sample of a model without a batch gets an axis before all others. Where the model takes one sample and the output
        has no axis of size 1 for it, several samples get an axis of their own too.
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
        """The shape of one sample's values, without an axis for several; all in one axis where they are no part of the output."""
        if self.batch is None:
            return self.dims if not self.has_batch else self.dims[1:] if self.dims[:1] == (1,) else (prod(self.dims),)
        return self.dims[1:] if self.batch == 0 and self.dims[0] == 1 else (prod(self.dims),)
