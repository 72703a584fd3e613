"""Plots of runs: a roofline of the layers and the breakdown of the cycles, from the output of `tpu run --json`, and the cycles of
the parts of a network."""

import json
from pathlib import Path

from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.sim.data.digits import DataError
from amaranth_tpu.sim.data.printable import printable

from .labels import place_labels
from .plots import colour, plot

__all__ = ["draw_parts", "draw_roofline", "draw_stalls", "read_figures", "roofline_points"]

#: Bound of a layer to colour and marker.
_BOUNDS = {"array": ("blue", "o"), "bus": ("red", "s"), "waiting": ("grey", "^")}
_ABOVE = "Above the roof: the words of these layers came while others ran."
_STATES = ("blue", "grey", "red", "green", "purple", "orange", "sand", "sky", "faint", "purple")
_HATCHES = ("", "", "", "", "//", "", "", "\\\\", "..", "xx")


def read_figures(path, *needed):
    """Reads the output of `tpu run --json` from a file and returns it as a dict.

    Raises DataError, with a message of one line, if the file has another content, or lacks one of the entries `needed`.
    """
    try:
        figures = json.loads(Path(path).read_text())
    except OSError as error:
        raise DataError(f"{printable(path)}: {error.strerror or error}") from None
    except ValueError:
        figures = None
    if not isinstance(figures, dict):
        raise DataError(f"{printable(path)}: not the figures of a run; write it with `tpu run --json`")
    for name in needed:
        if not figures.get(name):
            remedy = "; run it with --layers" if name == "layers" else "; run it on the RTL, with --simulator verilator or icarus"
            raise DataError(f"{printable(path)}: the run has no {name}{remedy}")
    return figures


def roofline_points(layers):
    """Returns a list of `(name, MACs per bus word, MACs per cycle, bound)`, an entry for each layer of `tpu run --layers --json`.

    Words are counted in the direction of the bus that moves more of them; each direction moves one beat per cycle. The bound is
    `array`, `bus` or `waiting`.
    """
    points = []
    for layer in layers:
        words = max(1, layer["read_beats"], layer["write_beats"])
        bound = layer["bound"] if layer["bound"] in _BOUNDS else "waiting"
        points.append((layer["name"], layer["macs"] / words, layer["macs"] / max(1, layer["cycles"]), bound))
    return points


def _whole(layers):
    """Returns one entry that combines all layers: the sums of their counts."""
    return {"name": "all", "bound": None} | {
        name: sum(layer[name] for layer in layers) for name in ("macs", "cycles", "read_beats", "write_beats")
    }


def draw_roofline(path, figures):
    """Plots each layer below the roofline of array and bus, on logarithmic axes, and writes the file.

    Parameters
    ----------
    path : path
    figures : dict
        Output of `tpu run --json` with the entry `layers`.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    points, peak = roofline_points(figures["layers"]), figures["n"] ** 2
    [whole] = roofline_points([_whole(figures["layers"])])
    above = "".join(name for name, x, y, _ in points if y > min(x, peak))
    xs, ys = [x for _, x, _, _ in points] + [peak], [y for _, _, y, _ in points]
    low, high = min(xs) / 2, max(xs) * 2.5
    with plot(path, height=5.4) as (figure, axes):
        axes.plot([low, peak, high], [low, peak, peak], color=colour("ink"), linewidth=1.5)
        roof = [
            axes.annotate(f"array: {peak:,} MACs a cycle", (high, peak), (-4, 5), textcoords="offset points", ha="right"),
            axes.annotate("bus: a word a cycle", (0.01, peak * 0.75), xycoords=("axes fraction", "data"), va="center"),
        ]
        for bound, (name, mark) in _BOUNDS.items():
            mine = [point for point in points if point[3] == bound]
            if mine:
                places = [x for _, x, _, _ in mine], [y for _, _, y, _ in mine]
                label = "most cycles waiting" if bound == "waiting" else f"bound by the {bound}"
                axes.plot(*places, mark, color=colour(name), markersize=8, linestyle="none", label=label)
        axes.plot(*whole[1:3], "D", color=colour("ink"), markersize=7, linestyle="none", label="the whole run")
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(low, high),
            ylim=(min([*ys, low]) / 2, peak * 2),
            xlabel="multiply-accumulates for each bus word" + (above and f"\n{_ABOVE}"),
            ylabel="multiply-accumulates a cycle",
            title=f"Roofline, n = {figures['n']}, batch of {figures['batch']}",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_formatter(NullFormatter())
        figure.legend(loc="outside lower center", ncols=4, fontsize=9)
        place_labels(figure, axes, [(f"{printable(name)}: {y:.3g}", x, y) for name, x, y, _ in [*points, whole]], roof)


def draw_stalls(path, figures):
    """Plots the cycles of a run as one bar, divided into busy cycles and stalls of the array, and writes the file.

    Parameters
    ----------
    path : path
    figures : dict
        Output of `tpu run --json` with the entries `cycles`, `busy` and `stalls`.
    """
    parts = {"busy": figures["busy"], **{name: figures["stalls"][name] for name in STALLS}}
    cycles = max(1, figures["cycles"])
    with plot(path, height=2.6) as (figure, axes):
        left = 0
        for (name, count), colour_name, hatch in zip(parts.items(), _STATES, _HATCHES, strict=True):
            label = f"{name}: {count:,} ({count / cycles:.1%})"
            look = {"color": colour(colour_name), "edgecolor": colour("ground"), "hatch": hatch}
            axes.barh(0, count, left=left, height=0.6, label=label, **look)
            if count > 0.06 * cycles:
                axes.annotate(name, (left + count / 2, 0), ha="center", va="center", color=colour("ground"))
            left += count
        axes.set(xlim=(0, cycles), yticks=[], xlabel="cycles", title=f"Where {cycles:,} cycles went")
        axes.grid(visible=False)
        axes.spines[["left", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)


def draw_parts(path, runs):
    """Plots the cycles of runs as one bar each, divided into parts, and writes the file.

    Parameters
    ----------
    path : path
    runs : dict of str: dict of str: int
        Cycles by the name of the run and the name of the part. All runs have the same parts.
    """
    names = list(runs)[::-1]
    left = [0] * len(names)
    with plot(path, height=1.4 + 0.7 * len(names)) as (figure, axes):
        for part, colour_name, hatch in zip(runs[names[0]], _STATES, _HATCHES, strict=False):
            counts = [runs[name][part] for name in names]
            look = {"color": colour(colour_name), "edgecolor": colour("ground"), "hatch": hatch}
            axes.barh(names, counts, left=left, height=0.6, label=part, **look)
            left = [start + count for start, count in zip(left, counts)]
        for place, total in enumerate(left):
            axes.annotate(f" {total:,}", (total, place), va="center")
        axes.set(xlim=(0, 1.15 * max(left)), xlabel="estimated cycles")
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=5, fontsize=9)
