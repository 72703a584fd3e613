"""Comparison of two ways to round weights from their binary32 masters in training: by cutting off bits, as the core does, and to
the nearest bfloat16."""

import itertools
from pathlib import Path
from typing import Annotated
from unittest import mock

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.sim.autodiff.initialize import initialize
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.data.samples import as_samples
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden import training as golden
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.compiled_sums import fastest_sums
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.models.shipped import SHIPPED
from amaranth_tpu.sim.trainer.golden_training import Training
from amaranth_tpu.sim.trainer.new_training import make_plan
from amaranth_tpu.sim.trainer.plan import Hyperparameters
from amaranth_tpu.sim.trainer.samples import LabelledSamples

from .common import Json, app, publish

__all__ = ["master_rounding"]

_OPTIMIZERS = {"sgd": (Sgd(), 0.1), "adam": (Adam(), 0.001)}


def _rounded_images(graph, state):
    return [round_bfloat16(master) if one.decays else master for one, master in zip(graph.parameters.values(), state.masters)]


def _samples(network, data, split, count):
    images, labels = load_digits(data, split)
    rows = as_samples(network, preprocess(images[:count], "unit")).rows
    return LabelledSamples.checked(rows, labels[:count], network.output_size)


def _train(name, optimizer, rounds, seed, epochs, data, count):
    """Trains a network on the golden model. Returns `(mean loss over the steps of the last epoch, accuracy on the test images)`.
    `rounds` is True to round weights to nearest."""
    network = load_network(SHIPPED[name])
    graph, (rule, rate) = with_parameters(network), _OPTIMIZERS[optimizer]
    state = golden.initial_state(graph, rule, initialize(graph, seed))
    train, test = _samples(network, data, "train", count), _samples(network, data, "test", None)
    given = {"optimizer": rule, "learning_rate": rate, "schedule": "fifths", "batch_size": 64, "epochs": epochs, "seed": seed}
    plan = make_plan(network, Hyperparameters(**given))
    with mock.patch.object(golden, "images", _rounded_images if rounds else golden.images):
        training = Training(graph, plan, train, None, state, fastest_sums())
        while not training.done:
            training.step(training.next_batch())
        return training.position.history[-1].loss, training.score(test).accuracy


@app.command()
def master_rounding(
    data: Annotated[Path, typer.Option(help="Folder with MNIST as IDX files.")],
    names: Annotated[str, typer.Option(help="Networks.")] = "default,a",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from 1.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs.")] = 1,
    samples: Annotated[int, typer.Option(min=64, help="Training images, from the first one.")] = 60_000,
    as_json: Json = False,
):
    """Loss of the last epoch and test accuracy, with weights cut off from the binary32 masters and with weights rounded."""
    figures, rows = [], []
    jobs = list(itertools.product(names.split(","), _OPTIMIZERS, (False, True)))
    for name, optimizer, rounds in track(jobs, "training", console=Console(stderr=True), transient=True):
        found = [_train(name, optimizer, rounds, seed, epochs, data, samples) for seed in range(1, seeds + 1)]
        losses, accuracies = np.array(found).T
        weights = "rounded" if rounds else "cut off"
        figures.append(
            dict(network=name, optimizer=optimizer, weights=weights, losses=losses.tolist(), accuracies=accuracies.tolist())
        )
        shown = [f"{losses.mean():.4f} +- {losses.std():.4f}", f"{accuracies.mean():.2%} +- {accuracies.std():.2%}"]
        rows.append([name, optimizer, weights, *shown])
    publish(None, ["network", "optimizer", "weights", "loss", "accuracy"], rows, figures, as_json, False)
