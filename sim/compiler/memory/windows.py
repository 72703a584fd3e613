"""Windows of convolutions in the unified buffer: images with margins, in which the operands of a kernel position have constant
strides.

An image has the positions of a sample's tile that the lines of a job need, line by line. Padding, and positions between those of
a gradient of a stride, are zeros. So each kernel position is an offset of the first operand.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

__all__ = ["Window", "merged_loops", "segments_of"]


@dataclass(frozen=True)
class Window:
    """The windows of a term. `kernel` to `apart` are as in :class:`sim.ir.stage.Term`."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    apart: tuple[int, int]
    #: source, size: Height and width of the source, and of the sums.
    source: tuple[int, int]
    size: tuple[int, int]

    def __str__(self):
        return ", ".join(f"{one.name} {'x'.join(map(str, getattr(self, one.name)))}" for one in fields(self))

    @property
    def positions(self):
        """Kernel positions."""
        return self.kernel[0] * self.kernel[1]

    @property
    def pitch(self):
        """Rows of a line of an image."""
        return self._span(1, self.size[1])

    def rows(self, lines):
        """Returns the rows of the image that `lines` lines of sums need."""
        return self._span(0, lines) * self.pitch

    def most_rows(self, count, period):
        """Returns the rows of the images for `count` rows of sums: lines of one sample, or samples of `period` rows."""
        return self.rows(-(-count // self.size[1])) if count < period else -(-count // period) * self.rows(self.size[0])

    def kernel_line(self, y):
        """Returns the window with only line `y` of the kernel."""
        return replace(self, kernel=(1, self.kernel[1]), padding=(self.padding[0] - y * self.dilation[0], self.padding[1]))

    def _span(self, axis, count):
        return (count - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis] + 1

    @lru_cache(maxsize=256)  # noqa: B019
    def image(self, first, lines):
        """Returns the source position of each row of the image for `lines` lines of sums from line `first` on, and -1 for
        zeros."""
        y = np.arange(self._span(0, lines)) + first * self.stride[0] - self.padding[0]
        x = np.arange(self.pitch) - self.padding[1]
        places, inside = [], []
        for one, apart, have in zip((y, x), self.apart, self.source):
            places.append(one // apart)
            inside.append((one % apart == 0) & (one >= 0) & (one // apart < have))
        rows = places[0][:, None] * self.source[1] + places[1]
        return np.where(inside[0][:, None] & inside[1], rows, -1).reshape(-1)

    def offset(self, position):
        """Returns the row of the first operand of a kernel position, counted from the image's first row."""
        y, x = divmod(position, self.kernel[1])
        return y * self.dilation[0] * self.pitch + x * self.dilation[1]

    def loops(self, lines):
        """Returns the loops (count, stride) over the lines of sums and their positions."""
        return [(lines, self.stride[0] * self.pitch), (self.size[1], self.stride[1])]

    def operands(self, position, first, lines):
        """Returns the source position of the operand of each sum of these lines, (lines, width), for a kernel position, and -1
        for zeros."""
        image, ((_, down), (width, across)) = self.image(first, lines), self.loops(lines)
        return image[self.offset(position) + np.arange(lines)[:, None] * down + np.arange(width) * across]

    @lru_cache(maxsize=4096)  # noqa: B019
    def reach(self, position, first, lines):
        """Returns the lines of sums, (first, end) of the `lines` lines from line `first` on, from the first to the last for which
        a kernel position has an operand that is not zero. Returns None if all operands are zero."""
        (found,) = np.nonzero((self.operands(position, first, lines) >= 0).any(axis=1))
        return (int(found[0]), int(found[-1]) + 1) if found.size else None


def segments_of(row, rows, geometry):
    """Returns the lines of sums `(row of the job, sample, first line, lines)` of a job, for each sample. Padding has none."""
    found, width = [], geometry.width
    for sample in range(row // geometry.period, min(-(-(row + rows) // geometry.period), geometry.batch)):
        base = sample * geometry.period
        first, end = (max(0, min(place - base, geometry.positions)) // width for place in (row, row + rows))
        if first < end:
            found.append((base + first * width - row, sample, first, end - first))
    return found


def merged_loops(loops):
    """Returns two loops (count, stride) that visit the same rows in the same order, or None."""
    merged = []
    for count, stride in loops:
        if merged and (merged[-1][0] == 1 or merged[-1][1] == count * stride):
            count *= merged.pop()[0]
        elif merged and count == 1:
            continue
        merged.append((count, stride))
    merged = [(1, 0)] * (2 - len(merged)) + merged
    return merged if len(merged) == 2 else None
