"""Options of commands whose work can be distributed over processes and machines."""

import contextlib
from typing import Annotated

import typer

__all__ = ["Scheduler", "Workers", "check_spread", "spread_of"]

_PANEL = "Distributed runs"

Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        rich_help_panel=_PANEL,
        help="Distribute the work by this Dask scheduler, such as tcp://10.0.0.1:8786. Its workers need this version of tpu.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=1024, rich_help_panel=_PANEL, help="Distribute the work over this many local processes, by Dask."),
]


def check_spread(scheduler, workers):
    """Raises typer.BadParameter if both `--scheduler` and `--workers` are given."""
    if scheduler and workers:
        raise typer.BadParameter("--scheduler uses the workers of the scheduler; leave out --workers")


def spread_of(scheduler, workers):
    """Returns a context manager that yields a function to distribute the work: over the Dask scheduler, over local processes, or
    one task after the other if neither is given. Raises ToolError when it is entered, if the workers cannot be started or
    reached."""
    from amaranth_tpu.sim.host.spread import Cluster, in_turn

    return Cluster(scheduler, workers) if scheduler or workers else contextlib.nullcontext(in_turn)
