"""From the graph of a step or a network to its fastest program."""

from dataclasses import replace

from amaranth_tpu.hw.spec.isa import Opcode

from .codegen.constant_image import Constants
from .lowering.lowering import lower, with_products_apart
from .lowering.update_lanes import use_update_lanes
from .order.search import search
from .passes.factors import widen_factors
from .passes.folding import fold
from .passes.stacking import stacked
from .program import check_ring, check_unit
from .step_program import make_step_program

__all__ = ["compile_graph", "lowered_step"]

_QUICK = 4  # cycles of UPDATE per row, up to which sums in the array are not faster


def compile_graph(step, config, batch, cores=1):
    """Compiles one training step for `batch` samples per core, on one core or on each core of a ring.

    `step` is a :class:`sim.ir.graph.Graph` of :func:`sim.autodiff.make_step.make_step`. The other parameters and the result
    are as in :func:`sim.compiler.step.compile_step`.

    Raises
    ------
    CompileError
        If the step does not fit the core. The message is one line.
    """
    _check(step, config, cores)
    program = _compiled(step, config, batch, cores)
    if config.n <= _QUICK * config.update_lanes or not any(op.opcode is Opcode.UPDATE for op in program.ops):
        return program
    other = replace(_compiled(step, replace(config, update_lanes=0), batch, cores), config=config)
    return min(program, other, key=lambda one: one.predicted_cycles)


def _compiled(step, config, batch, cores):
    lowered = lowered_step(step, config, batch)
    constants = Constants(lowered)
    return make_step_program(lowered, constants, config, cores, search(constants, config, cores))


def lowered_step(step, config, batch):
    """Returns the :class:`.Lowered` of a step or a network."""
    made = widen_factors(with_products_apart(step), config, batch)
    lowered = lower(stacked(fold(made, config.n)), config.n, batch, step)
    if config.update_lanes and "momentum" in step.factors:
        use_update_lanes(lowered)
    return lowered


def _check(step, config, cores):
    functions = any(stage.function.is_table or stage.times for stage in step.stages)
    check_unit(config, "training", step.state, "a training step")
    check_unit(config, "table_lanes", functions, "a training step")
    check_ring(config, cores)
