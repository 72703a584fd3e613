"""The compiler of training steps. It turns a training graph, an optimizer, a configuration and a batch size into the program of
one step.

1. The batch is divided into chunks (micro-batches, :mod:`sim.backward.chunks`). The backward pass of a chunk is interleaved with
the forward pass of the next chunk.
2. Gradients of parameters are computed block by block (:mod:`sim.backward.gradients`), and applied (:mod:`sim.backward.updates`).
3. Instructions are scheduled (:mod:`sim.compiler.codegen.scheduling`), and the step is timed (:mod:`sim.compiler.timing.model`).
The fastest of several divisions of the batch is kept.

Steps of dense networks, and steps that do not fit, are also compiled as products of matrices (:mod:`sim.compiler.training`). The
faster program is kept.
"""

from contextlib import suppress
from functools import partial

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.codegen.scheduling import completes, ordered
from ..compiler.image import assembled
from ..compiler.memory.host_tensors import host_tensor
from ..compiler.program import CompileError, check_ring, check_unit, factor
from ..compiler.tiling.stage_tiling import NothingFits
from ..compiler.timing.model import simulate
from ..compiler.training.update_lanes import with_fastest_updates
from ..golden.arithmetic import bfloat16
from ..golden.training import slope_table
from ..ir.optimizers import Adam
from .candidates import StepCandidate
from .cropping import cropped
from .graph_program import compile_step_graph
from .lowering import check_masks, lowered
from .memory import Masked
from .pacing import FEW, fastest_paces
from .refusals import needs_matrices
from .reverse_graph import reverse_graph
from .step_program import useful_macs
from .updates import IN_FLIGHT

__all__ = ["compile_step"]

_SIMULATED = 30_000  # limit on the number of timed instructions, summed over all candidates


def compile_step(training, optimizer, config, batch, dropout=None, cores=1, sharded=True):
    """Compiles one training step for `batch` samples per core, on one core or on each core of a ring.

    Parameters
    ----------
    training : sim.ir.training.TrainingGraph
    optimizer : sim.ir.optimizers.Sgd or Adam
    config : Config
        Configuration of the core, with the option `training`.
    batch : int
        Number of samples that each core processes.
    dropout : sim.golden.dropout.Dropout or None
        Dropout of a step. Masks are inputs of the program.
    cores : int
        Number of cores in the ring. More than one core needs the option `ring` of the configuration.
    sharded : bool
        True: each core of a ring updates its share of the weights. False: every core updates all weights. The bits are equal.

    Returns
    -------
    sim.compiler.program.Program
        The program, for the functions of :mod:`sim.backward.step_program`.

    Raises
    ------
    CompileError
        If a step does not fit the core. The message is one line that names the parameter at fault.
    """
    check_unit(config, "training", True, "a training step")
    check_unit(config, "table_lanes", isinstance(optimizer, Adam), "Adam")
    if needs_matrices(training):
        return compile_step_graph(training, optimizer, config, batch, dropout, cores, sharded)
    by_matrices = partial(compile_step_graph, training, optimizer, config, batch, dropout, cores, sharded)
    try:
        program = _compile(training, optimizer, config, batch, dropout, cores, sharded)
    except CompileError as refusal:
        with suppress(CompileError):
            return by_matrices()
        raise refusal from None
    if _is_dense(training.graph):
        with suppress(CompileError):
            return min(program, by_matrices(), key=lambda one: one.predicted_cycles)
    return program


def _is_dense(graph):
    """Returns True if all sums of a graph have one position."""
    return all(stage.size == (1, 1) for stage in graph.stages)


def _compile(training, optimizer, config, batch, dropout, cores, sharded):
    """Returns the program of a step of a network that does not need steps of matrices; see :func:`compile_step`."""
    _check_functions(training.graph, config)
    check_ring(config, cores)
    made = lowered(cropped(reverse_graph(training)), config.n, cores)
    # Masks refer to the stages of the original network. After cropping, more stages are dense.
    masked = Masked(dropout.factor, dropout.stages(training)) if dropout else None
    check_masks(made, masked.stages if masked else ())
    return with_fastest_updates(lambda core: _program(*_fastest(made, optimizer, core, batch, masked, sharded)), config)


def _fastest(made, optimizer, config, batch, masked, sharded):
    """Returns `(StepCandidate, order of its instructions, Timeline)` of the fastest division of the batch."""
    cores, best, fault, simulated = made.cores, None, None, 0
    # In a ring, gathered weights take much of the unified buffer. Chunks that leave room for all transposed gradients are tried
    # first.
    divisions = [
        (starts, resident) for resident in ((True, False) if cores > 1 else (False,)) for starts in chunk_starts(config, batch)
    ]
    paces = _paces(made, optimizer, config, batch, masked, sharded)
    make = partial(StepCandidate, made, optimizer, config, batch, masked=masked, sharded=sharded, paces=paces)
    for starts, resident in divisions:
        if best and cores > 1 and not resident:
            break
        try:
            candidate = make(starts, resident=resident)
        except NothingFits as error:
            fault = error
            continue
        ops = candidate.emitter.ops
        if best and simulated + 2 * len(ops) > _SIMULATED:
            break
        ideal, simulated = simulate(ops, config, ideal=True, cores=cores), simulated + len(ops)
        # The ideal order ignores that the ring shares a buffer port, so the order of emission may be faster.
        for eager in (None, 1) if cores > 1 else (1, 0, 2):
            if best and simulated > _SIMULATED:
                break
            order = ops if eager is None else ordered(ops, ideal, eager)
            timeline = completes(order, config, cores) and simulate(order, config, limit=best and best[-1].cycles, cores=cores)
            simulated += len(ops)
            if timeline:
                best = candidate, order, timeline
    if best and cores > 1:
        best = _with_larger_buckets(best, make, config, cores)
    if best is None:
        stuck = f"{made.training.graph.name}: no order of its instructions comes to its end"
        raise CompileError(fault.reason(config) if fault else stuck)
    return best


def _with_larger_buckets(best, make, config, cores):
    """Returns the fastest of `best` and the same division with fewer buckets in flight. If the unified buffer limits the buckets,
    they are then larger."""
    candidate = make(best[0].starts, resident=best[0].resident, in_flight=IN_FLIGHT[1])
    ops = candidate.emitter.ops
    for order in (ops, ordered(ops, simulate(ops, config, ideal=True, cores=cores), 1)):
        timeline = completes(order, config, cores) and simulate(order, config, limit=best[-1].cycles, cores=cores)
        best = (candidate, order, timeline) if timeline else best
    return best


def _program(candidate, order, timeline):
    memory, constants, config = candidate.memory, candidate.emitter.constants, candidate.config
    factors = {
        factor(name): host_tensor(Region.MODEL, constants.vector(name), config.n, partial(_factor_tile, config.n))
        for name in memory.optimizer.factors(1, memory.batch * memory.cores, 1)
        if name in constants.names
    }
    macs, tensors = memory.batch * useful_macs(memory.training), memory.tensors | factors
    others = {"batch": memory.batch, "cores": memory.cores, "useful_macs": macs, "memory": memory, "tensors": tensors}
    return assembled(order, timeline.cycles, constants.pack(), memory.sizes, config, **others)


def _factor_tile(n, value):
    """Returns the bytes of a factor of the optimizer, as a multiple of the identity."""
    return (np.eye(n) * np.float32(value)).astype(np.float32).astype(bfloat16).tobytes()


def _paces(made, optimizer, config, batch, masked, sharded):
    """Returns the fastest way in which the spatial stages of a step overlap, forward and backward."""
    few = min(batch, FEW)

    def emitted(backward, pace):
        paces = (pace, pace)
        return StepCandidate(made, optimizer, config, few, (0, few), masked, sharded, paces=paces, only=backward).emitter.ops

    backward = sum(one[2] for one in made.stages)
    return fastest_paces((len(made.stages) - backward, backward), emitted, config, made.cores)


def _check_functions(graph, config):
    """Checks the functions by table of a graph. Raises CompileError or ModelError if the core has no function table, or if no
    table can represent a derivative."""
    for stage in graph.stages:
        check_unit(config, "table_lanes", stage.function.is_table, f"stage {stage.name}: its function {stage.function.name}")
        if stage.function.is_table:
            slope_table(stage)


def chunk_starts(config, batch):
    """Returns several divisions of the batch into chunks. Each is a tuple with the first sample of each chunk, and the end. The
    last chunks are small, because nothing overlaps with their softmax."""
    n = config.n
    found = []
    for size in (3 * n, 2 * n, 4 * n, n):
        for last in (n, 2 * n):
            if batch > last:
                starts = [*range(0, batch - last, size)]
                found.append((*starts, -(-(batch - last) // n) * n, batch))
    return [*dict.fromkeys(found), (0, batch)]
