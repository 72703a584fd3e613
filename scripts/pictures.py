"""The command that draws pictures of the running core, each from a simulation of the RTL.

`python -m amaranth_tpu.scripts.pictures --help` lists the pictures.
"""

from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.sim.data.digits import DataError
from amaranth_tpu.sim.data.whole_files import write_file
from amaranth_tpu.sim.rtl.runner import SimulationError

from .cli.command_line import console, run_app, usable_file
from .cli.outputs import Output, check_outputs
from .show.terminal import spinner

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def pictures():
    """Draw pictures of the running core, each from a run of the RTL, for light and dark pages."""


@app.command()
def wave(
    output: Annotated[Path, typer.Option("-o", "--output", help="SVG file to write.")] = Path("wave.svg"),
    still: Annotated[int | None, typer.Option(min=1, help="Draw only this step, for print.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the operands.")] = 1,
):
    """Draw the wave through a 4 x 4 array that computes Y = XW + b: an animated SVG, recorded from the RTL in Icarus."""
    from amaranth_tpu.sim.host.array_wave import record_wave

    from .show.wave_picture import wave_picture

    check_outputs({}, Output("-o", output, (".svg",)))
    with spinner(console, "simulating"):
        recorded = record_wave(seed=seed)
    try:
        text = wave_picture(recorded, still)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--still") from None
    write_file(output, text.encode())


Figures = Annotated[Path, typer.Argument(metavar="RUN.json", help="Output of `tpu run --json`.")]


def _plot(draw, run, output, needed, one, many):
    from .show.plots import check_plot
    from .show.run_plots import read_figures

    usable_file(output, example="picture.svg")
    check_plot(output, one, many)
    draw(output, read_figures(run, *needed))


@app.command()
def roofline(
    run: Figures, output: Annotated[Path, typer.Option("-o", "--output", help="File: .svg, .png or .pdf.")] = Path("roofline.svg")
):
    """Plot the roofline of array and bus with each layer of `tpu run --layers --json`."""
    from .show.run_plots import draw_roofline

    _plot(draw_roofline, run, output, ("layers", "n", "cycles"), "a roofline", "rooflines")


@app.command()
def stalls(
    run: Figures, output: Annotated[Path, typer.Option("-o", "--output", help="File: .svg, .png or .pdf.")] = Path("stalls.svg")
):
    """Plot the breakdown of a run's cycles as one bar, from `tpu run --json`."""
    from .show.run_plots import draw_stalls

    _plot(draw_stalls, run, output, ("cycles", "busy", "stalls"), "a bar of stalls", "bars of stalls")


def main():
    """Runs the command. Prints an expected error as one line and exits with 1."""
    run_app(app, (ToolError, SimulationError, DataError, OSError))


if __name__ == "__main__":
    main()
