"""The backward compiler: training graph, optimizer, configuration and batch -> the program of one step.

1. The batch is divided into chunks (:mod:`sim.backward.chunks`). A chunk's backward pass is interleaved with the forward pass of
   the next chunk.
2. Gradients of parameters are summed one part at a time (:mod:`sim.backward.gradients`), and applied
   (:mod:`sim.backward.updates`).
3. Instructions are scheduled (:mod:`sim.compiler.codegen.scheduling`), and the step is simulated
   (:mod:`sim.compiler.timing.model`). The fastest of several divisions of the batch is kept.
"""

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS

from ..compiler.codegen.scheduling import ordered
from ..compiler.program import CompileError
from ..compiler.tiling.stage_tiling import NothingFits
from ..compiler.timing.model import simulate
from ..golden.progress import Progress, touched
from ..golden.training import slope_table
from ..ir.optimizers import Adam
from .candidates import StepCandidate
from .cropping import cropped
from .lowering import check_masks, lowered
from .memory import Masked
from .step_program import make_step

__all__ = ["compile_step"]

_SIMULATED = 30_000  # limit on simulated instructions, summed over all candidates


def compile_step(training, optimizer, config, batch, dropout=None, cores=1, sharded=True):
    """Compiles one training step for batches of `batch` samples, on one core or on each core of a ring.

    Parameters
    ----------
    training : sim.ir.training.TrainingGraph
    optimizer : sim.ir.optimizers.Sgd or Adam
    config : Config
        With `training`.
    batch : int
        Samples of each core.
    dropout : sim.golden.dropout.Dropout or None
        Dropout, with masks for each step.
    cores : int
        Cores of the ring. More than one needs `ring`.
    sharded : bool
        Let each core of a ring update its share of the weights; else every core updates all weights. The bits are equal.

    Returns
    -------
    sim.backward.step_program.StepProgram

    Raises
    ------
    CompileError
        One line that names the limit at fault.
    """
    if not config.training:
        raise CompileError("a training step needs a core with training; set it in its configuration (--training)")
    if isinstance(optimizer, Adam) and not config.table_lanes:
        raise CompileError("Adam needs a core with table_lanes; set it in its configuration (--table-lanes)")
    _check_functions(training.graph, config)
    if cores > 1 and not config.ring:
        raise CompileError(f"{cores} cores need the ring; set it in their configuration (--ring)")
    made, best, fault, simulated = lowered(cropped(training), config.n, cores), None, None, 0
    # Masks refer to the original network: after cropping, more of its stages are dense.
    masked = Masked(dropout.factor, dropout.stages(training)) if dropout else None
    check_masks(made, masked.stages if masked else ())
    # A ring's gathered weights crowd the unified buffer. Chunks that leave room for all transposed gradients come first.
    divisions = [
        (starts, resident) for resident in ((True, False) if cores > 1 else (False,)) for starts in chunk_starts(config, batch)
    ]
    for starts, resident in divisions:
        if best and cores > 1 and not resident:
            break
        try:
            candidate = StepCandidate(made, optimizer, config, batch, starts, masked, sharded, resident)
        except NothingFits as error:
            fault = error
            continue
        ops = candidate.emitter.ops
        if best and simulated + 2 * len(ops) > _SIMULATED:
            break
        ideal, simulated = simulate(ops, config, ideal=True, cores=cores), simulated + len(ops)
        # The ideal order ignores the port that the ring shares, so the order of emission may be better.
        for eager in (None, 1) if cores > 1 else (1, 0, 2):
            if best and simulated > _SIMULATED:
                break
            order = ops if eager is None else ordered(ops, ideal, eager)
            timeline = _ends(order, config, cores) and simulate(order, config, limit=best and best[-1].cycles, cores=cores)
            simulated += len(ops)
            if timeline:
                best = candidate, order, timeline
    if best is None:
        stuck = f"{training.graph.name}: no order of its instructions comes to its end"
        raise CompileError(fault.reason(config) if fault else stuck)
    candidate, order, timeline = best
    return make_step(candidate.training, optimizer, config, candidate.memory, candidate.emitter.constants, order, timeline.cycles)


def _check_functions(graph, config):
    """Raises CompileError or ModelError for a function by table that the core does not support, or whose derivative it does
    not."""
    for stage in graph.stages:
        if stage.function.is_table and not config.table_lanes:
            raise CompileError(
                f"stage {stage.name}: its function {stage.function.name} needs a core with table_lanes; set it in its "
                "configuration (--table-lanes)"
            )
        if stage.function.is_table:
            slope_table(stage)


def chunk_starts(config, batch):
    """Returns divisions of the batch: first samples of the chunks, and the end. The last chunks are small, because nothing
    overlaps with their softmax."""
    n = config.n
    found = []
    for size in (3 * n, 2 * n, 4 * n, n):
        for last in (n, 2 * n):
            if batch > last:
                starts = [*range(0, batch - last, size)]
                found.append((*starts, -(-(batch - last) // n) * n, batch))
    return [*dict.fromkeys(found), (0, batch)]


def _ends(ops, config, cores):
    """Returns whether a program in this order runs to its end."""
    progress = Progress(config)
    for op in ops:
        host = op.fields.get("rows", 0) * INSTRUCTIONS[op.opcode].vectors(config.n, op.fields) * config.vector_bytes
        if not progress.dispatch(op.opcode, op.fields, touched(op.opcode, op.fields, host, cores), lambda: None):
            return False
    return progress.at_rest
