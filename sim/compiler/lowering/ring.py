"""Exchanges between the cores of a ring: sums of gradients, and weights whose masters are divided among the cores.

ALL_REDUCE: each core stores the gradient of its own samples in region SCRATCH, and the sum over all cores replaces it. Then every
core updates all parameters. REDUCE_SCATTER: each core gets the sum of its own segment of the outputs, and updates this segment
and keeps its master. In a step, ALL_GATHER gives all cores the upper halves of all masters: the image of the
weights. Each tile is gathered shortly before it is first read, while the array is busy and the port of the unified buffer and the
ring are idle.

Each output of weights belongs to the segment of one core, and each segment has its own order of sums. Biases and gains have the
order of segment 0, so the other segments of their exchange contain no data.
"""

from dataclasses import dataclass

from ..memory.matrices import Matrix
from .forms import NotMatrices
from .sums import Move

__all__ = ["AllGather", "AllReduce", "ReduceScatter", "all_reduce", "divided_tensors", "gathers_of", "reduce_scatter_of"]


@dataclass
class AllReduce(Move):
    """The sum of a gradient, with interleaved halves, over all cores. It replaces the gradient."""

    #: Number of outputs, which are rows of each tile, to divide into a segment for each core. None: all rows are in segment 0.
    outputs: int | None = None
    is_update: bool = True


def all_reduce(stage, gradient, outputs, is_update):
    """Returns the :class:`AllReduce` of a stage with a ring operation. `outputs` is the number of channels of the gradient.
    Raises NotMatrices if it is another operation."""
    divided = stage.ring == "all_reduce_segments"
    if not divided and stage.ring != "all_reduce" or divided and gradient.form != "turned":
        raise NotMatrices(f"{stage.output}: this sum over the cores can't be compiled as matrix products")
    return AllReduce(f"{gradient.name}, exchanged", gradient, gradient, outputs if divided else None, is_update)


@dataclass
class ReduceScatter(Move):
    """The sum of a gradient over all cores. Both have interleaved halves. Each core gets the sum of its segment of the outputs,
    which are the rows of `made`."""

    #: True: the gradient of each job has all rows of its column tiles, which are exchanged from the unified buffer.
    joined: bool = False
    is_update = True

    def padded(self, cores):
        """Returns the rows of all segments. The last ones may be padding."""
        return cores * self.made.rows


def divided_tensors(step):
    """Returns the names of the tensors that are divided among the cores: each core has a segment of their outputs."""
    shared = filter(step.is_shared, step.masters)
    found = {name for one in shared for name in (step.masters[one], *step.slots[one].values())}
    for stage in step.stages:
        reads = {stage.start, stage.times, *(term.source for term in stage.terms)}
        if stage.ring == "reduce_scatter" or stage.ring is None and reads & found:
            found.add(stage.output)
    return found


def reduce_scatter_of(stage, matrix):
    """Returns the :class:`ReduceScatter` of a stage. `matrix` returns the matrix of a tensor. Raises NotMatrices if the gradient
    has no row for each output."""
    gradient, total = matrix(stage.start), matrix(stage.output)
    if gradient.form != "turned":
        raise NotMatrices(f"{stage.output}: this sum over the cores can't be compiled as matrix products")
    return ReduceScatter(total.name, gradient, total)


@dataclass(frozen=True)
class AllGather:
    """The gathering of weights."""

    segment: Matrix  # the master of a core's segment, with a row for each output
    image: Matrix  # the upper halves of all segments
    reader: str  # name of the first sum that reads the image


def gathers_of(stages, matrix, sums):
    """Returns the :class:`AllGather` of the stages that gather weights, in the order in which `sums` read the weights. `matrix`
    returns the matrix of a tensor."""
    found = []
    for stage in stages:
        segment, image = matrix(stage.start), matrix(stage.output)
        number = next(number for number, one in enumerate(sums) if image in one.reads)
        found.append((number, AllGather(segment, image, sums[number].name)))
    return [one for _, one in sorted(found, key=lambda entry: entry[0])]
