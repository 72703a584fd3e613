"""The emitter of instructions of training steps: weight tiles on demand, and updates."""

from typing import NamedTuple

from amaranth_tpu.hw.spec.isa import Half, Opcode, Region, UpdatePart

from ..codegen.emitter import Emitter
from ..codegen.instructions import Ring

__all__ = ["Tile", "TileEmitter", "runs_of"]

_MOST_TILES = 65_535  # largest number of tiles in one LOAD_WEIGHTS
_UPDATE_ROWS = 64  # largest number of rows of an UPDATE, for the overlap of its loads and stores with other UPDATEs
_UPDATES = 3  # UPDATEs whose bias rows are loaded at the same time


class Tile(NamedTuple):
    """A weight tile in host memory: n consecutive vectors for the weight FIFO. The vectors are the columns of the tile. If
    `transpose` is True, the vectors are the rows of the tile."""

    region: Region
    vector: int
    transpose: int = 0


def runs_of(tiles, n):
    """Yields `(first tile, number of tiles)` for each sequence of tiles that are contiguous in memory."""
    first = 0
    while first < len(tiles):
        one, size = tiles[first], 1
        while first + size < len(tiles) and tiles[first + size] == one._replace(vector=one.vector + size * n):
            size += 1
        yield one, size
        first += size


class TileEmitter(Emitter):
    """The emitter of a training step's instructions.

    Parameters
    ----------
    config : Config
    scratch : int
        Size of region SCRATCH, in vectors.
    constants : Constants

    Members
    -------
    zero_rows : int
        Number of bias rows, starting at row 0, that are zero.
    bringing : Op or None
        The last LOAD_WEIGHTS, as long as more tiles may be added to it.
    update_ring : Ring
        Circular buffer of rows of the update memory.
    """

    def __init__(self, config, scratch, constants):
        super().__init__(config, scratch)
        self.constants, self.bringing = constants, None
        self.zero_rows = min(16, config.bias_depth // 8, config.weight_fifo_depth)
        self.bias_ring = Ring(self.zero_rows, config.bias_depth - self.zero_rows)
        self.update_ring = Ring(0, config.update_depth)

    def transfer(self, opcode, region, vector, rows, **fields):
        super().transfer(opcode, region, vector, rows, **fields)
        if opcode in (Opcode.STORE, Opcode.STORE_UPDATE):
            self.bringing = None

    def bring(self, tiles):
        """Emits as few LOAD_WEIGHTS as possible for the tiles that the next MATMUL reads."""
        for one, size in runs_of(tiles, self.n):
            if not self._bring_more(one, size):
                self.transfer(Opcode.LOAD_WEIGHTS, one.region, one.vector, size, transpose=one.transpose)
                self.bringing = self.ops[-1]

    def _bring_more(self, tile, size):
        """Extends the last LOAD_WEIGHTS by `size` tiles, and returns True. Returns False if the instruction cannot be extended:
        the new tiles do not follow its last tile in memory, must wait for another unit, or have been stored since."""
        op = self.bringing
        if op is None or op.rows + size > _MOST_TILES or op.fields["transpose"] != tile.transpose:
            return False
        end = op.fields["offset"] // self.config.vector_bytes + op.rows * self.n
        if (op.fields["region"], end) != (tile.region, tile.vector):
            return False
        if tile.region is Region.SCRATCH:
            number = self.issued[op.unit]
            needs = self.places["scratch"].access(op.unit, number, tile.vector, size * self.n, False)
            if any(need > dict(op.waits).get(unit, 0) for unit, need in enumerate(needs)):
                return False
        op.rows += size
        op.fields["rows"] = op.rows
        return True

    def update(self, acc, rows, master, momentum):
        """Emits UPDATEs of `rows` rows of a parameter, whose gradient is the sums starting at `acc`. In region SCRATCH, `master`
        has the first vectors of the upper and lower halves of W, and `momentum` is the first vector of V. V is loaded after W."""
        most = max(1, min(_UPDATE_ROWS, self.bias_ring.size // (2 * _UPDATES)))
        planes = dict(zip((UpdatePart.UPPER, UpdatePart.LOWER, UpdatePart.MOMENTUM), (*master, momentum)))
        for first in range(0, rows, most):
            count = min(most, rows - first)
            bias, place = self.take_bias(2 * count), self.update_ring.take(count)
            for half, plane, after in zip((Half.UPPER, Half.LOWER, Half.UPPER), planes.values(), (0, 0, count)):
                self.transfer(Opcode.LOAD_BIAS, Region.SCRATCH, plane + first, count, bias=bias + after, half=half)
            fields = {"rows": count, "update": place, "acc": acc + first, "bias": bias}
            self.emit(Opcode.UPDATE, fields | {"momentum": 0, "rate": 0})  # the host writes the factors
            for part, plane in planes.items():
                self.transfer(Opcode.STORE_UPDATE, Region.SCRATCH, plane + first, count, part=part, update=place)
