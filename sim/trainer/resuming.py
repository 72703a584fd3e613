"""Checkpoints of training runs: their contents, and the check that a run may resume from a checkpoint."""

import hashlib
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np

from ..data.checkpoints import Checkpoint
from ..golden.training import TrainingState
from .golden_training import Best, EpochFigures, check_finite
from .stream import Stream

__all__ = ["FILE", "checkpoint_in", "facts_of", "save", "restore"]

FILE = "checkpoint.safetensors"
_FIGURES = ("losses", "right", "counts")


def checkpoint_in(folder):
    """Returns the :class:`sim.data.checkpoints.Checkpoint` of a training run in a folder."""
    return Checkpoint(Path(folder) / FILE)


def facts_of(training):
    """Returns all settings that determine the bits and statistics of a training run, as `{name: text or number}`."""
    plan = training.plan
    length = f"{plan.epochs} epochs" if plan.steps is None else f"{plan.steps} steps"
    over = f" over {length}" if plan.schedule.depends_on_epochs else ""
    every = plan.evaluate_every or training.steps
    evaluation = f"every {every} steps" + (f" and after {training.total}" if training.total % every else "")
    return {
        "network": _digest(training.network),
        "optimizer": repr(plan.optimizer),
        "batch": plan.batch_size if plan.cores == 1 else f"{plan.batch_size} on {plan.cores} cores",
        "rate": plan.learning_rate,
        "seed": plan.seed,
        "dropout": repr(plan.dropout.rates) if plan.dropout.rates else plan.dropout.share,
        "schedule": plan.schedule.text + over + _factors_of(training),
        "data": training.samples.digest,
        "measured": training.measured and training.measured.digest,
        "evaluation": evaluation,
        "loss": training.network.loss.value,
        "normalize": int(training.network.normalize),
    }


def _factors_of(training):
    """Returns a digest of the factors of a schedule that is a function, else nothing."""
    if training.plan.schedule.kind != "function":
        return ""
    rates = np.array([training.rate(step) for step in range(training.total)])
    return f" {hashlib.sha256(rates.tobytes()).hexdigest()[:16]}"


def _digest(network):
    """Returns a digest of a network's stages. It does not depend on the values of the parameters."""
    digest = hashlib.sha256()
    digest.update(str(network).encode())
    for order in (network.input_order, network.output_order):
        digest.update(b"" if order is None else np.asarray(order, np.int64).tobytes())
    return digest.hexdigest()[:32]


def _tensors_of(network, state):
    """Returns the arrays of a TrainingState, as `{name in the checkpoint: array}`."""
    tensors = {}
    for name, master, slots in zip(network.parameters, state.masters, state.slots):
        tensors[f"master/{name}"] = master
        tensors |= {f"{slot}/{name}": array for slot, array in slots.items()}
    return tensors


def _state_of(network, optimizer, tensors, steps):
    names = network.parameters
    kinds = [() if one.is_average else optimizer.slots for one in names.values()]
    slots = [{slot: np.array(tensors[f"{slot}/{name}"]) for slot in some} for name, some in zip(names, kinds)]
    return TrainingState([np.array(tensors[f"master/{name}"]) for name in names], slots, steps)


def save(training, checkpoints):
    """Writes a checkpoint with the current position of a training run. Raises TrainingError if a value is not finite. The
    earlier checkpoint stays. Raises DataError if the file cannot be written."""
    position = training.position
    done = training.step_number
    check_finite(position.state, done)
    tensors = _tensors_of(training.network, position.state)
    tensors |= {name: getattr(training, name)[:done] for name in _FIGURES}
    progress = {
        "epoch": position.epoch,
        "number": position.number,
        "steps": position.state.steps,
        "history": [asdict(figures) for figures in position.history],
        "best": None,
    }
    if isinstance(training.samples, Stream):
        progress["stream"] = training.samples.position()
    if best := position.best:
        progress["best"] = [best.epoch, best.loss]
        tensors |= {f"best/{name}": master for name, master in zip(training.network.parameters, best.masters)}
    checkpoints.write(facts_of(training), progress, tensors)


def restore(training, checkpoints):
    """Restores the position of a training run from a checkpoint. The best evaluation is restored only if the plan has
    `patience` or `keep_best`. Raises CheckpointError if the checkpoint is damaged, of another version, or belongs to other
    settings."""
    network, position = training.network, training.position
    shapes = {name: (array.shape, array.dtype) for name, array in _tensors_of(network, position.state).items()}
    progress, tensors = checkpoints.read(facts_of(training), shapes, earlier={"normalize": 0})
    try:
        done = progress["epoch"] * training.steps + progress["number"]
        history = tuple(
            EpochFigures(**{one.name: entry[one.name] for one in fields(EpochFigures)}) for entry in progress["history"]
        )
        best = progress["best"]
        if best:
            best = Best(*best, [np.array(tensors[f"best/{name}"]) for name in network.parameters])
        figures = [tensors[name] for name in _FIGURES]
        if not (all(len(one) == done for one in figures) and 0 <= progress["number"] < training.steps):
            raise ValueError
        state = _state_of(network, training.plan.optimizer, tensors, int(progress["steps"]))
    except KeyError:
        raise checkpoints.of_another_version() from None
    except (TypeError, ValueError):
        raise checkpoints.damaged() from None
    if done > training.total:
        length = f"{progress['epoch']} epochs" if training.plan.steps is None else f"{done} steps"
        raise checkpoints.error(f"has {length} already; give more {length.split()[1]}")
    if len(history) != training.evaluations(done):
        raise checkpoints.damaged()
    for name, values in zip(_FIGURES, figures):
        getattr(training, name)[:done] = values
    if isinstance(training.samples, Stream):
        if not isinstance(progress.get("stream"), dict) or progress["stream"].keys() != {"read", "state", "skipped"}:
            raise checkpoints.damaged()
        training.samples.restore(progress["epoch"], progress["number"], progress["stream"])
    training.position = replace(
        position,
        state=state,
        epoch=progress["epoch"],
        number=progress["number"],
        history=history,
        best=best if training.plan.patience or training.plan.keep_best else None,
    )
