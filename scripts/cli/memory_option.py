"""The option `--memory`: the host memory of estimates and of the RTL simulation."""

from typing import Annotated

import typer

from amaranth_tpu.sim.rtl.host_memory import HOST_LATENCY, MEMORY_NAMES, parse_memory

__all__ = ["DEFAULT_MEMORY", "host_of", "memory_option", "pauses_option"]

DEFAULT_MEMORY = str(HOST_LATENCY)


def memory_option(panel=None):
    """Returns the type of the option, for a panel of the help."""
    text = (
        "Host memory: LATENCY[:BYTES[:BURST]], its latency in cycles, bytes per cycle that reads and writes share, and cycles "
        f"that each burst costs; or NAME[@MHZ], with the core's clock: {', '.join(MEMORY_NAMES)}. Without BYTES: no limit."
    )
    return Annotated[str, typer.Option(rich_help_panel=panel, metavar="MEMORY", help=text)]


def pauses_option(panel):
    """Returns the type of the option `--pauses`, for a panel of the help."""
    return Annotated[
        int, typer.Option(min=0, max=90, rich_help_panel=panel, help="Stall each AXI channel in this percentage of cycles.")
    ]


def host_of(text):
    """Returns the :class:`.HostMemory` of an option's text. Raises typer.BadParameter."""
    try:
        return parse_memory(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory") from None
