"""Transposed gradients, which are the operands of weight gradients. Each row belongs to an output, and its lanes are n samples or
positions.

A core with `transpose` transposes vectors in a LOAD. On other cores a pass transposes vectors: the operands are the rows of the
identity, and the n vectors are the columns of the weight tile.
"""

from dataclasses import dataclass

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.codegen.tile_emitter import runs_of

__all__ = ["TransposedGradient", "transposing"]


@dataclass
class TransposedGradient:
    """A transposed gradient, stored as `[block of n samples][output]`.

    Parameters
    ----------
    rows : int
        Number of outputs, rounded up to whole tiles.
    blocks : int
    place : int or None
        Address in the unified buffer. None if the gradient is too large for the buffer.
    vector : int or None
        First vector in SCRATCH, if `place` is None.
    """

    rows: int
    blocks: int
    place: int | None
    vector: int | None = None

    def write(self, emitter, tiles, block, acc, ring):
        """Transposes the gradient's tiles, and writes the blocks starting at number `block`."""
        rows = len(tiles) * self.rows
        place = ring.take(rows) if self.place is None else self.place + block * self.rows
        for _ in transposing(emitter, tiles, place, acc):
            pass
        if self.place is None:
            emitter.store(Region.SCRATCH, self.vector + block * self.rows, rows, place)

    def read(self, emitter, first, size, ring):
        """Yields lists of addresses in the unified buffer, for several blocks at a time. Each address is the first of `size` rows
        of a block, starting at the block's row `first`. If the gradient is in SCRATCH, its rows are first loaded into the
        circular buffer `ring`."""
        if self.place is not None:
            yield [self.place + block * self.rows + first for block in range(self.blocks)]
            return
        step = max(1, ring.size // 3 // size)
        for block in range(0, self.blocks, step):
            count = min(step, self.blocks - block)
            place, vector = ring.take(count * size), self.vector + block * self.rows + first
            if size == self.rows:
                emitter.load(Region.SCRATCH, vector, count * size, place)
            else:
                for index in range(count):
                    emitter.load(Region.SCRATCH, vector + index * self.rows, size, place + index * size)
            yield [place + index * size for index in range(count)]


def transposing(emitter, tiles, place, acc):
    """Transposes tiles, and writes them to the unified buffer, starting at address `place`. `tiles` has the tiles of each block.
    The generator yields after each group of tiles. `acc`, a circular buffer of accumulator rows, limits the size of a group."""
    flat = [tile for block in tiles for tile in block]
    if emitter.config.transpose:
        for tile, count in runs_of(flat, emitter.n):
            emitter.load(tile.region, tile.vector, count * emitter.n, place, transpose=1)
            place += count * emitter.n
        yield
        return
    step = max(1, min(acc.size // emitter.n, emitter.zero_rows))
    if step >= len(tiles[0]):
        step = step // len(tiles[0]) * len(tiles[0])
    for first in range(0, len(flat), step):
        some = flat[first : first + step]
        rows = acc.take(len(some) * emitter.n)
        emitter.add_up(some, len(some), [emitter.rows["identity"]], [(1, 0), (emitter.n, 1)], rows, emitter.n)
        emitter.activate(rows, place + first * emitter.n, len(some) * emitter.n)
        yield
