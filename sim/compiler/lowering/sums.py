"""The stages of a graph as sums of matrix products, each with all results that the core computes from it."""

from dataclasses import dataclass, field, replace
from typing import Any

from ...functions.functions import NONE
from ...ir.stage import Norm, Pool
from ..memory.matrices import Matrix
from ..memory.windows import Window

__all__ = ["Product", "Result", "Update", "Phase", "Move", "MatrixSum", "Expansion"]


@dataclass(frozen=True)
class Product:
    """A product of two matrices, which adds to sums."""

    #: `"matrix"`: the rows of `source` times the tiles of `weights`. `"diagonal"`: channels of `source` times the diagonals of
    #: `weights`, a matrix of form `number` or `diagonal`. `"total"`: the sum of the rows of `weights`; its result has the form
    #: `vector`. `"window"`: windows of `source` times the tiles, or the diagonals, of the kernel positions of `weights`.
    #: `"bands"`: windows of vectors of `lanes` positions of
    #: each channel of `source`, each channel by its own tiles. `"copied"`: `copies` of vectors of `source`.
    kind: str
    source: Matrix | None
    weights: Matrix
    turned: bool = False  # the source is transposed: its channels are the rows of the sums
    by_rows: bool = False  # The rows of `weights` are the inputs of the product. False: they are its outputs.
    own: bool = False  # each sample has its own weights
    window: Window | None = None
    lanes: int = 0  # positions in a vector, or in a line of vectors, if the source is loaded transposed
    blocks: tuple = ()  # Tuple of (int, int). As in :class:`sim.ir.stage.Term`.
    copies: Any = None  # a :class:`sim.compiler.lowering.lane_copies.VectorCopies`

    @property
    def has_lines(self):
        """Returns True if jobs must have whole lines of positions."""
        return self.window is not None or self.lanes > 0 or self.is_whole_copy

    @property
    def is_whole_copy(self):
        """Returns True if whole vectors are copied. Those of a sample are then on the chip together."""
        return self.kind == "copied" and self.weights.form == "number"

    def held_rows(self, rows, period):
        """Returns the rows of the unified buffer that hold a tile of inputs for `rows` rows of a job, `period` for each sample.
        Tiles that are loaded transposed have n rows for each vector of `lanes` positions."""
        n = self.weights.geometry.n
        if self.source and self.own and self.turned:
            return -(-rows // period) * self.source.geometry.period
        return -(-rows // self.lanes) * n if self.lanes and self.window is None else rows

    def is_constant(self, lowered):
        """Returns True if rows are multiplied by tiles of constant weights, in the order of their inputs."""
        return self.kind == "matrix" and not (self.turned or self.own or self.by_rows) and lowered.is_weights(self.weights)

    @property
    def inputs(self):
        """Tiles of inputs that each of the sums adds."""
        geometry = self.weights.geometry
        if self.kind in ("diagonal", "copied"):
            return 1
        if self.kind == "bands" and self.window:
            return self.window.positions
        if self.lanes and self.source:
            return self.source.tiles // geometry.n
        if self.window and self.source:
            return self.window.positions * (1 if self.weights.form != "turned" else self.source.tiles)
        if self.kind == "total" or self.turned and not self.own:
            return self.weights.rows // geometry.n
        if self.turned or self.source is None:
            return geometry.period // geometry.n
        return self.source.tiles


@dataclass(frozen=True)
class Result:
    """A result of sums: `matrix = round(function(sums)) * times`, or `matrix = sums where select is above 0`."""

    matrix: Matrix
    function: object = NONE
    softmax: bool | Norm = False
    times: Matrix | None = None
    select: Matrix | None = None
    pool: Pool | None = None  # max pooling before the function
    has_any_windows: bool = False  # True: windows of `pool` overlap, reach beyond the sums, or have gaps, dilations or padding
    index: bool = False  # True: the places of the maxima in the windows of `pool`
    #: Window of positions of the result for each of the sums: `select` has the place of the sum in its window. None: `select` has
    #: results that are above 0 or not.
    spread: tuple[int, int] | None = None

    @property
    def has_own_size(self):
        """Returns True if the result may have another size than the sums."""
        return self.pool is not None or self.spread is not None

    @property
    def steps(self):
        """Returns the distances of the windows of `pool`, or (1, 1)."""
        if self.pool is None:
            return 1, 1
        strides = zip(self.pool.size, self.pool.stride, self.pool.window)
        return tuple(have if count == 1 else by for count, by, have in strides)

    def lines(self, most):
        """Returns the lines of results of overlapping windows that are written together, to at most `most` rows of the unified
        buffer: all of a sample, if they fit."""
        height, width = self.pool.size if self.pool else (1, 1)
        each = width * self.matrix.halves
        return height if height * each <= most else max(1, most // (2 * each))

    def rows(self, rows, most):
        """Returns the rows in the unified buffer of the result of `rows` rows of sums, with the operand of a selection. Windows
        that overlap may have more results than sums. They are written sample by sample, in parts of `most` rows."""
        places = self.spread[0] * self.spread[1] if self.spread else 1
        if self.pool and self.has_any_windows:
            rows = max(rows, self.lines(most) * self.pool.size[1])
        return rows * (self.matrix.halves * places + (self.spread is not None))

    @property
    def beside(self):
        """Returns the matrix that is read at the places of the results."""
        return self.times or self.select


@dataclass(frozen=True)
class Update:
    """The update of a parameter and of its momentum by UPDATE. The sums are the gradient."""

    master: Matrix
    momentum: Matrix


@dataclass
class Phase:
    """Products that are added to sums, and the results that are then computed. `update` replaces results."""

    products: tuple
    results: list = field(default_factory=list)
    update: Update | None = None


@dataclass
class Move:
    """Work of a step that is no sum, such as an exchange between the cores of a ring. It has the attributes that orders and plans
    ask of a :class:`MatrixSum`. It reads the matrix `source`, and writes `made`."""

    name: str
    source: Matrix
    made: Matrix
    products = results = ()
    start = span = table = None
    steps = 1
    has_samples = is_update = is_image = False

    @property
    def reads(self):
        return [self.source]

    @property
    def writes(self):
        return [self.made]


@dataclass
class MatrixSum:
    """Sums, and all their results."""

    name: str
    phases: list  # list of Phase
    shape: Matrix  # has the rows and channels of the sums
    #: Initial sums: a row for each row of the sums, for each position of a sample, or (`vector`) for all.
    start: Matrix | None = None
    span: tuple | None = None  # First row, and number of rows, of a part of the sums. None: all rows.
    is_image: bool = False  # True: sums of samples need the results. False: sums without samples update a parameter.

    @property
    def rows(self):
        """Returns the rows as a range."""
        first, count = self.span or (0, self.shape.rows)
        return range(first, first + count)

    @property
    def products(self):
        return [one for phase in self.phases for one in phase.products]

    @property
    def results(self):
        return [one for phase in self.phases for one in phase.results]

    @property
    def reads(self):
        """Returns the matrices that the sums read, with repetitions."""
        operands = [matrix for product in self.products for matrix in (product.source, product.weights)]
        return [one for one in (*operands, self.start, *(result.beside for result in self.results), *self.updated) if one]

    @property
    def writes(self):
        made = [result.matrix for result in self.results]
        return [*made, *(copy.matrix for matrix in made for copy in matrix.copies), *self.updated]

    @property
    def updated(self):
        """Returns the matrices that UPDATE changes."""
        return [matrix for phase in self.phases if phase.update for matrix in (phase.update.master, phase.update.momentum)]

    @property
    def table(self):
        """Returns the key of the function by table of the results, or None."""
        return next((result.function.key for result in self.results if result.function.is_table), None)

    @property
    def has_samples(self):
        """Returns True if the sums have rows of samples."""
        return self.shape.form == "samples"

    @property
    def is_update(self):
        """Returns True if the sums belong to the update of a parameter."""
        return not (self.has_samples or self.is_image)

    @property
    def steps(self):
        """Returns the number of steps of a job. A step ends with results that precede other products."""
        return 1 + sum(bool(phase.results) for phase in self.phases[:-1])

    def split(self):
        """Returns sums with the same products, each with at most one function by table. Loading a table takes longer than
        computing sums again."""
        keys = list(dict.fromkeys(one.function.key for one in self.results if one.function.is_table))
        if len(keys) < 2 or len(self.phases) > 1:
            return [self]
        (phase,) = self.phases
        parts = [[one for one in phase.results if one.function.is_table and one.function.key == key] for key in keys]
        parts[0] += [one for one in phase.results if not one.function.is_table]
        return [replace(self, phases=[Phase(phase.products, results)]) for results in parts]

    @property
    def start_rows(self):
        """Returns `"zeros"`, `"one"`, `"samples"` (the same rows for each sample) or `"rows"`: the kind of the initial sums."""
        if self.start is None:
            return "zeros"
        if self.start.form == self.shape.form:
            return "rows"
        return "samples" if self.start.form == "positions" and self.start.rows > 1 else "one"


class Expansion(Move):
    """Writes a vector of factors as diagonals of tiles."""
