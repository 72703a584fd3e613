"""Plots by matplotlib in the common colours. They have a white background; SVG files use the light or dark colours of the page
around them."""

import contextlib
import io
import logging
from pathlib import Path

from amaranth_tpu.sim.data.errors import DataError
from amaranth_tpu.sim.data.printable import printable
from amaranth_tpu.sim.data.whole_files import write_file

from .look import COLOURS, dark_rules

__all__ = ["FORMATS", "check_plot", "colour", "plot"]

FORMATS = ("svg", "png", "pdf")
#: In matplotlib's SVG an element's colour is part of its style, or, below hatches, an attribute.
_SELECTORS = {
    f"{selector} {what}": name
    for name, (light, _) in COLOURS.items()
    for what in ("fill", "stroke")
    for selector in (f'[style*="{what}: {light}"]', f'[{what}="{light}"]')
}


def colour(name):
    """Returns a colour of :data:`scripts.show.look.COLOURS` for a light page, as a hexadecimal text."""
    return COLOURS[name][0]


def _format(path):
    return Path(path).suffix[1:].lower()


def check_plot(path, one, many, without=""):
    """Raises DataError, with a message of one line, if no plot can be drawn to the file `path`: the file's suffix is not
    supported, or matplotlib cannot be imported.

    Parameters
    ----------
    path : path
    one, many : str
        Singular and plural name of the plot in messages, such as `a curve` and `curves`.
    without : str
        Text that is added to messages and names an alternative without a plot, such as `, or train without --curve`.
    """
    if _format(path) not in FORMATS:
        endings = f".{', .'.join(FORMATS[:-1])} or .{FORMATS[-1]}"
        raise DataError(f"{path}: {one} is not written to such a file; name one that ends in {endings}")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # suppresses warnings of unavailable caches
    try:
        import matplotlib  # noqa: F401, an optional dependency
    except Exception as error:  # also from an incompatible or damaged package
        raise DataError(
            f"{many} are drawn by the package matplotlib, which cannot be imported ({printable(error, 200)}): "
            f"pip install matplotlib{without}"
        ) from None


def _settings():
    line, ink, faint = (colour(name) for name in ("line", "ink", "faint"))
    return {
        "figure.facecolor": colour("ground"),
        "savefig.facecolor": colour("ground"),
        "axes.facecolor": colour("ground"),
        "axes.edgecolor": line,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "axes.titlesize": 12,
        "axes.spines.top": False,
        "axes.grid": True,
        "grid.color": line,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.labelcolor": ink,
        "text.color": ink,
        "xtick.color": faint,
        "ytick.color": faint,
        "font.size": 10,
        "figure.constrained_layout.h_pad": 0.12,
        "figure.constrained_layout.w_pad": 0.12,
        "svg.fonttype": "none",  # keeps text as text
        "svg.hashsalt": "amaranth-tpu",  # makes the output reproducible
    }


@contextlib.contextmanager
def plot(path, width=8, height=4.5):
    """Yields `(figure, axes)` to draw on, `width` x `height` inches. Writes the file at the end of the `with` block.

    The suffix selects the format. Raises DataError if the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    content, kind = io.BytesIO(), _format(path)
    with rc_context(_settings()):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    text = content.getvalue()
    if kind == "svg":
        text = text.replace(b"<defs>", f"<style>{dark_rules(_SELECTORS)}</style>\n <defs>".encode(), 1)
    write_file(path, text)
