"""The validation loss of the character GPT, trained by the golden model and by PyTorch in binary32 on the same batches, and a
text by the trained network."""

import time
from dataclasses import replace
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim.autodiff.network import step_network
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.export.writer import ModelWriter
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.compiled_sums import fastest_sums
from amaranth_tpu.sim.golden.network import core_input
from amaranth_tpu.sim.golden.training import initial_state
from amaranth_tpu.sim.ir.optimizers import Adam
from amaranth_tpu.sim.ir.row_norms import for_training_on
from amaranth_tpu.sim.models.gpt import gpt_model
from amaranth_tpu.sim.models.gpt_text import SHIPPED_ALPHABET, training_text
from amaranth_tpu.sim.models.gpt_weights import TOKENS, new_weights, weights_of
from amaranth_tpu.sim.tpu.cores import training_preset
from amaranth_tpu.sim.tpu.text import saved_model, written
from amaranth_tpu.sim.trainer.golden_training import Training
from amaranth_tpu.sim.trainer.new_training import make_plan
from amaranth_tpu.sim.trainer.plan import Hyperparameters
from amaranth_tpu.sim.trainer.samples import windows_of_text

from .common import Json, Write, app, publish

__all__ = ["gpt_training"]

_RATE, _BATCH, _SCHEDULE = 0.004, 16, "warmup:50+cosine"
_LETTERS = 200


def _new_training(steps, seed):
    graph = load_network(saved_model(gpt_model(weights=new_weights(seed), has_state=False)))
    network = for_training_on(with_parameters(graph), from_preset(training_preset(graph)))
    ids = SHIPPED_ALPHABET.encoded(training_text())
    cut = round(0.9 * len(ids))
    samples, held = (windows_of_text(part, TOKENS) for part in (ids[:cut], ids[cut:]))
    given = Hyperparameters(optimizer=Adam(), learning_rate=_RATE, schedule=_SCHEDULE, batch_size=_BATCH, seed=seed, steps=steps)
    plan = make_plan(graph, replace(given, evaluate_every=steps))
    return Training(network, plan, samples, held, initial_state(network, plan.optimizer), fastest_sums())


def _golden(training):
    for _ in track(range(training.total), "golden model", console=Console(stderr=True), transient=True):
        training.step(training.next_batch())
    return training.position.history[-1].measured_loss


def _text(training):
    model, _ = ModelWriter(training.network).model(training.learnt)
    letters = written("The ", _LETTERS, "golden", weights=weights_of(model))
    return "The " + "".join(letter.text for letter in letters)


def _torch(training):
    import torch

    from .torch_network import TorchNetwork

    torch.set_num_threads(1)  # threads that wait would count as CPU time
    network, held = training.network, training.measured
    twin = TorchNetwork(step_network(network), network, training.position.state.masters)
    optimizer = torch.optim.Adam(twin.parameters.values(), lr=_RATE)
    for done in track(range(1, training.total + 1), "PyTorch", console=Console(stderr=True), transient=True):
        batch = training.next_batch()
        optimizer.param_groups[0]["lr"] = batch.rate
        optimizer.zero_grad()
        twin.loss(batch.x, batch.labels).backward()
        optimizer.step()
        epoch, number = divmod(done, training.steps)
        training.position = replace(training.position, epoch=epoch, number=number)
    with torch.no_grad():
        parts = [slice(first, first + 100) for first in range(0, len(held), 100)]
        losses = [twin.loss(core_input(network, held.rows[part]), held.labels[part]).item() for part in parts]
    return float(np.average(losses, weights=[len(held.rows[part]) for part in parts]))


@app.command("gpt-training")
def gpt_training(
    steps: Annotated[int, typer.Option(min=1, help="Steps of 16 sequences of 32 letters.")] = 900,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and batches.")] = 1,
    as_json: Json = False,
    write: Write = False,
):
    """Validation loss of the character GPT after training with Adam: golden model, and PyTorch (which must be installed).
    `--json` adds a text by the trained network."""
    figures, rows = [], []
    for name, train in (("golden model", _golden), ("PyTorch, binary32", _torch)):
        training, started = _new_training(steps, seed), time.process_time()
        loss = train(training)
        seconds = time.process_time() - started
        figures.append({"by": name, "steps": steps, "loss": loss, "cpu_seconds": seconds})
        figures[-1]["text"] = _text(training) if as_json and train is _golden else None
        rows.append([name, f"{steps:,}", f"{loss:.4f}", f"{seconds:.0f}"])
    publish("gpt-training", ["trained by", "steps", "validation loss", "CPU seconds"], rows, figures, as_json, write)
