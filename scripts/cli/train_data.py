"""The training, validation and test sets of `tpu train`: MNIST digits, a text, or arrays from files."""

from dataclasses import dataclass

import numpy as np
import typer

from amaranth_tpu.sim.data.array_files import is_archive, read_array, read_labels, read_samples, read_wanted
from amaranth_tpu.sim.data.digits import load_digits
from amaranth_tpu.sim.data.samples import takes_digits
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.losses import one_hot
from amaranth_tpu.sim.models.gpt_text import SHIPPED_ALPHABET, training_text
from amaranth_tpu.sim.models.gpt_weights import read_alphabet
from amaranth_tpu.sim.models.shipped import GPT_NAME
from amaranth_tpu.sim.trainer.order import held_out
from amaranth_tpu.sim.trainer.samples import LabelledSamples, windows_of_text

from .run_data import digit_rows

__all__ = ["TrainData", "choose_train_data", "read_text"]

_TEST_SHARE = 5  # every fifth of the packaged digits is in the test set
_CLASSES = 10
_HELD_OUT = 0.1  # fraction of a text for validation
_LEFT_OUT = 0.05  # largest fraction of a text that is left out without --drop-letters


@dataclass(frozen=True)
class TrainData:
    """The training, validation and test sets."""

    train: LabelledSamples
    validation: LabelledSamples | None
    test: LabelledSamples | None
    origin: dict  # origin of the samples, for `--json`; the entry `text` is a sentence
    note: str | None = None  # a line to show before training

    @property
    def measured(self):
        """Returns `(samples, name)` of the set on which each epoch is evaluated: the validation set, else the test set, else
        `(None, None)`."""
        return (self.validation, "validation") if self.validation else (self.test, "test") if self.test else (None, None)


def choose_train_data(network, options):
    """Returns the :class:`TrainData` that the options of `tpu train` select. Raises DataError or BadParameter.

    Parameters
    ----------
    network : sim.ir.graph.Graph
    options : scripts.cli.train_options.TrainOptions
    """
    is_text = options.input is None and takes_tokens(network)
    if options.drop_letters and not (is_text and options.data and options.data.suffix != ".npy"):
        raise typer.BadParameter("--drop-letters applies to a text, --model gpt --data FILE: leave it out")
    if is_text:
        return _text(network, options)
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
    train = _arrays(network, options.input, options.labels, "--labels", options.loss)
    test = (
        _arrays(network, options.test_input, options.test_labels, "--test-labels", options.loss) if options.test_input else None
    )
    origin = {"kind": "file", "file": str(options.input), "test_file": options.test_input and str(options.test_input)}
    return train, test, origin | {"text": f"from {options.input}"}


def _arrays(network, path, labels, option, loss):
    samples, count = read_samples(path, network)
    rows = samples.rows if network.feeds else round_bfloat16(samples.rows)
    if labels is None and not loss.is_of_classes and not is_archive(path):
        if samples.rows.shape[1] != network.output_size:
            raise typer.BadParameter(f"{path} has no wanted results; name a file of them with {option}")
        return LabelledSamples(rows, rows)
    if labels is None and not is_archive(path):
        raise typer.BadParameter(f"{path} has no labels; name a file of labels with {option}")
    if not loss.is_of_classes:
        return LabelledSamples(rows, read_wanted(labels or path, count, network.output_size))
    height, width, classes = network.tensors[network.output].shape
    return LabelledSamples(rows, read_labels(labels or path, count, classes, height * width))


def takes_tokens(network):
    """Returns True if a sample consists of row numbers of one table, and the result has a vector of logits for each."""
    height, width, _ = network.tensors[network.output].shape
    is_table = len(network.feeds) == 1 and network.feeds[0].table is not None
    return is_table and len(network.feeds[0].places) == network.sample_size == height * width


def _text(network, options):
    if not options.loss.is_of_classes or options.preprocess:
        raise typer.BadParameter(f"--{'preprocess' if options.preprocess else 'loss'} does not apply to a text: leave it out")
    classes = min(network.tensors[network.output].channels, len(network.feeds[0].table))
    ids, note = _ids(options, classes, network.origin and network.origin.path)
    text = "Python's help topics" if options.data is None else f"text from {options.data}"
    cut = round(len(ids) * (1 - (options.validation or _HELD_OUT)))
    train, held = (windows_of_text(part, network.sample_size) for part in (ids[:cut], ids[cut:]))
    if not len(held):
        raise typer.BadParameter(
            f"{text}: {len(ids)} tokens leave no validation set of {network.sample_size + 1}; give a longer text"
        )
    origin = {
        "kind": "text",
        "file": options.data and str(options.data),
        "text": f"{text}, {note.partition(' (')[0]}" if note else text,
    }
    return TrainData(train, held, None, origin, note and f"{options.data}: {note}")


def _ids(options, classes, file=None):
    path, alphabet = options.data, read_alphabet(file) if file else SHIPPED_ALPHABET
    if path and path.suffix == ".npy":
        ids = read_array(path)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids) or ids.min() < 0 or ids.max() >= classes:
            raise typer.BadParameter(f"{path}: must hold token ids, integers of shape (tokens,) from 0 to {classes - 1}")
        return ids, None
    if options.model != GPT_NAME and alphabet == SHIPPED_ALPHABET:
        raise typer.BadParameter("the alphabet of this model is not known; give its token ids as --data FILE.npy")
    if path is None:
        return alphabet.encoded(training_text()), None
    text = read_text(path)
    text = text if alphabet.letters is None else text.decode(errors="replace")
    count, phrase = alphabet.left_out(text)
    if count > _LEFT_OUT * len(text) and not options.drop_letters:
        raise typer.BadParameter(
            f"{path}: {phrase} are not in the model's alphabet; replace them in the file, or leave them out with --drop-letters"
        )
    if count:
        return alphabet.encoded(text), f"without {phrase}, which are not in the model's alphabet"
    return alphabet.encoded(text), None if alphabet == SHIPPED_ALPHABET else f"its alphabet is {alphabet}"


def read_text(path):
    """Returns the bytes of a text file. Raises BadParameter."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror or error}; name a text file") from None
    if not content:
        raise typer.BadParameter(f"{path}: is empty; give a text")
    return content


def _digits(network, options):
    if not takes_digits(network):
        raise typer.BadParameter("the model does not take images of 28 x 28 pixels; give samples with --input and --labels")
    if options.data:
        train, test = (load_digits(options.data, split) for split in ("train", "test"))
    else:
        images, labels = load_digits()
        tested = np.arange(len(images)) % _TEST_SHARE == 0
        train, test = ((images[which], labels[which]) for which in (~tested, tested))
    (train, origin), (test, _) = (_prepared(network, *part, options) for part in (train, test))
    return train, test, origin


def _prepared(network, images, labels, options):
    rows, origin = digit_rows(network, images, options.preprocess, options.data)
    return _labelled(network, round_bfloat16(rows), labels, options), origin


def _labelled(network, rows, labels, options):
    if not options.loss.is_of_classes:
        if network.output_size == rows.shape[1]:
            return LabelledSamples(rows, rows)
        if network.output_size != _CLASSES:
            raise typer.BadParameter(
                f"--loss {options.loss.value} on digits needs a model of {rows.shape[1]} results, or {_CLASSES} for classes"
            )
        return LabelledSamples(rows, one_hot(labels, _CLASSES))
    return LabelledSamples.checked(rows, labels, network.output_size, str(options.data or "digits"))
