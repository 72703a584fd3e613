"""Callbacks of training: checkpoints, early stopping, TensorBoard logs."""

from dataclasses import dataclass

from ..trainer.errors import ArgumentError
from .arguments import shown

__all__ = ["Checkpoint", "EarlyStopping", "TensorBoard", "Callbacks"]


@dataclass(frozen=True)
class Checkpoint:
    """A callback that saves the state of training after each epoch, every 30 s, and on Ctrl-C.

    Parameters
    ----------
    folder : path
        Folder of the checkpoint. It is created if needed.
    resume : bool
        Continue from the checkpoint in the folder, if there is one. The result then equals an uninterrupted run bit for bit. All
        arguments must be the same; with a constant learning rate, `epochs` may be larger. Default: an existing checkpoint is an
        error, so that it is not overwritten.
    keep_all : bool
        Also keep a copy of the checkpoint for each epoch.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from amaranth_tpu import tpu
    >>> x = np.random.default_rng(1).random((40, 784))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for epochs in (1, 3):
    ...         save = tpu.Checkpoint(folder, resume=True)
    ...         done = tpu.load("d").fit(x, x[:, :10].argmax(axis=1), epochs=epochs, callbacks=[save])
    >>> len(done.epochs)                                             # one from the first call, two from the second
    3
    """

    folder: object
    resume: bool = False
    keep_all: bool = False


@dataclass(frozen=True)
class EarlyStopping:
    """A callback that ends training when the validation loss stops falling. The model keeps the weights of the epoch with the
    lowest validation loss.

    Parameters
    ----------
    patience : int or None
        Number of epochs without a lower validation loss after which training ends. None: training does not end early, but the
        model keeps the best weights.

    Examples
    --------
    >>> from amaranth_tpu import tpu
    >>> tpu.EarlyStopping(patience=3)
    EarlyStopping(patience=3)
    """

    patience: int | None = 1

    def __post_init__(self):
        if self.patience is not None and (not isinstance(self.patience, int) or self.patience < 1):
            raise ArgumentError(f"`patience` must be an integer of at least 1, or None, not {shown(self.patience)}")


@dataclass(frozen=True)
class TensorBoard:
    """A callback that writes event files for TensorBoard: loss, accuracy and learning rate of each step, and the validation loss
    and accuracy of each epoch. It needs the package tensorboardX, which needs neither TensorFlow nor PyTorch.

    Parameters
    ----------
    folder : path
        Folder of the event files. It is created if needed.

    Examples
    --------
    >>> from amaranth_tpu import tpu
    >>> tpu.TensorBoard("logs")                                      # afterwards: tensorboard --logdir logs
    TensorBoard(folder='logs')
    """

    folder: object


class Callbacks:
    """The callbacks of one training run, sorted by kind.

    Parameters
    ----------
    given : callback or sequence of callbacks
        At most one of each class, and any number of functions. A function is called with the statistics of each epoch; if it
        returns True, training ends.

    Members
    -------
    checkpoint, early_stopping, tensorboard : callback or None

    Raises
    ------
    ArgumentError
    """

    _KINDS = {"checkpoint": Checkpoint, "early_stopping": EarlyStopping, "tensorboard": TensorBoard}

    def __init__(self, given):
        given = list(given) if isinstance(given, (list, tuple)) else [given]
        for name, kind in self._KINDS.items():
            found = [one for one in given if isinstance(one, kind)]
            if len(found) > 1:
                raise ArgumentError(f"`callbacks` has {len(found)} of {kind.__name__}; give one")
            setattr(self, name, found[0] if found else None)
        self._functions = [one for one in given if not isinstance(one, tuple(self._KINDS.values()))]
        for one in self._functions:
            if isinstance(one, type) or not callable(one):
                names = ", ".join(kind.__name__ for kind in self._KINDS.values())
                raise ArgumentError(
                    f"`callbacks` takes objects of {names}, and functions of an epoch's statistics, not {shown(one)}"
                )

    @property
    def read_weights(self):
        """Returns True if a function reads the weights of the model of a framework."""
        return any(hasattr(one, "finish") for one in self._functions)

    def on_epoch(self, figures):
        """Calls all functions with an :class:`.EpochFigures`. Returns True if one of them returned True."""
        return any([one(figures) is True for one in self._functions])

    def finish(self):
        """Calls what functions have to do after training."""
        for one in self._functions:
            getattr(one, "finish", lambda: None)()
