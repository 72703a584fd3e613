"""Samples and labels for training, from arrays."""

import warnings
from dataclasses import replace

import numpy as np

from ..data.errors import DataError
from ..data.labels import as_labels, as_wanted
from ..data.samples import takes_integers
from ..golden.arithmetic import round_bfloat16
from ..golden.losses import Positions, one_hot
from ..ir.losses import JointLoss, Loss
from ..trainer.errors import ArgumentError
from ..trainer.order import held_out
from ..trainer.samples import LabelledSamples
from ..trainer.stream import Stream
from .arguments import as_array, shown
from .batches import Batches, gathered
from .inputs_outputs import samples_of

__all__ = ["joint_labels", "labels_of", "shares_of", "training_sets"]


def labels_of(network, y, count, loss, name="y"):
    """Returns the labels of `count` samples, or the wanted results for other losses, as :class:`.LabelledSamples` takes
    them. `name` stands for `y` in messages. Raises DataError."""
    if not loss.is_of_classes:
        wanted = as_wanted(as_array(y), count, network.output_size, name)
        if loss is Loss.BINARY and not ((wanted >= 0) & (wanted <= 1)).all():
            raise DataError(f"{name}: the binary cross-entropy needs labels from 0 to 1; give 0 and 1, or another loss")
        return wanted
    height, width, classes = network.tensors[network.output].shape
    return as_labels(as_array(y), count, classes, height * width, name)


def joint_labels(loss, y, count, name="y"):
    """Returns the targets of all outputs side by side, bfloat16 (count, numbers), for a dict of labels by output, or a list."""
    names = [one.name for one in loss.heads]
    if isinstance(y, (list, tuple)) and len(y) == len(names):
        y = dict(zip(names, y))
    if not isinstance(y, dict) or y.keys() != {*names}:
        raise DataError(f"{name}: must be a dict of labels for each output, {', '.join(names)}, or a list in this order")
    return np.concatenate([_targets_of(one, as_array(y[one.name]), count, f"{name}[{one.name!r}]") for one in loss.heads], axis=1)


def _targets_of(head, y, count, name):
    array = np.asarray(y)
    if not head.loss.is_of_classes or array.dtype.kind == "f" and array.shape == (count, head.size):
        wanted = as_wanted(array, count, head.size, name)
        if head.loss.is_of_logits and not ((wanted >= 0) & (wanted <= 1)).all():
            raise DataError(f"{name}: a cross-entropy needs labels from 0 to 1; give 0 and 1, or another loss")
        return wanted
    return one_hot(as_labels(array, count, head.size, 1, name), head.size)


def _labelled(network, x, y, loss, name):
    if getattr(x, "dtype", None) == np.uint8 and not takes_integers(network) and np.max(x, initial=0) > 1:
        warnings.warn(
            "x: the values of uint8, up to 255, are trained on as they are; for a model of 0 to 1 give x / 255, else give "
            "x.astype('float32') to avoid this warning",
            UserWarning,
            stacklevel=5,
        )
    rows = _FileRows(network, x) if isinstance(x, np.memmap) else _rows(network, x)
    if isinstance(loss, JointLoss):
        return LabelledSamples(rows, joint_labels(loss, y, len(rows), name))
    shares = shares_of(network, y, len(rows), loss)
    labels = labels_of(network, y if shares is None else shares.argmax(-1), len(rows), loss, name)
    shares = None if shares is None else Positions(network).flat(round_bfloat16(shares))
    return LabelledSamples(rows, labels, shares)


def _rows(network, x):
    rows = samples_of(network, x).rows
    return rows if network.feeds else round_bfloat16(rows)


class _FileRows:
    """Samples of an array in a file, which are read and converted when they become an array."""

    def __init__(self, network, array, numbers=None):
        self._network, self._array = network, array
        self._numbers = np.arange(len(array)) if numbers is None else numbers
        self.shape = (len(self._numbers), network.sample_size)

    def __len__(self):
        return len(self._numbers)

    def __getitem__(self, which):
        return _FileRows(self._network, self._array, self._numbers[which])

    def __array__(self, dtype=None, copy=None):
        return _rows(self._network, np.asarray(self._array[self._numbers]))


def shares_of(network, y, count, loss):
    """Returns labels that are shares of the classes, (count, positions, classes). Returns None for class numbers, one-hot rows
    and other losses. Raises DataError if shares are negative, or their sum is not 1."""
    height, width, classes = network.tensors[network.output].shape
    array = np.asarray(as_array(y))
    is_shares = array.dtype.kind == "f" and array.ndim > 1 and array.shape[-1] == classes > 1
    if not loss.is_of_classes or not is_shares or array.size != count * height * width * classes:
        return None
    if height * width == 1 and np.isin(array, (0, 1)).all():
        return None
    shares = array.reshape(count, height * width, classes)
    if not (np.isfinite(shares).all() and (shares >= 0).all() and np.allclose(shares.sum(-1), 1, atol=1e-3)):
        raise DataError(f"y: shares of {classes} classes must be numbers of at least 0 with the sum 1 for each position")
    return shares.astype(np.float32)


def _weighted(network, samples, loss, given):
    """Returns samples with the factors and the label smoothing of the :class:`.FitArguments` `given`."""
    smoothing, is_joint = given.label_smoothing, isinstance(loss, JointLoss)
    if not 0 <= smoothing < 1:
        raise ArgumentError(f"`label_smoothing` must be at least 0 and less than 1, not {shown(smoothing)}")
    if smoothing and not loss.is_of_logits:
        raise ArgumentError("`label_smoothing` needs the loss cross_entropy or binary_crossentropy")
    if given.class_weight is not None and not (loss.is_of_classes or loss is Loss.BINARY and network.output_size == 1):
        raise ArgumentError("`class_weight` needs the loss cross_entropy, or binary_crossentropy of one result")
    factors = [
        _factors(given.sample_weight, len(samples), 1 if is_joint else len(Positions(network))),
        _of_classes(given.class_weight, samples, Positions(network).classes if loss.is_of_classes else 2),
    ]
    if smoothing:
        samples = _smoothed(network, samples, loss, smoothing)
    factors = [one for one in factors if one is not None]
    return replace(samples, factors=np.prod(factors, axis=0).astype(np.float32)) if factors else samples


def _smoothed(network, samples, loss, smoothing):
    if loss is Loss.BINARY:
        labels = samples.labels.astype(np.float32) * (1 - smoothing) + smoothing / 2
        return replace(samples, labels=round_bfloat16(labels))
    positions, labels = Positions(network), samples.labels
    vectors = positions.vectors(positions.targets(labels) if samples.shares is None else samples.shares).astype(np.float32)
    return replace(samples, shares=positions.flat(round_bfloat16(vectors * (1 - smoothing) + smoothing / positions.classes)))


def _factors(given, count, positions):
    if given is None:
        return None
    if isinstance(given, dict):
        raise DataError("sample_weight: must be one array, for all outputs together, not a dict")
    array = np.asarray(as_array(given), np.float64)
    if array.shape in ((count,), (count, 1)):
        array = np.broadcast_to(array.reshape(count, 1), (count, positions))
    if array.size != count * positions or len(array) != count:
        raise DataError(f"sample_weight: must have shape ({count},) or ({count}, {positions}), not {array.shape}")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise DataError("sample_weight: must hold finite numbers of at least 0")
    return array.reshape(count, positions)


def _of_classes(given, samples, classes):
    if given is None:
        return None
    labels = samples.labels.reshape(len(samples), -1)
    if not isinstance(given, dict) or not all(isinstance(one, (int, np.integer)) and 0 <= one < classes for one in given):
        raise ArgumentError(f"`class_weight` must be a dict of numbers by class number, 0 to {classes - 1}, not {shown(given)}")
    factors = np.array([given.get(one, 1) for one in range(classes)], np.float64)
    if not (np.isfinite(factors).all() and (factors >= 0).all()):
        raise ArgumentError("`class_weight` must hold finite numbers of at least 0")
    return factors[np.rint(np.maximum(labels, 0).astype(np.float32)).astype(np.int64)]


def _stream(network, batches, loss, given):
    """Returns the :class:`.Stream` of batches."""
    if given.validation_split:
        raise ArgumentError("`validation_split` does not apply to a stream of batches; give `validation_data`")
    if given.sample_weight is not None:
        raise ArgumentError("`sample_weight` does not apply to a stream; give the factors as a third part of each batch")
    has_factors = batches.first[2] is not None or given.class_weight is not None

    def convert(batch):
        x, y, factors = batches.parts(batch)
        return _weighted(network, _labelled(network, x, y, loss, "y"), loss, replace(given, sample_weight=factors))

    first = convert(batches.first if batches.first[2] is not None else batches.first[:2])
    is_counted = has_factors or loss.is_of_classes and first.labels.ndim > 1
    size = given.batch_size
    return Stream(batches.data, convert, size, batches.steps(size), is_counted, first.is_plain)


def training_sets(network, x, y, loss, given):
    """Returns `(training set, validation set or None)`, for the :class:`.FitArguments` `given`. The factors of classes are of
    training alone, as in Keras. Raises DataError or ArgumentError."""
    split, data, plain = given.validation_split, given.validation_data, replace(given, class_weight=None)
    if isinstance(x, Batches):
        samples = _stream(network, x, loss, given)
    else:
        labelled = _labelled(network, x, y, loss, "y")
        samples = _weighted(network, labelled, loss, given)
    if data is not None:
        if split:
            raise ArgumentError("`validation_split` and `validation_data` exclude each other; give one")
        if hasattr(data, "__iter__") and not isinstance(data, (tuple, list)) and not hasattr(data, "shape"):
            data = gathered(data, "validation_data")
        if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
            raise ArgumentError("`validation_data` must be (x, y), (x, y, sample_weight), or an iterable of batches")
        held, factors = _labelled(network, *data[:2], loss, "validation_data"), (*data, None)[2]
        return samples, _weighted(network, held, loss, replace(plain, sample_weight=factors))
    if not 0 <= split < 1:
        raise ArgumentError(f"`validation_split` must be at least 0 and less than 1, not {split!r}")
    if not split:
        return samples, None
    kept, held = held_out(given.seed, len(samples), split)
    if not len(held) or not len(kept):
        raise ArgumentError(f"`validation_split` {split} of {len(samples)} samples leaves a set empty; give another fraction")
    return samples.chosen(kept), _weighted(network, labelled, loss, plain).chosen(held)
