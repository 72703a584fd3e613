"""The bias rows of all stages in region MODEL, and their share of the bias memory."""

from functools import lru_cache
from itertools import accumulate

import numpy as np

from ...ir.tiles import tiles_of

__all__ = ["BiasImage", "most_sums"]


class BiasImage:
    """The bias rows of a network: a row for each column tile of the stages with one bias, then the rows of stages with bias rows.

    The rows of a stage with bias rows are `[column tile][position]`. Stages with equal biases share them, as the heads of an
    attention layer share its mask.

    Parameters
    ----------
    stages : sequence of Stage
    n : int

    Members
    -------
    plain : int
        Rows of the stages with one bias; those come first.
    size : int
        All rows.
    """

    def __init__(self, stages, n):
        self.stages, self.n, self._places, self._arrays = stages, n, {}, []
        self._first = [0, *accumulate(0 if stage.has_bias_rows else tiles_of(stage.channels, n) for stage in stages)]
        self.plain = self.size = self._first[-1]
        known = {}
        for number, stage in enumerate(stages):
            if stage.has_bias_rows:
                key = stage.bias.shape, stage.bias.tobytes()
                if key not in known:
                    known[key] = self.size
                    self._arrays.append(stage.bias)
                    self.size += int(np.prod(stage.size)) * tiles_of(stage.channels, n)
                self._places[number] = known[key]

    def row(self, stage, column=0):
        """Returns the row of a column tile of a stage with one bias. `stage` may be the number after the last stage."""
        return self._first[stage] + column

    def stretches(self, stage, column, rectangle):
        """Returns `[(first row, rows)]` of a column tile of the sums in a rectangle, for a stage with bias rows."""
        height, width = self.stages[stage].size
        base, (top, bottom), (left, right) = self._places[stage], rectangle.sum_rows, rectangle.sum_columns
        base += column * height * width
        if right - left == width:
            return [(base + top * width, (bottom - top) * width)]
        return [(base + y * width + left, right - left) for y in range(top, bottom)]

    def resident(self, depth):
        """Checks whether the rows of the stages with one bias stay in a bias memory of `depth` rows, beside a part for the other
        rows: all of these, or half of the memory."""
        return self.plain + min(self.size - self.plain, depth // 2) <= depth

    def rows(self):
        """Returns all rows, float32 (rows, n)."""
        rows = [np.zeros((0, self.n), np.float32)]
        for stage in self.stages:
            if not stage.has_bias_rows:
                bias = np.zeros(stage.channels, np.float32) if stage.bias is None else stage.bias
                rows.append(_padded(bias[None], self.n).reshape(-1, self.n))
        for bias in self._arrays:
            flat = _padded(bias.reshape(-1, bias.shape[2]), self.n)
            rows.append(flat.reshape(len(flat), -1, self.n).swapaxes(0, 1).reshape(-1, self.n))
        return np.concatenate(rows)


@lru_cache(maxsize=64)
def most_sums(stages, n, depth):
    """Returns the most sums with bias rows, over all column tiles whose passes alternate, in a bias memory of `depth` rows: two
    such groups fit, unless all rows of the network do."""
    image = BiasImage(stages, n)
    if image.resident(depth) and image.size <= depth:
        return depth - image.plain
    return (depth - image.plain if image.resident(depth) else depth) // 2


def _padded(rows, n):
    """Returns rows (count, channels) with zeros up to whole tiles."""
    padded = np.zeros((len(rows), tiles_of(rows.shape[1], n) * n), np.float32)
    padded[:, : rows.shape[1]] = rows
    return padded
