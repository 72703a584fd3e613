"""Training of a loaded model: the run that the arguments of `fit` describe."""

from dataclasses import replace

import numpy as np

from ..autodiff.initialize import initialize
from ..export.writer import ModelWriter
from ..golden.compiled_sums import fastest_sums
from ..golden.training import initial_state
from ..ir.optimizers import Adam, Sgd
from ..trainer.errors import ArgumentError
from ..trainer.event_log import EventLog
from ..trainer.loop import TrainingRun
from ..trainer.new_training import make_plan, step_comparison, trainable_network
from ..trainer.resuming import checkpoint_in, restore
from ..trainer.training import Training, check_finite
from .callbacks import Callbacks
from .cores import config_of
from .history import History
from .places import SIMULATORS, Simulator
from .run import RunError
from .training_data import training_sets

__all__ = ["fit"]

_OPTIMIZERS = {"adam": Adam, "sgd": Sgd}
_LOSSES = ("cross_entropy", "categorical_crossentropy", "sparse_categorical_crossentropy")
_STEP_SIMULATORS = tuple(name for name in SIMULATORS if name != "golden")


def fit(
    network,
    x,
    y,
    *,
    epochs,
    steps,
    batch_size,
    validation_split,
    validation_data,
    optimizer,
    learning_rate,
    schedule,
    loss,
    dropout,
    callbacks,
    cores,
    check_steps,
    on,
    core,
    initialized,
    seed,
    check_form,
):
    """Trains a network, with the arguments of :meth:`sim.tpu.model.Model.fit`. Returns `(model, history)`: the trained
    onnx.ModelProto, and its :class:`.History`. `check_form` is called with True if the trained model will have the graph of the
    original file; it may raise an error."""
    if loss not in _LOSSES:
        raise ArgumentError(f"`loss` must be one of {', '.join(_LOSSES)}, which are the same, not {loss!r}")
    callbacks, trained = Callbacks(callbacks), trainable_network(network)
    writer = ModelWriter(trained.graph, trained.parameters)
    check_form(writer.own_form)
    samples, measured = training_sets(network, x, y, validation_split, validation_data, seed)
    early = callbacks.early_stopping
    if early and measured is None:
        raise ArgumentError("EarlyStopping needs `validation_split` or `validation_data`")
    plan = make_plan(
        network,
        _optimizer(optimizer),
        learning_rate=learning_rate,
        schedule=schedule,
        batch_size=_whole("batch_size", batch_size, 1),
        epochs=_epochs(epochs, steps, len(samples) // batch_size),
        seed=_whole("seed", seed, 0),
        dropout=dropout,
        patience=early.patience if early else None,
        cores=_whole("cores", cores, 1),
    )
    state = initial_state(trained, plan.optimizer, initialize(trained, seed) if initialized else None)
    training = Training(trained, plan, samples, measured, state, fastest_sums())
    run = TrainingRun(training=training, on_epoch=callbacks.on_epoch)
    run.on_step = lambda batch: training.step_number == steps
    compared = _compared(training, check_steps, on, core)
    _open(run, callbacks)
    run.comparison = compared and compared[1]
    run.stopped = steps is not None and training.step_number >= steps  # by the run that resumes
    run()
    if run.failure:
        raise RunError(run.failure)
    check_finite(training.position.state, training.step_number)
    model, own = writer.model(training.learnt)
    ended = training.position.epoch == plan.epochs or training.step_number == steps
    return model, _history(training, compared, not ended, own)


def _optimizer(given):
    if isinstance(given, (Sgd, Adam)):
        return given
    if given not in _OPTIMIZERS:
        raise ArgumentError(f"`optimizer` must be one of {', '.join(_OPTIMIZERS)}, or an object Sgd or Adam, not {given!r}")
    return _OPTIMIZERS[given]()


def _whole(name, value, least):
    """Returns an integer argument. Raises ArgumentError if it is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"`{name}` must be an integer of at least {least}, not {value!r}")
    return int(value)


def _epochs(epochs, steps, steps_per_epoch):
    """Returns the number of epochs, given directly or by the number of steps."""
    if epochs is not None and steps is not None:
        raise ArgumentError("`epochs` and `steps` exclude each other; give one")
    if steps is None:
        return 1 if epochs is None else _whole("epochs", epochs, 1)
    return -(-_whole("steps", steps, 1) // max(1, steps_per_epoch))


def _compared(training, check_steps, on, core):
    """Returns the program and the comparison of :func:`.step_comparison` for the arguments of `fit`, or None without steps to
    compare."""
    if check_steps == 0:
        return None
    place = Simulator(on) if isinstance(on, str) else on
    if not isinstance(place, Simulator) or place.name not in _STEP_SIMULATORS:
        raise ArgumentError(f"`on` must be one of {', '.join(_STEP_SIMULATORS)}, or a Simulator of such a name, not {on!r}")
    most = None if check_steps == "all" else _whole("check_steps", check_steps, 1)
    config = config_of(core, "training")
    config = replace(config, training=True, ring=config.ring or training.plan.cores > 1)
    return step_comparison(training, config, place.name, most, place.memory)


def _open(run, callbacks):
    """Opens the checkpoint and the log of a training run. Raises DataError."""
    if callbacks.checkpoint:
        run.checkpoints = checkpoint_in(callbacks.checkpoint.folder)
        if run.checkpoints.exists():
            if not callbacks.checkpoint.resume:
                raise run.checkpoints.error("exists already; give Checkpoint(folder, resume=True), or another folder")
            restore(run.training, run.checkpoints)
    if callbacks.tensorboard:
        run.log = EventLog(callbacks.tensorboard.folder, run.training.step_number + 1)


def _history(training, compared, stopped_early, own):
    position, core = training.position, None
    if compared:
        program, comparison = compared
        core = comparison.figures(program.useful_macs, program.config.n**2) | {"ring": comparison.ring_figures}
    return History(
        epochs=position.history,
        step_losses=training.losses.ravel()[: training.step_number].copy(),
        best_epoch=position.best and position.best.epoch,
        stopped_early=stopped_early,
        core=core,
        own_form=own,
    )
