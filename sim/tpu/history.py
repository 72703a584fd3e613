"""The result of training: loss and accuracy by epoch and step, and the comparison of steps with a core."""

from dataclasses import dataclass

from .html import curve, html_table

__all__ = ["History"]


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """The result of :meth:`sim.tpu.model.Model.fit`.

    Parameters
    ----------
    epochs : tuple of sim.trainer.golden_training.EpochFigures
        Statistics of each epoch, or of the steps between two evaluations: `epoch`, `steps` (since the start), `rate`, `loss`,
        `training_accuracy`, `measured_loss`, `accuracy`, `metrics`, `seconds`.
    step_losses : float64 (steps,)
        Loss of each step, before its update.
    best_epoch : int or None
        Number of the entry of `epochs` (from 1) whose weights were kept, with :class:`EarlyStopping`. None: the weights of the
        last step.
    stopped_early : bool
        True if a callback ended training before the last epoch.
    core : dict or None
        Comparison with a core: `rtl_steps` and `compared_values` (both counts), `mismatched_bits` (0), `cycles_per_step`,
        `utilisation` (None without an RTL simulation), `stalls`, and others. None without `check_steps`.
    own_form : bool
        True if the trained model is the original ONNX graph with new values. False: it is an equivalent graph.
    """

    epochs: tuple
    step_losses: object
    best_epoch: int | None = None
    stopped_early: bool = False
    core: dict | None = None
    own_form: bool = True

    def __repr__(self):
        return f"<History: {len(self.step_losses)} steps; {self.epochs[-1] if self.epochs else 'no whole epoch'}>"

    def _repr_html_(self):
        columns = self.history
        rows = [
            (one.epoch, one.steps, *(values[number] for values in columns.values())) for number, one in enumerate(self.epochs)
        ]
        compared = "" if self.core is None else f", {self.core['mismatched_bits']} bits differ on the core"
        caption = f"{len(self.step_losses):,} steps{compared}"
        return html_table(caption, ("epoch", "steps", *columns), rows) + curve(self.step_losses, "loss of each step")

    @property
    def history(self):
        """Returns the statistics as in Keras: lists by name, with a number for each epoch. Names are `loss`, `accuracy`,
        `learning_rate` and, with validation data, `val_loss`, `val_accuracy` and `val_` with the name of each metric. Losses of
        numbers have no accuracy.

        Examples
        --------
        >>> import numpy as np
        >>> from amaranth_tpu import tpu
        >>> model, x = tpu.load("d"), np.random.default_rng(1).random((40, 784))
        >>> done = model.fit(x, x[:, :10].argmax(axis=1), epochs=2, batch_size=20)
        >>> sorted(done.history), len(done.history["loss"]), len(done.step_losses)
        (['accuracy', 'learning_rate', 'loss'], 2, 4)
        """
        names = {"loss": "loss", "accuracy": "training_accuracy", "learning_rate": "rate"}
        if any(one.measured_loss is not None for one in self.epochs):
            names |= {"val_loss": "measured_loss", "val_accuracy": "accuracy"}
        lists = {name: [getattr(one, field) for one in self.epochs] for name, field in names.items()}
        for name in self.epochs[0].metrics if self.epochs else ():
            lists[f"val_{name}"] = [one.metrics[name] for one in self.epochs]
        return {name: values for name, values in lists.items() if None not in values}
