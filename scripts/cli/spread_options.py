"""The options of commands whose work can be spread over processes and machines."""

import contextlib
from typing import Annotated

import typer

from amaranth_tpu.sim.host.spread import Cluster, in_turn

__all__ = ["Scheduler", "Workers", "check_spread", "spread_of"]

_PANEL = "Spreading the work"

Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        rich_help_panel=_PANEL,
        help="Dask scheduler whose workers do the parts, as tcp://10.0.0.1:8786; each has this version of the package.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, max=1024, rich_help_panel=_PANEL, help="As many processes on this machine do the parts, by Dask."),
]


def check_spread(scheduler, workers):
    """Refuses options that do not go together. Raises typer.BadParameter."""
    if scheduler and workers:
        raise typer.BadParameter("--scheduler has its own workers; leave out --workers")


def spread_of(scheduler, workers):
    """A context manager that gives what spreads the work. Raises ToolError when it is entered."""
    return Cluster(scheduler, workers) if scheduler or workers else contextlib.nullcontext(in_turn)
