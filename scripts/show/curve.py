"""Loss and accuracy of a training run as a picture, drawn by matplotlib."""

import io
from pathlib import Path

import numpy as np

from amaranth_tpu.sim.data.digits import DataError
from amaranth_tpu.sim.data.whole_files import write_file

__all__ = ["FORMATS", "check_curve", "draw_curve"]

FORMATS = ("svg", "png", "pdf")
_LOSS, _ACCURACY = "#1f5fa8", "#c2571a"
_POINTS = 400  # of the loss


def check_curve(path):
    """Raises DataError, one line, if no picture can be drawn to this file."""
    if _format(path) not in FORMATS:
        raise DataError(f"{path}: a curve is a picture; name a file that ends in .{', .'.join(FORMATS[:-1])} or .{FORMATS[-1]}")
    try:
        import matplotlib  # noqa: F401, which is an option
    except ImportError as error:
        raise DataError(
            f"curves are drawn by the package matplotlib, which can't be imported ({error}): pip install matplotlib, "
            "or train without --curve"
        ) from None


def _format(path):
    return Path(path).suffix[1:].lower()


def draw_curve(path, epochs, losses, measured):
    """Draws the loss along the steps, and the accuracy after each epoch, and writes the file.

    Parameters
    ----------
    path : path
        Its ending says in which format.
    epochs : sequence of sim.trainer.training.EpochFigures
    losses : float array (epochs, steps)
    measured : str or None
        The name of what the epochs' accuracy is of; None: of the samples that are trained on.

    Raises
    ------
    sim.data.digits.DataError
        If the file can't be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    group = max(1, losses.size // _POINTS)  # steps of a point
    points = losses.ravel()[: losses.size // group * group].reshape(-1, group).mean(axis=1)
    places = (np.arange(len(points)) + 0.5) * group / losses.shape[1]
    left.plot(places, points, color=_LOSS, linewidth=1, label="loss")
    numbers = [one.epoch for one in epochs]
    if measured:
        left.plot(numbers, [one.measured_loss for one in epochs], "o--", color=_LOSS, label=f"{measured} loss", markersize=4)
    accuracies = [100 * (one.accuracy if measured else one.training_accuracy) for one in epochs]
    right.plot(numbers, accuracies, "s-", color=_ACCURACY, label=f"{measured or 'training'} accuracy", markersize=4)
    left.set(xlabel="epoch", ylabel="loss (mean cross-entropy)", xlim=(0, len(epochs)), yscale="log")
    left.yaxis.label.set_color(_LOSS)
    right.set_ylabel("accuracy, %", color=_ACCURACY)
    left.xaxis.get_major_locator().set_params(integer=True)
    left.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    content, kind = io.BytesIO(), _format(path)
    with rc_context({"svg.hashsalt": "amaranth-tpu"}):  # the same run gives the same bytes
        figure.savefig(content, format=kind, dpi=150, metadata={"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind))
    write_file(path, content.getvalue())
