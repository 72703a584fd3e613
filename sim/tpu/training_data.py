"""Samples and labels for training, from arrays."""

import warnings

import numpy as np

from ..data.labels import as_labels, as_wanted
from ..data.samples import takes_integers
from ..golden.arithmetic import round_bfloat16
from ..ir.losses import Loss
from ..trainer.errors import ArgumentError
from ..trainer.order import held_out
from ..trainer.samples import LabelledSamples
from .arguments import as_array
from .inputs_outputs import samples_of

__all__ = ["labels_of", "training_sets"]


def labels_of(network, y, count, loss, name="y"):
    """Returns the labels of `count` samples, or the wanted results for the squared error, as :class:`.LabelledSamples` takes
    them. `name` stands for `y` in messages. Raises DataError."""
    if loss is Loss.SQUARED_ERROR:
        return as_wanted(as_array(y), count, network.output_size, name)
    height, width, classes = network.tensors[network.output].shape
    return as_labels(as_array(y), count, classes, height * width, name)


def _labelled(network, x, y, loss, name):
    if getattr(x, "dtype", None) == np.uint8 and not takes_integers(network) and np.max(x, initial=0) > 1:
        warnings.warn(
            "x: the values of uint8, up to 255, are trained on as they are; for a model of 0 to 1 give x / 255, else give "
            "x.astype('float32') to avoid this warning",
            UserWarning,
            stacklevel=5,
        )
    rows = samples_of(network, x).rows
    return LabelledSamples(rows if network.feeds else round_bfloat16(rows), labels_of(network, y, len(rows), loss, name))


def training_sets(network, x, y, loss, given):
    """Returns `(training set, validation set or None)`, for the :class:`.FitArguments` `given`. Raises DataError or
    ArgumentError."""
    split, data = given.validation_split, given.validation_data
    samples = _labelled(network, x, y, loss, "y")
    if data is not None:
        if split:
            raise ArgumentError("`validation_split` and `validation_data` exclude each other; give one")
        if not isinstance(data, (tuple, list)) or len(data) != 2:
            raise ArgumentError("`validation_data` must be a pair (x, y)")
        return samples, _labelled(network, *data, loss, "validation_data")
    if not 0 <= split < 1:
        raise ArgumentError(f"`validation_split` must be at least 0 and less than 1, not {split!r}")
    if not split:
        return samples, None
    kept, held = held_out(given.seed, len(samples), split)
    if not len(held) or not len(kept):
        raise ArgumentError(f"`validation_split` {split} of {len(samples)} samples leaves a set empty; give another fraction")
    return samples.chosen(kept), samples.chosen(held)
