"""The graph of a training step, from a network."""

import functools

from ..autodiff.make_step import make_step
from ..autodiff.network import step_network
from ..autodiff.results import INVERSE_ROOT
from ..functions.derivatives import Derivative
from ..ir.errors import ModelError
from .function_tables import table_of

__all__ = ["slope_table", "step_graph"]


@functools.lru_cache(maxsize=4)
def step_graph(graph, optimizer, masked=(), cores=1, sharded=True):
    """Returns the :class:`sim.ir.graph.Graph` of a network's training step.

    Parameters
    ----------
    graph : sim.ir.graph.Graph
    optimizer : Sgd or Adam
    masked : tuple of int
        Numbers of stages whose results have a mask.
    cores : int
    sharded : bool
        See :func:`sim.autodiff.make_step.make_step`.

    Raises
    ------
    sim.ir.errors.ModelError
        If a derivative does not fit a table; one line.
    """
    network = step_network(graph, masked)
    for stage in (graph.stages[number] for number in graph.differentiated):
        if stage.function.is_table and stage.function != INVERSE_ROOT:
            slope_table(stage)
    return make_step(network, optimizer, cores, counted=graph.is_counted, loss=graph.loss, sharded=sharded)


def slope_table(stage):
    """Returns the :class:`sim.golden.table_lookup.Table` for the derivative of a stage's activation function.

    Raises
    ------
    sim.ir.errors.ModelError
        If no table can represent the derivative. The message is one line.
    """
    try:
        return table_of(Derivative(stage.function))
    except ValueError as error:
        raise ModelError(f"{stage.title or f'stage {stage.name!r}'}: {error}; replace the function by another") from None
