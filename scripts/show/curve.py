"""The plot of a training run's loss and accuracy, by matplotlib."""

from .plots import check_plot, colour, plot

__all__ = ["check_curve", "draw_curve"]

_POINTS = 400  # most points of the loss


def check_curve(path):
    """Raises DataError, with a message of one line, if no plot can be drawn to the file `path`."""
    check_plot(path, "a curve", "curves", without=", or train without --curve")


def draw_curve(path, training, measured):
    """Plots the loss of each step and the figures of each evaluation, and writes the file. Raises DataError if the file cannot
    be written.

    Parameters
    ----------
    path : path
        Output file; its suffix selects the format.
    training : sim.trainer.golden_training.Training
    measured : str or None
        Name of the sample set for the accuracy. None: the training set.
    """
    history = training.position.history
    losses = training.losses[: history[-1].steps]
    group = max(1, losses.size // _POINTS)  # steps per point
    points = losses[: losses.size // group * group].reshape(-1, group).mean(axis=1)
    places = [(index + 0.5) * group / training.steps for index in range(len(points))]
    numbers = [one.steps / training.steps for one in history]
    accuracies = [one.accuracy if measured else one.training_accuracy for one in history]
    loss, accuracy = colour("blue"), colour("red")
    with plot(path) as (figure, left):
        left.plot(places, points, color=loss, linewidth=1, label="loss")
        if measured:
            left.plot(numbers, [one.measured_loss for one in history], "o--", color=loss, label=f"{measured} loss", markersize=4)
        kind = "mean cross-entropy" if training.network.loss == "cross-entropy" else "mean squared error"
        left.set(xlabel="epoch", ylabel=f"loss ({kind})", xlim=(0, numbers[-1]), yscale="log")
        left.yaxis.label.set_color(loss)
        if None not in accuracies:
            right, percent = left.twinx(), [100 * one for one in accuracies]
            right.plot(numbers, percent, "s-", color=accuracy, label=f"{measured or 'training'} accuracy", markersize=4)
            right.set_ylabel("accuracy, %", color=accuracy)
            right.grid(visible=False)
        left.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(loc="outside upper center", ncols=3)
