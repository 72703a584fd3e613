"""Function tables that are loaded ahead: while earlier runs leave the activation unit idle, and beside the functions that these
runs use.

A table takes thousands of cycles to load, and the unit that loads it also computes all results.
"""

from dataclasses import replace

from amaranth_tpu.hw.cycles import result_cycles
from amaranth_tpu.hw.spec.isa import Opcode

from ...golden.function_tables import table_of
from ..tiling.overlap import vectors_of
from .table_slots import TableSlots, slot_vectors

__all__ = ["with_tables_ahead", "table_of_later"]


def _tables_of(batched, run):
    """Returns the functions of a run's stages that need a table, without duplicates."""
    functions = (batched.stages[number].function for number in run.stages)
    return list(dict.fromkeys(function for function in functions if function.is_table))


def table_of_later(slots, batched, runs):
    """Returns `(function, others)`: the first function of the runs after the first one that the function table does not hold,
    and the functions used before. Returns None if there is none. `slots` has the contents of the table."""
    others = _tables_of(batched, runs[0])
    for function in (function for run in runs[1:] for function in _tables_of(batched, run)):
        if function not in others and slots.missing(function.key, table_of(function)):
            return function, others
        others.append(function)
    return None


def with_tables_ahead(batched, runs, config, first, idle):
    """Returns the runs with a number of slots `ahead` for each: the slots of the function table that a run fills for later runs.
    Returns None if no table can be loaded ahead.

    Parameters
    ----------
    first : int
        First vector of the unified buffer that the runs may use.
    idle : callable
        Returns the cycles in which the activation unit is idle during a run.
    """
    slots, window, changed = TableSlots(), [], {}
    for index, run in enumerate(runs):
        for function in _tables_of(batched, run):
            missing = slots.missing(function.key, table_of(function))
            held = slots.held({used.key for number in window for used in _tables_of(batched, runs[number])})
            if window and missing > held:
                changed |= _divided(runs, window, missing - held, config, first, idle)
            if missing:
                window = []
            slots.select(function.key, table_of(function), config.n)
        if not batched.is_along_x(run.stages[0]):
            window.append(index)
    return tuple(changed.get(index, run) for index, run in enumerate(runs)) if changed else None


def _divided(runs, window, slots, config, first, idle):
    """Divides up to `slots` slots among the runs with the indices `window`, in proportion to their idle cycles. Returns `{index:
    RunPlan}` of the runs that load some."""
    vectors, most = slot_vectors(config.n), {}
    cycles = 2 * result_cycles(config, Opcode.LOAD_TABLE, {"rows": vectors})[0]
    for index in window:
        run = runs[index]
        used = first + run.home_size + 2 * vectors
        if vectors_of(run.plans[: len(run.branch)], used, config.unified_buffer_depth, False) is not None:
            most[index] = max(0, idle(run)) // cycles
    share = min(1, slots / max(1, sum(most.values())))
    return {index: replace(runs[index], ahead=round(count * share)) for index, count in most.items() if round(count * share)}
