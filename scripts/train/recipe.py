"""Code that the training scripts of the shipped networks share: data, learning-rate schedule, progress display, and the ONNX
file."""

import contextlib
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from amaranth_tpu.sim.data.digits import DataError, load_digits
from amaranth_tpu.sim.data.whole_files import write_file

__all__ = [
    "BATCH",
    "PREPROCESS",
    "Data",
    "Seed",
    "without",
    "digits_for",
    "rate_at",
    "kept_at",
    "shown_training",
    "model_of",
    "write_model",
]

PREPROCESS = "unit"
BATCH = 128

Data = Annotated[Path, typer.Option(help="Folder with MNIST's four IDX files.")]
Seed = Annotated[int, typer.Option(min=0)]


def without(images, labels, left_out):
    """Returns `(images, labels)` without the images that are also in `left_out`. Images are compared by their pixels."""
    known = {image.tobytes() for image in left_out}
    keep = np.array([image.tobytes() not in known for image in images])
    return images[keep], labels[keep]


def digits_for(data, output, least=BATCH):
    """Returns three pairs `(images, labels)`: for training, for testing, and of the default data set. The training set excludes
    the digits of the default data set.

    At least `least` digits must remain for training. If something is wrong with the folder `data` or the file `output`, the
    command ends with one line.
    """
    if not output.parent.is_dir():
        raise _failed(f"{output.parent}: no such folder; make it, or name another with -o")
    if output.is_dir():
        raise _failed(f"{output}: is a folder; name a file with -o")
    try:
        train, test, default = load_digits(data, split="train"), load_digits(data, split="test"), load_digits()
    except DataError as error:
        raise _failed(error) from None
    if (highest := max(train[1].max(), test[1].max())) > 9:
        raise _failed(f"{data}: has the label {highest}; labels must be 0 to 9")
    images, labels = without(*train, default[0])
    if len(images) < least:
        raise _failed(f"{data}: has {len(images)} digits to train on; there must be {least}")
    return (images, labels), test, default


def rate_at(step, steps, highest):
    """Returns the learning rate for a step: a linear warm-up to `highest` during 500 steps, then a cosine decay."""
    return highest * min(1, step / 500) * (0.5 + 0.5 * float(np.cos(np.pi * step / steps)))


def kept_at(step):
    """Returns the decay of the running average of the weights at a step: the share of the old average that is kept."""
    return min(0.999, step / (step + 10))


@contextlib.contextmanager
def shown_training(epochs):
    """Shows the progress of training during the `with` block. Yields `(report, console)`: `report(step, steps, loss)` updates a
    progress bar, and `console` prints lines above it."""
    columns = [
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=None, epoch=0, loss=float("nan"))

        def report(step, steps, loss):
            progress.update(task, completed=step, total=steps, loss=loss, epoch=1 + (step - 1) * epochs // steps)

        yield report, progress.console


def model_of(nodes, tensors, name, output, count, seed, shape=(1, 28, 28)):
    """Returns a checked ONNX model with the input `image` (batch, *shape) and the output `output` (batch, count). Its metadata
    has the preprocessing of images and the seed of the training."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", count])],
        tensors,
    )
    model = helper.make_model(graph, producer_name="amaranth-tpu", ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    helper.set_model_props(model, {"preprocess": PREPROCESS, "seed": str(seed)})
    onnx.checker.check_model(model, full_check=True)
    return model


def write_model(output, model):
    """Writes a model to a file and returns its bytes. An error of the file ends the command with one line."""
    content = model.SerializeToString(deterministic=True)
    try:
        write_file(output, content)
    except DataError as error:
        raise _failed(error) from None
    return content


def _failed(error):
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(1)
