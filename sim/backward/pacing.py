"""Ways in which the spatial stages of a training step overlap, and the fastest of them, by the timing model and a few samples."""

from contextlib import suppress
from dataclasses import dataclass
from math import inf

from ..compiler.codegen.scheduling import completes, ordered
from ..compiler.tiling.overlap import APART, FAR_APART
from ..compiler.tiling.stage_tiling import NothingFits
from ..compiler.timing.model import simulate

__all__ = ["FEW", "USUAL", "Pace", "fastest_paces"]

FEW = 8  # samples of the comparison


@dataclass(frozen=True)
class Pace:
    """A way in which spatial stages overlap.

    Parameters
    ----------
    apart : float
        Lead of a stage over its readers; see :func:`sim.compiler.tiling.overlap.take_turns`.
    share : int
        Each stage may use 1 / `share` of the accumulators. With smaller jobs, later stages begin earlier.
    """

    apart: float = APART
    share: int = 1


#: The default, forward and backward.
USUAL = Pace(), Pace()

_PACES = (Pace(), Pace(FAR_APART), Pace(APART, 2), Pace(FAR_APART, 2))


def fastest_paces(stages, emitted, config, cores):
    """Returns the fastest :class:`Pace` of the forward pass and of the backward pass. Passes of one stage, and passes that do not
    fit the core, have the default.

    Parameters
    ----------
    stages : (int, int)
        Number of spatial stages of the two passes.
    emitted : callable
        Returns the instructions of one pass alone, for a few samples: `emitted(backward, pace)`. Raises NothingFits.
    """

    def cycles(backward, pace):
        ops = emitted(backward, pace)
        order = ordered(ops, simulate(ops, config, ideal=True, cores=cores), 1)
        return simulate(order, config, cores=cores).cycles if completes(order, config, cores) else inf

    paces = []
    for backward in (False, True):
        tried = []
        for pace in _PACES if stages[backward] > 1 else ():
            with suppress(NothingFits):
                tried.append((cycles(backward, pace), len(tried), pace))
        paces.append(min(tried)[-1] if tried else Pace())
    return tuple(paces)
