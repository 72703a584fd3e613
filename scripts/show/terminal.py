"""Terminal output of the commands."""

import contextlib
import time
from itertools import groupby

from rich.markup import escape

from amaranth_tpu.sim.data.printable import printable
from amaranth_tpu.sim.data.progress_lines import ProgressLine, shows_phases
from amaranth_tpu.sim.data.time_left import TimeLeft

from .terminal_tables import figure_table, print_table

__all__ = [
    "compiling",
    "lines",
    "plain",
    "progress_bar",
    "spinner",
    "show_bundle",
    "show_comparison",
    "show_cycles",
    "show_run",
    "show_synthesis",
]


_PATIENCE = 2  # seconds


def plain(text):
    """Returns text from a file as text that is safe to print: without markup, and with escapes for control characters of
    terminals."""
    return escape(printable(text))


@contextlib.contextmanager
def lines(console, text):
    """Shows lines of progress during the `with` block if the console is not a terminal. `text` is the first. Yields a function to
    call with the present text."""
    with ProgressLine(not console.is_terminal, console.file) as line:
        line(text)
        yield line


@contextlib.contextmanager
def _phases(progress, line):
    """Shows phases of the work during the `with` block, as a further line of a rich `progress` and on a
    :class:`.ProgressLine`."""
    task = progress.add_task("", total=None, visible=False)

    def show(text):
        progress.update(task, description=text or "", visible=text is not None)
        line.phase(text)
        if text is not None:
            progress.start()

    with shows_phases(show):
        yield


@contextlib.contextmanager
def spinner(console, text):
    """Shows a spinner with the elapsed time during the `with` block, or lines without a terminal. Yields a function to call with
    the name of the current step."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with (
        Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as progress,
        lines(console, text) as line,
    ):
        task = progress.add_task(text, total=None)

        def show(detail):
            progress.update(task, description=f"{text}: {detail}")
            line(f"{text}: {detail}")

        with _phases(progress, line):
            yield show


def _bar(console):
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
def progress_bar(console, text, faster=None):
    """Shows a progress bar during the `with` block, or lines without a terminal. Yields a function to call with
    `(done, total)`. Both tell the remaining time. `faster` is as in :class:`.TimeLeft`."""
    left = TimeLeft(faster)
    with _bar(console) as progress, lines(console, text) as line:
        task = progress.add_task(text, total=None)

        def advance(done, total):
            rest = left(done / max(1, total))
            rest = rest and f", {rest}"
            progress.update(task, completed=done, total=total, description=f"{text}{rest}")
            line(f"{text}: {done:,} of {total:,}{rest}")

        with _phases(progress, line):
            yield advance


@contextlib.contextmanager
def compiling(console):
    """Shows a progress bar for the compiler if compiling takes more than 2 s. Yields a function to call with `(done, total)`
    schedules of the compiler's search."""
    started, progress, text = time.monotonic(), _bar(console), "compiling (schedules tried)"
    task = progress.add_task(text, total=None)

    def advance(done, total):
        progress.update(task, completed=done, total=total)
        line(f"{text}: {done:,} of {total:,}")
        if time.monotonic() - started > _PATIENCE:
            progress.start()

    with lines(console, text) as line:
        try:
            with _phases(progress, line):
                yield advance
        finally:
            progress.stop()


_PLACES = {"model": "on the instruction-level model", "golden": "by the golden model alone"}


def _where(figures):
    """Returns a text that says where a run was executed: on a board, in a simulator or on a model."""
    if "board" in figures:
        return f"on the board at {plain(figures['board'])}"
    cells = " with native cells" if figures["cell_kind"] == "native" else ""
    return _PLACES.get(figures["simulator"], f"simulated by {figures['simulator']}{cells}")


def show_run(console, figures):
    """Prints the result of `tpu run`. `figures` has the form of the command's `--json` output."""
    core = f", {figures['n']} x {figures['n']} cells" if figures["n"] else ""
    table = figure_table(f"amaranth-tpu{core}, {_where(figures)}", ("", "word"), ("", "word"), header=False)
    batches = f" in batches of {figures['batch']}" if figures["batch"] else ""
    table.add_row("samples", f"{figures['images']:,}{batches}, {plain(figures['data']['text'])}")
    if figures.get("simulator") == "model":
        from amaranth_tpu.sim.golden.machines import why_python

        if why_python():
            table.add_row("model of the core", f"in Python, which is slow: {plain(why_python())}")
    if figures["accuracy"] is not None:
        table.add_row("accuracy", f"{figures['accuracy']:.2%}")
    if figures["mismatched_bits"] is not None:
        colour = "red" if figures["mismatched_bits"] else "green"
        table.add_row("against the golden model", f"[{colour}]{figures['mismatched_bits']:,} bits different[/]")
    show_comparison(table, figures["against_model"])
    if figures["cycles"] is not None:
        table.add_row("cycles", f"{figures['cycles']:,}")
        table.add_row("utilisation", f"{figures['utilisation']:.2%}")
    if figures["estimated_cycles"] is not None:
        table.add_row("estimated cycles", f"{figures['estimated_cycles']:,}, by the compiler's timing model")
    if "board" in figures:
        table.add_row(
            "clock",
            f"{figures['cycles_per_second'] / 1e6:,.2f} MHz: {figures['cycles'] / figures['cycles_per_second'] * 1e3:,.2f} ms",
        )
        table.add_row("with loading and reading back", f"{figures['seconds']:.1f} s")
    elif figures["cycles_per_second"] is not None:
        table.add_row("simulated", f"{figures['cycles_per_second']:,.0f} cycles a second, {figures['seconds']:.1f} s")
    else:
        table.add_row("computed in", f"{figures['seconds']:.1f} s")
    if figures["waves"]:
        table.add_row("waves", plain(figures["waves"]))
    if figures["trace"]:
        table.add_row("timeline", f"{plain(figures['trace'])}, for ui.perfetto.dev")
    if figures["output"]:
        shape = " x ".join(map(str, figures["output"]["shape"]))
        table.add_row(
            "results",
            f"{plain(figures['output']['file'])}: {shape}, {figures['output']['type']}, "
            f"output {plain(figures['output']['name'])}",
        )
    print_table(console, table)
    if figures["cycles"] is not None:
        show_cycles(console, figures)


def show_comparison(table, found):
    """Adds rows to a table: the comparison with ONNX interpreters, as in the `--json` output."""
    if found["reason"]:
        table.add_row("against the model", f"[yellow]not compared:[/] {plain(found['reason'])}")
    elif found["interpreter"]:
        top = "" if found["top_agreement"] is None else f", top answer the same in {found['top_agreement']:.0%}"
        lost = f", {found['not_finite']:,} values not finite" if found["not_finite"] else ""
        difference = "no finite value to compare"
        if found["largest"] is not None:
            difference = f"difference at most {found['largest']:.3g}, rms {found['rms']:.3g} of {found['scale']:.3g}"
        table.add_row(
            f"against {plain(found['interpreter'])}",
            f"{difference}{top}, on {found['samples']} sample{'s' * (found['samples'] != 1)}{lost}",
        )
    if found["note"]:
        table.add_row("", f"[yellow]{plain(found['note'])}[/]")
    if found["error"]:
        table.add_row("", f"[red]{plain(found['error'])}[/]")


def show_cycles(console, figures):
    """Prints how `cycles` divide into `busy` and `stalls`."""
    from amaranth_tpu.hw.spec.registers import STALLS

    cycles = figure_table("Where the cycles went", ("", "word"), ("cycles", "figure"), ("share", "figure"), ("meaning", "word"))
    rows = [
        ("busy", figures["busy"], "the array took a row"),
        *((name, figures["stalls"][name], text) for name, text in STALLS.items()),
    ]
    for name, count, text in rows:
        cycles.add_row(name, f"{count:,}", f"{count / max(1, figures['cycles']):.2%}", text)
    cycles.add_row("[bold]total", f"[bold]{figures['cycles']:,}", "", "")
    print_table(console, cycles)


def show_bundle(console, figures):
    """Prints the result of `tpu compile`. `figures` has the form of the command's `--json` output."""
    title = f"{plain(figures['network'])} for n = {figures['n']}, batch of {figures['batch']}, in {plain(figures['folder'])}"
    table = figure_table(title, ("", "word"), ("", "word"), header=False)
    for region, size in figures["regions"].items():
        table.add_row(f"region {region}", f"{size:,} bytes")
    if figures["left_to_host"] != "none":
        table.add_row("left to the host", figures["left_to_host"])
    table.add_row("predicted cycles", f"{figures['predicted_cycles']:,}")
    table.add_row("test vectors", plain(figures["data"]))
    show_comparison(table, figures["against_model"])
    for name, size in figures["files"].items():
        table.add_row(name, f"{size:,} bytes")
    print_table(console, table)


def show_synthesis(console, report):
    """Prints the result of `tpu synth`. `report` has the form of the command's `--json` output."""
    from amaranth_tpu.hw.fpga.targets import RESOURCES

    by = "placed by nextpnr" if report["placed"] else "by Yosys, before place and route"
    table = figure_table(
        f"n = {report['n']} on {report['target']}, {by}",
        ("block", "word"),
        *((name.upper(), "figure") for name in RESOURCES),
        ("share of LUTs", "figure"),
        ("", "word"),
    )
    for block, counts in report["blocks"].items():
        share = counts["lut"] / max(1, report["lut"])
        table.add_row(block, *(f"{counts[name]:,}" for name in RESOURCES), f"{share:.1%}", f"[cyan]{'█' * round(20 * share)}[/]")
    table.add_section()
    table.add_row("[bold]all", *(f"[bold]{report[name]:,}" for name in RESOURCES), "", "")
    table.add_row(f"available in {report['part']}", *(f"{report['available'][name]:,}" for name in RESOURCES), "", "")
    table.add_row("used", *(_share(report["total"][name], report["available"][name]) for name in RESOURCES), "", "")
    meanings = {
        "tpu": "between the core's blocks",
        "top": "around the core",
        "placement": "added by nextpnr, as the ends of carry chains",
    }
    table.caption = "; ".join(f"{block}: {meaning}" for block, meaning in meanings.items() if block in report["blocks"])
    table.caption_justify = "left"
    print_table(console, table)
    if report["with_output_registers"]:
        used = f"{report['with_output_registers']} of {report['total']['bram']}"
        console.print(f"{used} block RAMs use their output registers", highlight=False)
    if report["registers_for_memories"]:
        console.print(f"in flip-flops: {', '.join(report['registers_for_memories'])}", highlight=False)
    if report["paths"]:
        _show_paths(console, report["paths"])
    if report["fmax_mhz"]:
        _show_timing(console, report)
    for what in ("bitstream", "picture"):
        if report[what]:
            console.print(f"{what}: {report[what]}", soft_wrap=True, highlight=False)


def _share(count, available):
    colour = "green" if count <= available else "red"
    return f"[{colour}]{count / available:.0%}[/]" if available else f"[{colour}]{count:,} of 0[/]"


def _show_paths(console, paths):
    table = figure_table(
        f"The {len(paths)} slowest paths between two blocks, or inside one, by static analysis",
        ("from", "word"),
        ("to", "word"),
        ("first register", "word"),
        ("last register", "word"),
        ("LUTs", "figure"),
        ("carry chains", "figure"),
        ("ns, estimated", "figure"),
    )
    for path in paths:
        table.add_row(
            path["from_block"],
            path["to_block"],
            path["from"],
            path["to"],
            str(path["luts"]),
            str(path["carries"]),
            f"{path['delay_ns']:.2f}",
        )
    print_table(console, table)


def _show_timing(console, report):
    path = report["critical_path"]
    colour = {True: "green", False: "red", None: "default"}[report["met"]]
    verdict = {True: "met", False: "missed", None: "aimed at"}[report["met"]]
    console.print(
        f"Fmax [bold {colour}]{report['fmax_mhz']:.1f} MHz[/], {report['clock_mhz']:.1f} MHz {verdict}", highlight=False
    )
    if not path:
        return
    total = sum(step["delay_ns"] for step in path)
    table = figure_table(
        f"Critical path, {total:.2f} ns, from {path[0]['from']} to {path[-1]['to']}",
        ("block", "word"),
        ("last name in it", "word"),
        ("logic cells", "figure"),
        ("ns in logic", "figure"),
        ("ns in wires", "figure"),
    )
    for block, steps in groupby(path, key=lambda step: step["block"]):
        steps = list(steps)
        wires = sum(step["delay_ns"] for step in steps if step["kind"] == "routing")
        table.add_row(
            str(block),
            steps[-1]["to"],
            str(sum(step["kind"] == "logic" for step in steps)),
            f"{sum(step['delay_ns'] for step in steps) - wires:.2f}",
            f"{wires:.2f}",
        )
    print_table(console, table)
