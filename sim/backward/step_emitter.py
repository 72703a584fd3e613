"""The instruction emitter of a training step. It loads the weight tiles of sums on demand, and emits data transfers."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Format, FunctionCode, Half, Opcode, Region

from ..compiler.codegen.matmuls import Group
from ..compiler.codegen.scheduling import STARTING
from ..compiler.codegen.tile_emitter import NOTHING, StepConstants, Tile, TileEmitter, runs_of
from .parameters import MASTER
from .step_results import StepResults

__all__ = ["StepEmitter", "Constants", "FROM_ZERO", "from_rows"]

#: Fields with which sums start from +0.
FROM_ZERO = {"start": 1}


def from_rows(bias):
    """Returns instruction fields with which sums start from bias rows: one bias row per row of sums, starting at row `bias`."""
    return {"start": 1, "bias_rows": 1, "bias": bias}


class Constants(StepConstants):
    """The constants of a training step, with tiles of fixed weights.

    Parameters
    ----------
    n : int
    values : dict of str to number or None
        Factors of the named tiles, which are multiples of the identity. None: the optimizer determines the factor, which is 0 in
        :meth:`pack`. All elements of the tile `ones` are 1.
    zeros : int
        Least number of vectors of zeros.
    functions : sequence of Function, Derivative or InverseRoot
        Functions that need a function table.

    Members
    -------
    fixed : dict of bytes to int
        Tiles of fixed weights, and the first vector of each tile.
    """

    def __init__(self, n, values, zeros, functions=()):
        tiles = {
            name: np.ones((n, n)) if name == "ones" else np.eye(n) * np.float32(value or 0) for name, value in values.items()
        }
        super().__init__(n, zeros, tiles, functions)
        self.fixed = {}

    def add(self, tile):
        """Adds a tile of fixed weights, given as bytes, unless it exists. Returns its first vector in region MODEL."""
        return self.fixed.setdefault(tile, self.first + len(self.fixed) * self.n)

    def pack(self):
        return b"".join([super().pack(), *self.fixed])


class _Tiles:
    """The weight tiles of a :class:`.Group`, in the order of its passes."""

    def __init__(self, emitter, tiles):
        self.emitter, self.tiles, self.done = emitter, tiles, 0

    def fit(self, passes, count):
        """Returns the number of passes of the next MATMUL, at most `passes`. The tiles of a MATMUL are requested before the
        MATMUL. The tiles must therefore be contiguous in memory, or few enough for the weight FIFO. A pass has `count` tiles."""
        left = self.tiles[self.done : self.done + passes * count]
        _, size = next(runs_of(left, self.emitter.n))
        if self.emitter.images:
            size = min(size, self.emitter.images.together(left[0]) or size)
        return max(size // count, min(passes, max(1, self.emitter.config.weight_fifo_depth // 2 // count)))

    def bring(self, count):
        self.emitter.bring(self.tiles[self.done : self.done + count])
        self.done += count


class StepEmitter(TileEmitter):
    """The emitter of a training step's instructions.

    Parameters
    ----------
    config : Config
    scratch : int
        Size of region SCRATCH, in vectors.
    constants : Constants

    Members
    -------
    rows : dict of str to int
        Address in the unified buffer of each constant tile that is loaded.
    weights : dict of int to list
        Weight tiles of each term, by number of the spatial stage.
    biases : dict of int to Planes
        Planes of the bias, by number of the spatial stage.
    images : sim.backward.sharing.Gatherer or None
        Code generator that gathers the images of divided weights before they are read.
    flat_stages : int
        Number of the first dense stage, in the numbering of `stage`.
    table_ring : Ring or None
        Circular buffer in the unified buffer through which function tables are loaded, by default.
    """

    #: Training is defined for finite numbers only, and a sum that underflows to -0 may lose its sign.
    skips_margins = True

    def __init__(self, config, scratch, constants, table_ring=None):
        super().__init__(config, scratch, constants)
        self.table_ring = table_ring
        self.rows, self.images = {}, None
        self.weights, self.biases, self.flat_stages = {}, {}, 0
        self.zeroed, self.operands_loaded = False, 0

    # Moves

    def load(self, region, vector, rows, buffer, **fields):
        """Loads vectors from host memory into the unified buffer."""
        self.transfer(Opcode.LOAD, region, vector, rows, buffer=buffer, **fields)
        if self.operands_loaded < STARTING:  # at the start of the program, do not extend LOAD_WEIGHTS beyond an operand's load
            self.operands_loaded, self.bringing = self.operands_loaded + 1, None

    def load_rows(self, name, place, count=None):
        """Loads a constant tile, or its first `count` vectors, into the unified buffer at address `place`."""
        self.load(Region.MODEL, self.constants.vector(name), count or self.n, place)
        self.rows[name] = place

    def load_halves(self, planes, stretches, key=None):
        """Loads binary32 numbers as bias rows. `planes` are the first vectors of their upper and lower halves in SCRATCH, and
        `stretches` the ranges `(first row, rows)`. Returns the first bias row."""
        place = first = self.take_bias(sum(count for _, count in stretches), key)
        for row, count in stretches:
            for half, plane in zip((Half.UPPER, Half.LOWER), planes):
                self.transfer(Opcode.LOAD_BIAS, Region.SCRATCH, plane + row, count, bias=place, half=half)
            place += count
        return first

    # Sums

    def bring(self, tiles):
        if self.images:
            self.images.reach(tiles)
        super().bring(tiles)

    def store(self, region, vector, rows, buffer):
        """Stores vectors from the unified buffer to host memory."""
        self.transfer(Opcode.STORE, region, vector, rows, buffer=buffer)

    def load_table(self, function, operands=None):
        super().load_table(function, operands or self.table_ring)

    def group(self, tiles, count, acc, rows, bias=None):
        """Returns a :class:`sim.compiler.codegen.matmuls.Group` of `count` column tiles with `rows` sums each. `tiles` are the
        weight tiles, in the order of passes, then columns. The initial sums are the bias rows starting at `bias`. If `bias` is
        None, the initial sums are +0."""
        if bias is None:
            assert count <= self.zero_rows
            self._load_zeros()
        tiles, whole = [*tiles], [(0, rows)]
        passes = len(tiles) // count
        return Group(self, 0, count, acc, rows, passes, whole, passes, bias=bias or 0, tiles=_Tiles(self, tiles))

    def add_up(self, tiles, count, places, loops, acc, rows, bias=None):
        """Emits all passes of a :meth:`group` over the operands at the given addresses."""
        for _ in self.group(tiles, count, acc, rows, bias).add(places, loops):
            pass

    def add_product(self, name, vector, rows, acc):
        """Adds vectors of SCRATCH, multiplied by a diagonal constant, to the sums at `acc`.

        The vectors are loaded as weight tiles, and the operand is the diagonal tile in the unified buffer. This keeps the
        buffer's port free. The padding of the last tile must be finite.
        """
        whole, rest = divmod(rows, self.n)
        for first, each, count in ((0, self.n, whole), (whole * self.n, rest, 1)):
            if each and count:
                self.bring([Tile(Region.SCRATCH, vector + first + index * self.n, 1) for index in range(count)])
                self.pass_over(self.rows[name], each, acc + first, count, {})

    def _load_zeros(self):
        """Loads the bias rows that are zero, once per program."""
        if not self.zeroed:
            self.transfer(Opcode.LOAD_BIAS, Region.MODEL, 0, self.zero_rows, bias=0)
            self.zeroed = True

    def add_scaled(self, name, place, rows, acc, start=None):
        """Adds vectors of the unified buffer, multiplied by a diagonal constant, to the sums at `acc`. `start` is
        :data:`FROM_ZERO` or the result of :func:`from_rows`: new sums are started. Default: the products are added to the
        existing sums."""
        self.bring([Tile(Region.MODEL, self.constants.vector(name))])
        if start is FROM_ZERO:
            self._load_zeros()
        self.pass_over(place, rows, acc, 1, start or {})

    def pass_over(self, place, rows, acc, count, start):
        """Emits passes of the same operands over `count` weight tiles. The sums of consecutive tiles are consecutive."""
        loops = {"rows0": rows, "rows0_stride": 1, "rows1": 1, "tiles0": count, "tiles0_acc_stride": rows, "tiles1": 1}
        others = ("start", "keep", "bias_rows", "bias", "rows1_stride", "tiles0_stride", "tiles1_stride", "tiles1_acc_stride")
        self.emit(Opcode.MATMUL, {**dict.fromkeys(others, 0), **loops, "buffer": place, "acc": acc, **start})

    # Interface of StageEmitter for spatial stages

    def tiles(self, columns, passes, sample):
        """Returns the weight tiles of passes, for the column tiles `columns`."""
        first, count = columns
        terms = self.weights[self.stage]
        found = (terms[index].tile(ky, kx, tile, first + c) for index, ky, kx, tile in passes for c in range(count))
        return _Tiles(self, [tile or NOTHING for tile in found])

    def bias(self, column, count):
        """Returns the first bias row for column tiles of the current stage. Loads the bias first if it is not on the chip."""
        planes, key = self.biases.get(self.stage), (self.stage, column, count)
        if planes is None:
            self._load_zeros()
            return 0
        if key not in self.bias_places:
            self.load_halves(planes.places(MASTER), planes.stretches(column, count), key)
        return self.bias_places[key][0]

    def results(self, stage, wide):
        """Returns the object that writes the results of a stage."""
        return StepResults(self, stage, wide)

    # Results

    def activate(self, acc, buffer, rows, format=Format.BFLOAT16, function=FunctionCode.NONE, lanes=None):
        """Applies a function to `rows` consecutive rows of sums, and writes the results, in a format, to consecutive vectors of
        the unified buffer."""
        self.emit(
            Opcode.ACTIVATE,
            {"function": function, "format": format, "rows": rows, "lanes": lanes or self.n, "buffer": buffer, "acc": acc},
        )
