"""The constants of a program, in region MODEL after the instructions."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Region, WeightFormat

from ...golden.arithmetic import bfloat16
from ...golden.function_tables import table_of
from ...golden.weight_formats import FORMATS, exact_codes, packed
from ..lowering.sums import Expansion, MatrixSum
from .emitter import ZEROS

__all__ = ["Constants"]


def _fixed(n):
    """Returns {name: tile} of the tiles of all steps: of -0, of 1, and the identity."""
    return {"nothing": np.full((n, n), -0.0), "ones": np.ones((n, n)), "identity": np.eye(n)}


class Constants:
    """The constants, in the order in memory: zeros, fixed tiles, function tables, and matrices of constants and factors.

    Members
    -------
    functions : tuple of Function, Derivative, InverseRoot or NormFactor
        Functions by table.
    has_upper_rows : bool
        True if sums start from rows of bfloat16.
    tables : dict
        {`key` of a function: first vector of its table}.
    first : int
        First vector of the matrices.
    turns : bool
        True if operands are transposed.
    needs_zeros : bool
        True if sums start from zeros.
    nothing, identity : int
        First vectors of a tile of -0 and of the identity.
    """

    def __init__(self, lowered):
        self.n, self.lowered, sums = lowered.geometry.n, lowered, lowered.sums
        functions = [result.function for one in sums for result in one.results if result.function.is_table]
        self.functions = tuple({function.key: function for function in functions}.values())
        self.has_upper_rows = any(isinstance(one, Expansion) or one.start and not one.start.wide for one in sums)
        products = [product for one in sums for product in one.products]
        factors = [product.weights for product in products if product.kind == "diagonal" and product.weights.form == "number"]
        self.turns = any(product.turned for product in products)
        needs_ones = any(product.kind == "total" for product in products)
        turned = any(product.copies and len(product.copies.turned) for product in products)
        needs_identity = self.turns or turned or lowered.one in factors or any(isinstance(one, Expansion) for one in sums)
        self.needs_zeros = self.turns or any(isinstance(one, MatrixSum) and one.start is None for one in sums)
        self._used = ("ones",) * needs_ones + ("identity",) * needs_identity
        self._resident = {one.name: one for one in factors if one is not lowered.one and one.region is Region.MODEL}
        self._formats = {}
        zeros = -(-ZEROS // self.n) * self.n
        self._tiles = {name: zeros + place * self.n for place, name in enumerate(_fixed(self.n))}
        self.nothing, self.identity = self._tiles["nothing"], self._tiles["identity"]
        self.first, self.tables = zeros + len(self._tiles) * self.n, {}
        for function in self.functions:
            self.tables[function.key] = self.first
            self.first += len(table_of(function).packed()) // (2 * self.n)

    @property
    def resident(self):
        """Names of the tiles that stay on the chip."""
        return (*self._used, *self._resident)

    def vector(self, name):
        """Returns the first vector of a resident tile."""
        return self.first + self._resident[name].vector if name in self._resident else self._tiles[name]

    def place(self, name):
        """Returns the first vector of the tile of a factor that the host writes."""
        return self.first + self.lowered.matrix(name, "number").vector

    @property
    def weights(self):
        """First vector of the image of constant weights."""
        return self.first + self.lowered.sizes[Region.MODEL]

    def format_of(self, matrix):
        """Returns the code of the smallest :class:`.WeightFormat` that holds all tiles of a matrix of weights exactly."""
        key = matrix.name, matrix.form
        if key not in self._formats:
            tiles = _tiles(matrix.pack(self.lowered.step.constants[matrix.name]), self.n)
            exact = (one for one in FORMATS if exact_codes(one, tiles) is not None)
            self._formats[key] = next(exact, WeightFormat.BFLOAT16).value
        return self._formats[key]

    def pack(self, image, blocks=None):
        """Returns all constants as bytes. Factors that the host writes are 0. `image` has the places of weight tiles; see
        :class:`.MatrixEmitter`. `blocks` has `(tiles, code of their format)` of neighbours; default: all are bfloat16."""
        n, step, matrices, weights = self.n, self.lowered.step, {}, {}
        for (name, _), matrix in self.lowered.matrices.items():
            if name in step.constants:
                (weights if self.lowered.is_weights(matrix) else matrices)[matrix.vector] = matrix.pack(step.constants[name])
            elif name in step.factors.values():
                matrices[matrix.vector] = bytes(2 * n * n)
        fixed = (tile.astype(np.float32).astype(bfloat16).tobytes() for tile in _fixed(n).values())
        tables = (table_of(function).packed() for function in self.functions)
        tiles, places, parts, first = np.frombuffer(_joined(weights, n), "<u2").reshape(-1, n * n), np.array([*image], int), [], 0
        weights.clear()  # large models: each of these lists of bytes is as large as the model
        for count, code in blocks or ((len(places), 0),):
            part, first, format_ = tiles[places[first : first + count]], first + count, WeightFormat(code)
            parts.append(packed(format_, *exact_codes(format_, _tiles(part.tobytes(), n))).tobytes() if code else part)
        del tiles
        return b"".join([bytes(2 * n * self.nothing), *fixed, *tables, _joined(matrices, n), *parts])


def _tiles(data, n):
    """Returns the bits of weight tiles, (tiles, n rows, n columns), from the vectors of their columns."""
    return np.frombuffer(data, "<u2").reshape(-1, n, n).swapaxes(1, 2)


def _joined(matrices, n):
    """Returns the bytes of matrices, {first vector: bytes}, in order and padded to whole tiles."""
    tile = 2 * n * n
    return b"".join(matrices[vector].ljust(-(-len(matrices[vector]) // tile) * tile, b"\0") for vector in sorted(matrices))
