"""The option `--cells` of the commands that simulate the RTL."""

from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["CellKind", "cells_option", "check_cells_option"]


class CellKind(StrEnum):
    RTL = "rtl"
    NATIVE = "native"


def cells_option(panel=None):
    """Returns the type of the option for a command. `panel` : panel of the option in the help."""
    return Annotated[
        CellKind,
        typer.Option(
            "--cells",
            metavar="NAME",
            rich_help_panel=panel,
            help="Cells of the array in the simulated RTL. rtl: the generated logic. native: the floating-point unit of this "
            "machine computes sums and products, with the same bits and cycles in a fraction of the time; "
            "at n = 2 and 4, only 1.1 to 1.3 times as fast. "
            "Verilator only.",
        ),
    ]


def check_cells_option(cells, simulator):
    """Raises typer.BadParameter for native cells without Verilator. `simulator` is the value of the option."""
    if cells is CellKind.NATIVE and simulator != "verilator":
        raise typer.BadParameter(f"native needs --simulator verilator, not {simulator}", param_hint="--cells")
