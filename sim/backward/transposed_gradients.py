"""Transposed gradients: one row per output, whose lanes are n samples or positions. They are the operands of weight gradients.

A transposition is a pass of the identity's rows over a tile whose columns are the n vectors; in a core with `transpose`, a LOAD.
"""

from dataclasses import dataclass

from amaranth_tpu.hw.spec.isa import Region

from .step_emitter import runs_of

__all__ = ["TransposedGradient", "transposing"]


@dataclass
class TransposedGradient:
    """One transposed gradient, `[block][output]`.

    Parameters
    ----------
    rows : int
        Outputs, up to whole tiles.
    blocks : int
    place : int or None
        In the unified buffer; None if it is too large for that.
    vector : int or None
        In SCRATCH, then.
    """

    rows: int
    blocks: int
    place: int | None
    vector: int | None = None

    def write(self, emitter, tiles, block, acc, ring):
        """Writes blocks from `block` on."""
        rows = len(tiles) * self.rows
        place = ring.take(rows) if self.place is None else self.place + block * self.rows
        for _ in transposing(emitter, tiles, place, acc):
            pass
        if self.place is None:
            emitter.store(Region.SCRATCH, self.vector + block * self.rows, rows, place)

    def read(self, emitter, first, size, ring):
        """Yields places of `size` rows from row `first` on, block after block, in pieces; rows in SCRATCH are loaded."""
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
    """Transposes the `tiles` tiles of each block into the unified buffer from `place` on, through the ring `acc` of accumulator
    rows, as many blocks at once as it has room for. A generator, which yields after each group."""
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
