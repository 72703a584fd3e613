"""Sums of gradients over the cores of a ring.

Each core stores the gradient of its own samples in region SCRATCH. ALL_REDUCE replaces it by the sum over all cores. Then every
core updates all parameters. Each output of weights belongs to the segment of one core, and each segment has its own order of
sums. Biases and gains have the order of segment 0, so the other segments of their exchange contain no data.
"""

from dataclasses import dataclass

from amaranth_tpu.hw.spec.isa import Opcode, RingMode

from ...autodiff.rings import segment_outputs
from ..codegen.ring_exchange import emit_ring
from ..program import CompileError
from .forms import NotMatrices
from .matrices import Matrix

__all__ = ["AllReduce", "all_reduce", "reduce_all"]


@dataclass
class AllReduce:
    """The sum of a gradient over all cores.

    Parameters
    ----------
    gradient : Matrix
        Interleaved.
    outputs : int or None
        Number of outputs, which are rows of each tile, to divide into a segment for each core. None: all rows are in segment 0.
    """

    gradient: Matrix
    outputs: int | None

    @property
    def reads(self):
        return [self.gradient]

    @property
    def writes(self):
        return [self.gradient]


def all_reduce(stage, gradient, outputs):
    """Returns the :class:`AllReduce` of a stage with a ring operation. `outputs` is the number of channels of the gradient.
    Raises NotMatrices if it is another operation."""
    divided = stage.ring == "all_reduce_segments"
    if not divided and stage.ring != "all_reduce" or divided and gradient.form != "turned":
        raise NotMatrices(f"{stage.output}: this sum over the cores can't be compiled as matrix products")
    return AllReduce(gradient, outputs if divided else None)


def reduce_all(emitter, one):
    """Emits the instructions of an :class:`AllReduce`, which use the operands' part of the unified buffer."""
    cores, matrix = emitter.cores, one.gradient
    most = emitter.operands.size // (4 * cores)
    if not most:
        depth = emitter.config.unified_buffer_depth
        raise CompileError(f"{matrix.name}: unified_buffer_depth = {depth}: a row of each core does not fit; choose a larger one")
    segments, each = 1, matrix.tiles * matrix.rows
    if one.outputs is not None:
        segments, each = cores, segment_outputs(one.outputs, cores)
    for tile in range(1 if segments == 1 else matrix.tiles):
        for first in range(0, each, most):
            _exchange(emitter, matrix, tile, [segment * each + first for segment in range(segments)], min(most, each - first))


def _exchange(emitter, matrix, tile, starts, count):
    """Exchanges `count` rows of each segment; `starts` has the first row of each segment. Rows after the last row of the matrix
    are padding, and are neither loaded nor stored."""
    whole = matrix.tiles * matrix.rows if len(starts) == 1 else matrix.rows
    place = emitter.operands.take(2 * count * emitter.cores)
    ranges = []  # first row, rows, and first row in the buffer
    for segment, row in enumerate(starts):
        rows, buffer = min(count, whole - row), place + 2 * segment * count
        if ranges and ranges[-1][0] + ranges[-1][1] == row:
            ranges[-1][1] += max(rows, 0)
        elif rows > 0:
            ranges.append([row, rows, buffer])
    for row, rows, buffer in ranges:
        emitter.transfer(Opcode.LOAD, matrix.region, emitter.offset(matrix, tile, row), 2 * rows, buffer=buffer)
    emit_ring(emitter, RingMode.ALL_REDUCE, place, place, 2 * count, 2 * count)
    for row, rows, buffer in ranges:
        emitter.transfer(Opcode.STORE, matrix.region, emitter.offset(matrix, tile, row), 2 * rows, buffer=buffer)
