"""What the commands show on a terminal."""

import contextlib

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from hw.registers import STALLS

__all__ = ["progress_bar", "spinner", "show_run", "show_synthesis"]


@contextlib.contextmanager
def spinner(console, text):
    """Shows that something is going on, and for how long."""
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console,
                  transient=True) as progress:
        progress.add_task(text, total=None)
        yield


@contextlib.contextmanager
def progress_bar(console, text):
    """Yields a function to call with `(done, total)`."""
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                  TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def show_run(console, figures):
    """The result of `tpu run`."""
    exact = figures["mismatched_bits"] == 0
    table = Table(title=f"amaranth-tpu, {figures['n']} x {figures['n']} cells, simulated by {figures['simulator']}",
                  show_header=False, title_justify="left")
    table.add_row("images", f"{figures['images']:,} in batches of {figures['batch']}")
    table.add_row("accuracy", f"{figures['accuracy']:.2%}")
    table.add_row("against the golden model",
                  f"[{'green' if exact else 'red'}]{figures['mismatched_bits']:,} bits different[/]")
    table.add_row("cycles", f"{figures['cycles']:,}")
    table.add_row("utilisation", f"{figures['utilisation']:.2%}")
    table.add_row("simulated", f"{figures['cycles_per_second']:,.0f} cycles a second, {figures['seconds']:.1f} s")
    if figures["waves"]:
        table.add_row("waves", figures["waves"])
    console.print(table)

    cycles = Table(title="Where the cycles went", title_justify="left")
    cycles.add_column("")
    cycles.add_column("cycles", justify="right")
    cycles.add_column("share", justify="right")
    cycles.add_column("meaning")
    rows = [("busy", figures["busy"], "the array took a row"),
            *((name, figures["stalls"][name], text) for name, text in STALLS.items())]
    for name, count, text in rows:
        cycles.add_row(name, f"{count:,}", f"{count / max(1, figures['cycles']):.2%}", text)
    cycles.add_row("[bold]total", f"[bold]{figures['cycles']:,}", "", "")
    console.print(cycles)


def show_synthesis(console, figures):
    """The result of `tpu synth`."""
    table = Table(title=f"n = {figures['n']} for {figures['target']}, by Yosys (before place and route)", title_justify="left")
    table.add_column("block")
    for name in ("lut", "ff", "dsp", "bram"):
        table.add_column(name.upper(), justify="right")
    for block, counts in figures["blocks"].items():
        table.add_row(block, *(f"{counts[name]:,}" for name in ("lut", "ff", "dsp", "bram")))
    table.add_row("[bold]whole core", *(f"[bold]{figures[name]:,}" for name in ("lut", "ff", "dsp", "bram")))
    console.print(table)
