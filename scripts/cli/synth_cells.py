"""Synthesis of a core for standard cells, for `tpu synth`."""

from rich.console import Console

from ..show.standard_cells import show_standard_cells
from ..show.terminal import spinner
from .command_line import RunFailed, console, usable_folder
from .json_output import print_json

__all__ = ["synth_cells"]


def synth_cells(core, target, liberty, pnr, refused, output, as_json):
    """Maps a core to standard cells, with `pnr` also places and routes its cell, and prints the report.

    Parameters
    ----------
    core : CoreChoice
    target : str
        Name of a library; ignored with `liberty`.
    liberty : Path or None
        Liberty file.
    refused : dict
        {option: True if it is given}, of options that only FPGAs have.
    output : Path or None
        Folder of the report.
    """
    from amaranth_tpu.hw.standard_cells.libraries import load_library
    from amaranth_tpu.hw.standard_cells.report import core_report
    from amaranth_tpu.hw.tools.process import build_directory

    for option in (name for name, given in refused.items() if given):
        raise RunFailed(f"{option} is for FPGAs, not for standard cells; leave it out")
    if pnr and liberty:
        raise RunFailed(
            "--pnr needs the layout of the cells, which a Liberty file lacks; name a library with --target, or leave it out"
        )
    text, library = load_library(target, liberty)
    config, name = core.config("default"), library.name if liberty else target
    folder = output or build_directory() / "synth" / f"{name}-n{config.n}"
    usable_folder(folder)
    with spinner(console, f"n = {config.n} for {name}") as show:

        def progress(tool, phase):
            show(f"{tool}: {phase}" if phase else tool)

        report = core_report(config, text, library, folder, target=name, pnr=pnr, progress=progress)
    if as_json:
        print_json({entry: value for entry, value in report.items() if entry != "config"}, core=config)
    else:
        show_standard_cells(Console(), report)
