"""The terms of dense (flat) stages: their operands, tile by tile, and their weight tiles."""

from dataclasses import dataclass

from ..compiler.program import CompileError
from ..ir.tiles import tiles_of
from .lowering import flat_name
from .terms import FixedTiles, ParameterTiles

__all__ = ["FlatTerm", "flat_terms"]


@dataclass(frozen=True, eq=False)
class FlatTerm:
    """A term of a dense (flat) stage.

    Parameters
    ----------
    source : str
        Name of the operand, a tensor with one position per sample.
    passes : list of (int, int, int, int)
        Passes in the order of the sum: tile of the source, then kernel position (ky, kx) and channel tile of the weights.
    tiles : ParameterTiles or FixedTiles
    """

    source: str
    passes: list
    tiles: object

    def tile(self, place, column):
        """Returns the weight :class:`.Tile` that a pass multiplies for a column tile of the sums. Returns None if all weights of
        the tile are zero."""
        return self.tiles.tile(*place[1:], column)

    def transposed(self, source, output):
        """Returns the weight tile for the data gradient: from output tile `output` to tile `source` of the operand. It is the
        transposed tile of the forward pass. Returns None if the term does not read this tile of the operand, or if all weights
        are zero."""
        place = next((place for place in self.passes if place[0] == source), None)
        tile = place and self.tile(place, output)
        return tile and tile._replace(transpose=1)


def flat_terms(lowered, memory, constants, number):
    """Returns the :class:`FlatTerm` of each term of the dense stage with this number."""
    n, found = memory.n, []
    for index, term in enumerate(lowered.terms[number]):
        planes = memory.planes_of(number, index)
        height, width, inputs, _ = term.weights.shape
        count = tiles_of(inputs * term.groups, n)
        tiles = ParameterTiles(planes, (height, width), count) if planes else FixedTiles(constants, term)
        flattened, passes = term.source in lowered.flattened, []
        rows, columns = lowered.tensors[term.source].shape[:2] if flattened else (1, 1)
        for ky in range(height):
            for kx in range(width):
                y, x = (k * apart - before for k, apart, before in zip((ky, kx), term.dilation, term.padding))
                if 0 <= y < rows and 0 <= x < columns:
                    first = (y * columns + x) * count
                    passes += [(first + tile, ky, kx, tile) for tile in range(count)]
        found.append(FlatTerm(flat_name(term.source) if flattened else term.source, passes, tiles))
    if not any(term.passes for term in found):
        stage = lowered.training.graph.stages[number]
        raise CompileError(f"stage {stage.name}: reads nothing but padding, which can't be trained; leave it out of the model")
    return found
