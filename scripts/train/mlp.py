"""Training of the shipped network 784-128-10 with ReLU, on MNIST without the 5,000 digits of the default data set.

    python -m amaranth_tpu.scripts.train.mlp --data DIR -o sim/models/mnist_mlp.onnx

Training uses numpy alone, with Adam and label smoothing. Digits are randomly shifted, rotated and stretched a little. The final
weights are a running average over the steps, rounded to bfloat16. The same seed on the same machine gives the same file.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from onnx import helper, numpy_helper

from amaranth_tpu.sim.data.digits import preprocess
from amaranth_tpu.sim.golden.arithmetic import activate, matmul, round_bfloat16

from .recipe import BATCH, PREPROCESS, Data, Seed, digits_for, kept_at, model_of, rate_at, shown_training, write_model

__all__ = ["train", "export", "accuracy"]


def _distort(images, random, strength):
    """Returns float32 images (count, 28, 28) that are randomly rotated, stretched, slanted and shifted, with bilinear
    interpolation."""
    count, size = len(images), images.shape[1]
    turn = random.normal(0, 0.12 * strength, count)
    slant = random.normal(0, 0.12 * strength, count)
    stretch = np.exp(random.normal(0, 0.09 * strength, (2, count)))
    shift = random.normal(0, 0.9 * strength, (2, count))
    cos, sin = np.cos(turn), np.sin(turn)
    across = np.arange(size, dtype=np.float32) - (size - 1) / 2
    y, x = across[None, :, None], across[None, None, :]

    def column(values):
        return values.astype(np.float32)[:, None, None]

    source_y = column(cos * stretch[0]) * y + column(sin * stretch[0]) * x + column(shift[0])
    source_x = column((slant * cos - sin) * stretch[1]) * y + column((cos + slant * sin) * stretch[1]) * x + column(shift[1])
    edge = size + 3  # padding, so that all indices stay inside the image
    padded = np.zeros((count, edge + 1, edge + 1), np.float32)
    padded[:, 2 : 2 + size, 2 : 2 + size] = images
    source_y = np.clip(source_y + (size - 1) / 2 + 2, 0, edge - 0.001)
    source_x = np.clip(source_x + (size - 1) / 2 + 2, 0, edge - 0.001)
    row, left = source_y.astype(np.int32), source_x.astype(np.int32)
    down, right = source_y - row, source_x - left
    flat = padded.reshape(-1)
    at = (np.arange(count, dtype=np.int32) * (edge + 1) ** 2)[:, None, None] + row * (edge + 1) + left
    top = flat[at] * (1 - right) + flat[at + 1] * right
    bottom = flat[at + edge + 1] * (1 - right) + flat[at + edge + 2] * right
    return top * (1 - down) + bottom * down


def train(images, labels, *, seed=1, epochs=60, hidden=128, smoothing=0.02, strength=1.0, rate=2e-3, report=None):
    """Trains the network. Returns float32 `[w0, b0, w1, b1]`; the weights have bfloat16 values.

    Calls `report(step, steps, loss)` from time to time.
    """
    random = np.random.default_rng(seed)
    pixels = preprocess(images, PREPROCESS).reshape(images.shape)
    inputs, classes = pixels[0].size, 10
    parameters = [
        random.normal(0, (2 / inputs) ** 0.5, (inputs, hidden)),
        np.zeros(hidden),
        random.normal(0, (2 / hidden) ** 0.5, (hidden, classes)),
        np.zeros(classes),
    ]
    parameters = [p.astype(np.float32) for p in parameters]
    averages = [p.copy() for p in parameters]
    moments = [(np.zeros_like(p), np.zeros_like(p), np.empty_like(p)) for p in parameters]
    targets = np.full((classes, classes), smoothing / classes, np.float32)
    np.fill_diagonal(targets, 1 - smoothing + smoothing / classes)
    per_epoch = len(images) // BATCH
    steps, step = epochs * per_epoch, 0
    for epoch in range(epochs):
        order = random.permutation(len(images))
        for group in range(0, per_epoch, 16):  # distort 16 batches at a time
            batches = range(group, min(group + 16, per_epoch))
            chosen = order[group * BATCH : (batches[-1] + 1) * BATCH]
            # The last epochs use undistorted digits.
            now = strength if epoch < 0.9 * epochs else 0.3 * strength
            distorted = _distort(pixels[chosen], random, now).reshape(len(chosen), -1)
            for index in range(len(batches)):
                rows = slice(index * BATCH, (index + 1) * BATCH)
                x, wanted = distorted[rows], targets[labels[chosen[rows]]]
                w0, b0, w1, b1 = parameters
                inner = np.maximum(x @ w0 + b0, 0)
                logits = inner @ w1 + b1
                shares = np.exp(logits - logits.max(1, keepdims=True))
                shares /= shares.sum(1, keepdims=True)
                error = (shares - wanted) / np.float32(BATCH)
                back = error @ w1.T * (inner > 0)
                gradients = [x.T @ back, back.sum(0), inner.T @ error, error.sum(0)]
                step += 1
                _adam(parameters, gradients, moments, step, rate_at(step, steps, rate))
                kept = np.float32(kept_at(step))
                for average, parameter in zip(averages, parameters):
                    average += (1 - kept) * (parameter - average)
            if report:
                loss = -float((wanted * np.log(shares + 1e-9)).sum(1).mean())
                report(step, steps, loss)
    w0, b0, w1, b1 = averages
    return [round_bfloat16(w0).astype(np.float32), b0, round_bfloat16(w1).astype(np.float32), b1]


def _adam(parameters, gradients, moments, step, rate):
    first_share, second_share = 0.9, 0.999
    scale = np.float32(rate * (1 - second_share**step) ** 0.5 / (1 - first_share**step))
    for parameter, gradient, (first, second, scratch) in zip(parameters, gradients, moments):
        first += np.float32(1 - first_share) * (gradient - first)
        np.multiply(gradient, gradient, out=scratch)
        scratch -= second
        scratch *= np.float32(1 - second_share)
        second += scratch
        np.sqrt(second, out=scratch)
        scratch += np.float32(1e-8)
        np.divide(first, scratch, out=scratch)
        scratch *= scale
        parameter -= scratch


def accuracy(parameters, images, labels):
    """Returns the accuracy of the parameters on labelled images, computed by the golden model."""
    w0, b0, w1, b1 = parameters
    inner = activate(matmul(round_bfloat16(preprocess(images, PREPROCESS)), round_bfloat16(w0), b0), "relu")
    logits = matmul(round_bfloat16(inner), round_bfloat16(w1), b1)
    return float((logits.argmax(1) == labels).mean())


def export(parameters, seed):
    """Returns the ONNX model with these parameters: Flatten, Gemm, Relu, Gemm."""
    names = ["hidden.weight", "hidden.bias", "output.weight", "output.bias"]
    w0, b0, w1, b1 = parameters
    nodes = [
        helper.make_node("Flatten", ["image"], ["pixels"], "flatten", axis=1),
        helper.make_node("Gemm", ["pixels", *names[:2]], ["hidden_sums"], "hidden"),
        helper.make_node("Relu", ["hidden_sums"], ["hidden_values"], "relu"),
        helper.make_node("Gemm", ["hidden_values", *names[2:]], ["logits"], "output"),
    ]
    tensors = [numpy_helper.from_array(p, name) for name, p in zip(names, parameters)]
    return model_of(nodes, tensors, "mnist_mlp", "logits", w1.shape[1], seed)


def main(
    data: Data,
    output: Annotated[Path, typer.Option("-o", "--output", help="The ONNX file to write.")] = Path("sim/models/mnist_mlp.onnx"),
    epochs: Annotated[int, typer.Option(min=1)] = 60,
    seed: Seed = 1,
):
    """Train the shipped network, print its accuracy by the golden model, write it as ONNX."""
    (images, labels), (tests, test_labels), (default, default_labels) = digits_for(data, output)
    typer.echo(f"{len(images)} digits to train on, {len(default)} of the default data set left out")
    with shown_training(epochs) as (report, _):
        parameters = train(images, labels, seed=seed, epochs=epochs, report=report)
    write_model(output, export(parameters, seed))
    typer.echo(
        f"golden model: {accuracy(parameters, tests, test_labels):.2%} of {len(tests)} test digits, "
        f"{accuracy(parameters, default, default_labels):.2%} of the {len(default)} default digits"
    )
    typer.echo(f"wrote {output}")


if __name__ == "__main__":
    typer.run(main)
