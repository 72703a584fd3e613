"""The output of a sweep: a table of its points, and a plot of area against cycles."""

from pathlib import Path

from amaranth_tpu.sim.data.errors import DataError
from amaranth_tpu.sim.data.printable import printable

from .plots import check_plot, colour, plot
from .terminal import plain
from .terminal_tables import figure_table, print_table

__all__ = ["check_front", "draw_front", "show_sweep"]

_AREAS = {
    "cells": "cells of the array",
    "memory_bits": "bits of memory",
    "lut": "LUTs",
    "ff": "flip-flops",
    "dsp": "multipliers (DSP)",
    "bram": "block RAMs",
}
_LOOKS = [
    ("blue", "o"),
    ("red", "s"),
    ("green", "^"),
    ("purple", "D"),
    ("orange", "v"),
    ("sky", "P"),
    ("sand", "X"),
    ("grey", "*"),
]


def show_sweep(console, rows, area):
    """Prints a table of points. `rows` are as in :attr:`sim.sweeps.sweep.Point.row`, with `front`. `area` is the name of the
    measure of a core's size.

    The columns that describe the core are `n` and the parameters that differ between cores with the same n.
    """
    count = len({row["core_n"] for row in rows})
    sizes = [name for name in rows[0] if name.startswith("core_")]
    sizes = [name for name in sizes if len({(row["core_n"], row[name]) for row in rows}) > count]
    figures = ["cycles", "cycles_per_sample", "utilisation", *dict.fromkeys(["cells", "memory_bits", area])]
    if "lut" in rows[0] and "lut" not in figures:
        figures.append("lut")
    names = [("model", "word"), ("n", "figure"), ("batch", "figure")]
    names += [(name.removeprefix("core_").replace("_", " "), "figure") for name in sizes]
    names += [(name.replace("_", " "), "figure") for name in figures] + [("", "word")]
    table = figure_table(f"{len(rows)} points; * {_AREAS[area]} and cycles a sample that no other of the model beats", *names)
    for row in rows:
        note = plain(row["error"] or "") or ("does not fit" if row.get("fits") is False else "*" if row["front"] else "")
        point = [plain(Path(row["model"]).name), str(row["core_n"]), str(row["batch"])]
        table.add_row(*point, *(_shown(name, row.get(name)) for name in (*sizes, *figures)), note)
    print_table(console, table)


def _shown(name, value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "utilisation":
        return f"{value:.1%}"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def check_front(path):
    """Raises DataError, with a message of one line, if no plot can be drawn to the file `path`."""
    check_plot(path, "a sweep", "sweeps", without=", or leave out --plot")


def draw_front(path, rows, area, kind):
    """Plots area against cycles per sample, on logarithmic axes, with the Pareto front of each model, and writes the file.
    Parameters: see :func:`show_sweep`.

    `kind` is a word for the source of the cycles, such as `estimated`. Raises DataError if the file cannot be written.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    able = [row for row in rows if row.get(area) and row.get("cycles_per_sample")]
    if not able:
        raise DataError(f"{printable(path)}: no point has both {_AREAS[area]} and cycles; there is nothing to draw")
    with plot(path, height=5) as (_, axes):
        for number, model in enumerate(dict.fromkeys(row["model"] for row in able)):
            name, mark = _LOOKS[number % len(_LOOKS)]
            mine = [row for row in able if row["model"] == model]
            best = sorted((row for row in mine if row["front"]), key=lambda row: row[area])
            look = {"color": colour(name), "linestyle": "none"}
            axes.plot([row[area] for row in mine], [row["cycles_per_sample"] for row in mine], mark, fillstyle="none", **look)
            places = [row[area] for row in best], [row["cycles_per_sample"] for row in best]
            axes.plot(*places, mark, linestyle="-", color=colour(name), label=printable(Path(model).name, 40))
            for row in best:
                text = f"n = {row['core_n']}, batch {row['batch']}"
                place = row[area], row["cycles_per_sample"]
                axes.annotate(text, place, (5, 5), textcoords="offset points", fontsize=8)
        axes.set(xscale="log", yscale="log", xlabel=_AREAS[area], ylabel=f"cycles a sample, {kind}", title="Area against cycles")
        axes.margins(x=0.3, y=0.15)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_formatter(NullFormatter())
        axes.legend(loc="upper right")
