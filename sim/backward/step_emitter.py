"""The instructions of a training step: sums over tiles that are loaded as they are needed, and the moves around them."""

from amaranth_tpu.hw.spec.isa import Format, Function, Half, Opcode, Region

from ..compiler.emitter import Emitter
from ..compiler.instructions import Ring
from ..compiler.matmuls import Group
from .tensors import Tile

__all__ = ["StepEmitter", "Constants"]

_MOST_TILES = 65_535  # in one LOAD_WEIGHTS


class Constants:
    """What a step needs in region MODEL, counted in vectors from the first: zeros, and tiles by name.

    Parameters
    ----------
    n : int
    names : sequence of str
    zeros : int
        Vectors.
    """

    def __init__(self, n, names, zeros):
        self.n, self.names, self.zeros = n, tuple(names), -(-zeros // n) * n

    def vector(self, name):
        """First vector of a tile."""
        return self.zeros + self.names.index(name) * self.n

    @property
    def vectors(self):
        return self.zeros + len(self.names) * self.n


class _Tiles:
    """LOAD_WEIGHTS of tiles in order, as few as there can be, each in front of the first MATMUL that takes one of its tiles."""

    def __init__(self, emitter, tiles):
        self.emitter, self.tiles, self.taken, self.brought = emitter, list(tiles), 0, 0

    def __call__(self, count):
        self.taken += count
        while self.brought < self.taken:
            first = self.tiles[self.brought]
            size = self._run(first)
            self.emitter.transfer(Opcode.LOAD_WEIGHTS, first.region, first.vector, size, transpose=first.transpose)
            self.brought += size

    def _run(self, first):
        """Tiles from there on that lie one behind the other."""
        size, step = 1, self.emitter.n
        while size < _MOST_TILES and self.brought + size < len(self.tiles):
            if self.tiles[self.brought + size] != first._replace(vector=first.vector + size * step):
                break
            size += 1
        return size


class StepEmitter(Emitter):
    """
    Parameters
    ----------
    config : Config
    scratch : int
        Vectors of region SCRATCH.
    constants : Constants

    Members
    -------
    acc, biases : Ring
        Accumulator rows, and bias rows.
    zero_rows : int
        Bias rows from 0 on that are zeros, so that sums of so many column tiles start from +0.
    """

    def __init__(self, config, scratch, constants):
        super().__init__(config, scratch)
        self.constants = constants
        self.zero_rows = min(16, config.bias_depth // 8)
        self.acc = Ring(0, config.accumulator_depth)
        self.biases = Ring(self.zero_rows, config.bias_depth - self.zero_rows)
        self.transfer(Opcode.LOAD_BIAS, Region.MODEL, 0, self.zero_rows, bias=0)

    # Moves

    def load(self, region, vector, rows, buffer):
        """Vectors of host memory -> unified buffer."""
        self.transfer(Opcode.LOAD, region, vector, rows, buffer=buffer)

    def store(self, region, vector, rows, buffer):
        """Unified buffer -> vectors of host memory."""
        self.transfer(Opcode.STORE, region, vector, rows, buffer=buffer)

    def load_halves(self, planes, rows):
        """Bias rows of numbers whose upper and lower halves begin at these vectors of SCRATCH. Returns the first row."""
        bias = self.biases.take(rows)
        for half, vector in zip((Half.UPPER, Half.LOWER), planes):
            self.transfer(Opcode.LOAD_BIAS, Region.SCRATCH, vector, rows, bias=bias, half=half)
        return bias

    # Sums

    def group(self, tiles, count, acc, rows, bias=None):
        """:class:`sim.compiler.matmuls.Group` of `count` column tiles of `rows` sums each, that takes these tiles in the order of
        its passes, then columns; from bias row `bias` on, None: from +0."""
        assert bias is not None or count <= self.zero_rows
        tiles = list(tiles)
        return Group(
            self, 0, count, acc, rows, len(tiles) // count, [(0, rows)], len(tiles), bias=bias or 0, bring=_Tiles(self, tiles)
        )

    def add_up(self, tiles, count, places, loops, acc, rows, bias=None):
        """All passes of a group, over operands at these places."""
        for _ in self.group(tiles, count, acc, rows, bias).add(places, loops):
            pass

    def diagonal(self, name, place, rows, acc, bias=None):
        """A pass over a constant tile: onto the sums at `acc`, or from bias rows, one for each row, or from +0 (bias -1)."""
        _Tiles(self, [Tile(Region.MODEL, self.constants.vector(name))])(1)
        fields = {
            "start": int(bias is not None),
            "keep": 0,
            "bias_rows": int(bias is not None and bias >= 0),
            "bias": max(bias or 0, 0),
            "buffer": place,
            "acc": acc,
            "rows0": rows,
            "rows0_stride": 1,
            "rows1": 1,
            "tiles0": 1,
            "tiles0_stride": 0,
            "tiles0_acc_stride": 0,
            "tiles1": 1,
            "tiles1_stride": 0,
            "tiles1_acc_stride": 0,
            "rows1_stride": 0,
        }
        self.emit(Opcode.MATMUL, fields)

    # Results

    def activate(self, acc, buffer, rows, format=Format.BFLOAT16, function=Function.NONE, lanes=None):
        """Sums in a row -> vectors in a row."""
        self.emit(
            Opcode.ACTIVATE,
            {"function": function, "format": format, "rows": rows, "lanes": lanes or self.n, "buffer": buffer, "acc": acc},
        )
