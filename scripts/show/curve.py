"""Loss and accuracy of a training run as a picture, drawn by matplotlib."""

from .plots import check_plot, colour, plot

__all__ = ["check_curve", "draw_curve"]

_POINTS = 400  # of the loss


def check_curve(path):
    """Raises DataError, one line, if no picture can be drawn to this file."""
    check_plot(path, "a curve", "curves", without=", or train without --curve")


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
    group = max(1, losses.size // _POINTS)  # steps of a point
    points = losses.ravel()[: losses.size // group * group].reshape(-1, group).mean(axis=1)
    places = [(index + 0.5) * group / losses.shape[1] for index in range(len(points))]
    numbers = [one.epoch for one in epochs]
    accuracies = [100 * (one.accuracy if measured else one.training_accuracy) for one in epochs]
    loss, accuracy = colour("blue"), colour("red")
    with plot(path) as (figure, left):
        right = left.twinx()
        left.plot(places, points, color=loss, linewidth=1, label="loss")
        if measured:
            left.plot(numbers, [one.measured_loss for one in epochs], "o--", color=loss, label=f"{measured} loss", markersize=4)
        right.plot(numbers, accuracies, "s-", color=accuracy, label=f"{measured or 'training'} accuracy", markersize=4)
        left.set(xlabel="epoch", ylabel="loss (mean cross-entropy)", xlim=(0, len(epochs)), yscale="log")
        left.yaxis.label.set_color(loss)
        right.set_ylabel("accuracy, %", color=accuracy)
        right.grid(visible=False)
        left.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(loc="outside upper center", ncols=3)
