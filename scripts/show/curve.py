"""The plot of a training run's loss and accuracy, by matplotlib."""

from .plots import check_plot, colour, plot

__all__ = ["check_curve", "draw_curve"]

_POINTS = 400  # most points of the loss


def check_curve(path):
    """Raises DataError, with a message of one line, if no plot can be drawn to the file `path`."""
    check_plot(path, "a curve", "curves", without=", or train without --curve")


def draw_curve(path, epochs, losses, measured):
    """Plots the loss of each step and the accuracy after each epoch, and writes the file.

    Parameters
    ----------
    path : path
        Output file; its suffix selects the format.
    epochs : sequence of sim.trainer.training.EpochFigures
    losses : float array (epochs, steps)
        Loss of each step.
    measured : str or None
        Name of the sample set for the accuracy. None: the training set.

    Raises
    ------
    sim.data.digits.DataError
        If the file cannot be written.
    """
    group = max(1, losses.size // _POINTS)  # steps per point
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
