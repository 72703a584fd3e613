"""Where everything is in host memory, and how numpy arrays get there and back.

Region MODEL holds the instructions, the biases (one row of `n` binary32 a column tile) and the weight tiles in order of
use. INPUT and OUTPUT are cut by chunks of the batch: `[chunk][tile][row][lane]`, bfloat16 in, binary32 out. SCRATCH has
the same order for every hidden layer that does not fit the unified buffer; all chunks use the same place.
"""

import numpy as np

from ..golden.arithmetic import bfloat16

__all__ = ["MemoryMap", "tiles_of", "PAD"]

#: Padding of weights: x * -0 is -0 for the zeros in the pad lanes of x, and adding -0 changes no sum.
PAD = 0x8000


def tiles_of(size, n):
    """Tiles of `n` lanes that hold `size` values."""
    return -(-size // n)


class MemoryMap:
    """The layout of a network's data for one cut of the batch.

    Parameters
    ----------
    network : Network
    n : int
        Size of the array.
    chunks : sequence of int
        Batch rows of each chunk.
    """

    def __init__(self, network, n, chunks):
        self.network, self.n, self.chunks = network, n, tuple(chunks)
        self.widths = [network.input_size, *(layer.weights.shape[1] for layer in network.layers)]
        self.tiles = [tiles_of(width, n) for width in self.widths]
        self.first_rows = [sum(self.chunks[:c]) for c in range(len(self.chunks))]
        self.batch = sum(self.chunks)
        self.input_bytes = self.tiles[0] * self.batch * 2 * n
        self.output_bytes = self.tiles[-1] * self.batch * 4 * n
        self.bias_rows = sum(self.tiles[1:])

    def input_offset(self, chunk, tile):
        """Bytes to the first vector of this k tile of this chunk, in INPUT."""
        return (self.first_rows[chunk] * self.tiles[0] + tile * self.chunks[chunk]) * 2 * self.n

    def output_offset(self, chunk, tile, row=0):
        """Bytes to a row of this column tile of this chunk, in OUTPUT."""
        return (self.first_rows[chunk] * self.tiles[-1] + tile * self.chunks[chunk] + row) * 4 * self.n

    def scratch_offset(self, chunk, level, tile):
        """Bytes to the first vector of this tile of what layer `level - 1` gives, in SCRATCH."""
        before = sum(self.tiles[1:level]) * max(self.chunks)
        return (before + tile * self.chunks[chunk]) * 2 * self.n

    def bias_row(self, layer, column=0):
        """Number of the bias row of a column tile."""
        return sum(self.tiles[1:layer + 1]) + column

    def biases(self):
        """All bias rows, as bytes."""
        rows = []
        for layer, tiles in zip(self.network.layers, self.tiles[1:]):
            row = np.zeros(tiles * self.n, np.float32)
            if layer.bias is not None:
                row[:len(layer.bias)] = layer.bias
            rows.append(row)
        return np.concatenate(rows).astype("<f4").tobytes()

    def weights(self, layer):
        """Tiles of a layer as `[k tile, column tile, column, row]`, padded with -0."""
        n, weights = self.n, self.network.layers[layer].weights
        k, j = self.tiles[layer], self.tiles[layer + 1]
        padded = np.full((k * n, j * n), PAD, "<u2")
        padded[:weights.shape[0], :weights.shape[1]] = weights.view(np.uint16)
        return padded.reshape(k, n, j, n).transpose(0, 2, 3, 1)

    def pack_input(self, x):
        """Image of region INPUT for samples bfloat16 (up to batch, input size). Missing samples are zeros."""
        x = np.asarray(x)
        if x.dtype != bfloat16:
            raise TypeError(f"samples must be bfloat16, not {x.dtype}")
        if x.ndim != 2 or x.shape[1] != self.widths[0] or len(x) > self.batch:
            raise ValueError(f"samples must be of shape (up to {self.batch}, {self.widths[0]}), not {x.shape}")
        padded = np.zeros((self.batch, self.tiles[0] * self.n), "<u2")
        padded[:len(x), :x.shape[1]] = x.view(np.uint16)
        parts = []
        for first, rows in zip(self.first_rows, self.chunks):
            parts.append(padded[first:first + rows].reshape(rows, -1, self.n).transpose(1, 0, 2).tobytes())
        return b"".join(parts)

    def unpack_output(self, data):
        """float32 (batch, output size) from an image of region OUTPUT."""
        values = np.frombuffer(bytes(data[:self.output_bytes]), "<f4").astype(np.float32)
        result = np.empty((self.batch, self.widths[-1]), np.float32)
        position = 0
        for first, rows in zip(self.first_rows, self.chunks):
            count = rows * self.tiles[-1] * self.n
            part = values[position:position + count].reshape(-1, rows, self.n).transpose(1, 0, 2)
            result[first:first + rows] = part.reshape(rows, -1)[:, :self.widths[-1]]
            position += count
        return result
