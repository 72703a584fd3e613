"""The program of a training step, from a network, an optimizer and a configuration.

The step becomes a graph (:func:`sim.golden.step_graph.step_graph`), which :func:`.compile_graph` compiles.
"""

from contextlib import suppress
from dataclasses import replace

from ..golden.step_graph import step_graph
from ..ir.optimizers import Adam
from .compile_graph import compile_graph, explained
from .errors import CompileError, check_unit
from .lowering.forms import NotMatrices
from .passes.cropping import crop
from .step_state import StepMemory

__all__ = ["compile_step"]


def compile_step(training, optimizer, config, batch, dropout=None, cores=1, sharded=True):
    """Compiles one training step for `batch` samples per core, on one core or on each core of a ring.

    Parameters
    ----------
    training : sim.ir.graph.Graph
        A network with parameters
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
        True: each core of a ring updates its share of the weights, if the memories are large enough. False: every core updates
        all weights. The bits are equal.

    Returns
    -------
    sim.compiler.program.Program
        The program, for the functions of :mod:`sim.compiler.step_state`.

    Raises
    ------
    CompileError
        If a step does not fit the core. The message is one line.
    """
    subject = "Adam" if isinstance(optimizer, Adam) else "clip_norm"
    check_unit(config, "table_lanes", subject == "Adam" or optimizer.clip_norm, subject)
    if sharded and cores > 1:
        with suppress(CompileError):
            return _compiled(training, optimizer, config, batch, dropout, cores, True)
    return _compiled(training, optimizer, config, batch, dropout, cores, False)


def _compiled(training, optimizer, config, batch, dropout, cores, sharded):
    """Returns the program of a step whose updates are shared, or not; see :func:`compile_step`."""
    masked = tuple(sorted(dropout.stages(training))) if dropout else ()
    step = step_graph(crop(training, config, batch), optimizer, masked, cores, sharded)
    try:
        program = compile_graph(step, config, batch, cores)
    except CompileError as error:
        remedy = "; train it on the golden model alone, without steps on a core" if isinstance(error, NotMatrices) else ""
        raise CompileError(f"{explained(training, error)}{remedy}") from None
    return replace(program, memory=StepMemory(step, training, optimizer, batch, masked, dropout and dropout.factor))
