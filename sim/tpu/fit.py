"""Training of a loaded model: the run that the arguments of `fit` describe."""

from dataclasses import replace

import numpy as np

from ..autodiff.initialize import initialize
from ..data.progress_lines import ProgressLine
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
from .arguments import check_name, shown
from .callbacks import Callbacks
from .cores import config_of
from .evaluation import loss_of
from .history import History
from .places import SIMULATORS, Simulator
from .run import RunError
from .training_data import training_sets

__all__ = ["fit"]

_OPTIMIZERS = {"adam": Adam(), "adamw": Adam(weight_decay=0.01), "sgd": Sgd()}
_BUILDS = " (the first run builds the simulator)"
_STEP_SIMULATORS = tuple(name for name in SIMULATORS if name != "golden")


def fit(
    network,
    x,
    y,
    *,
    validation_split,
    validation_data,
    loss,
    callbacks,
    check_steps,
    on,
    core,
    initialized,
    seed,
    verbose,
    check_form,
    check_programs,
    learning_rate,
    dropout,
    **hyperparameters,
):
    """Trains a network, with the arguments of :meth:`sim.tpu.model.Model.fit`. Returns `(model, scales, history)`:
    the trained onnx.ModelProto, :attr:`.ModelWriter.scales`, and the :class:`.History`. Before the training, `check_form` is
    called with `scales`, if a file can hold the weights; it may raise an error."""
    callbacks, loss = Callbacks(callbacks), loss_of(loss)
    rates = {"learning_rate": learning_rate, "dropout": dropout}
    for name, value in (rates | {"validation_split": validation_split}).items():
        _check_number(name, value)
    trained = trainable_network(network, loss)
    writer = ModelWriter(trained.graph, trained.parameters)
    check_form(writer.scales)
    samples, measured = training_sets(network, x, y, loss, split=validation_split, data=validation_data, seed=seed)
    if samples.is_padded or measured and measured.is_padded:
        trained = replace(trained, counted=True)
    early = callbacks.early_stopping
    if early and measured is None:
        raise ArgumentError("EarlyStopping needs `validation_split` or `validation_data`")
    plan = _plan(network, early, seed=seed, **rates, **hyperparameters)
    state = initial_state(trained, plan.optimizer, initialize(trained, seed) if initialized else None)
    training = Training(trained, plan, samples, measured, state, fastest_sums())
    with ProgressLine(verbose) as line:
        line("compiling a training step for the core" if check_steps else "training")
        compared = _compared(training, check_steps, on, core, check_programs)
        run = _run(training, callbacks, compared and compared[1], line, "" if on == "model" else _BUILDS)
        run()
    if run.failure:
        raise RunError(run.failure)
    check_finite(training.position.state, training.step_number)
    model, own = writer.model(training.learnt)
    return model, writer.scales, _history(training, compared, own)


def _plan(network, early, *, optimizer, epochs, steps, evaluate_every, batch_size, cores, seed, **rest):
    """Returns the :class:`.Plan` for the hyperparameters of `fit`. `early` is the callback :class:`EarlyStopping` or None."""
    if epochs is not None and steps is not None:
        raise ArgumentError("`epochs` and `steps` exclude each other; give one")
    return make_plan(
        network,
        _optimizer(optimizer),
        batch_size=_whole("batch_size", batch_size),
        epochs=1 if epochs is None else _whole("epochs", epochs),
        steps=None if steps is None else _whole("steps", steps),
        measure_every=None if evaluate_every is None else _whole("evaluate_every", evaluate_every),
        seed=_whole("seed", seed, 0),
        patience=early and early.patience,
        keep_best=bool(early),
        cores=_whole("cores", cores),
        **rest,
    )


def _run(training, callbacks, comparison, line, note):
    """Returns the :class:`.TrainingRun` with its callbacks, and with progress on a :class:`.ProgressLine`. `note` is
    added to the text about the steps on the core."""

    def on_epoch(figures):
        line.clear()
        return callbacks.on_epoch(figures)

    def on_step(batch):
        history, done = training.position.history, training.step_number
        if not history or history[-1].steps < done:
            score = training.score_so_far(done)
            figures = f"loss {score.loss:.4f}" + ("" if score.accuracy is None else f", accuracy {score.accuracy:.2%}")
            line(f"epoch {batch.epoch + 1} of {training.epochs}, step {batch.number + 1} of {training.steps}: {figures}")

    run = TrainingRun(training=training, comparison=comparison, on_step=on_step, on_epoch=on_epoch)
    _open(run, callbacks)
    if comparison:
        text = ""

        def on_run(first, last):
            nonlocal text
            text = f"steps {first} to {last} on the core{note}"
            line(text)

        comparison.on_run, comparison.on_progress = on_run, lambda done, total: line(f"{text}: {done} of {total}")
    return run


def _optimizer(given):
    if isinstance(given, (Sgd, Adam)):
        return given
    check_name("optimizer", given, _OPTIMIZERS, ", tpu.Sgd() or tpu.Adam(), with its rate in `learning_rate`")
    return _OPTIMIZERS[given]


def _whole(name, value, least=1):
    """Returns an integer argument. Raises ArgumentError if it is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"`{name}` must be an integer of at least {least}, not {shown(value)}")
    return int(value)


def _check_number(name, value):
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating))):
        raise ArgumentError(f"`{name}` must be a number, not {shown(value)}")


def _compared(training, check_steps, on, core, check):
    """Returns the program and the comparison of :func:`.step_comparison` for the arguments of `fit`, or None without steps to
    compare."""
    if check_steps == 0:
        return None
    check_name("on", on.name if isinstance(on, Simulator) else on, _STEP_SIMULATORS, ", or a Simulator of such a name")
    place = Simulator(on) if isinstance(on, str) else on
    most = None if check_steps == "all" else _whole("check_steps", check_steps)
    config = config_of(core, "training")
    config = replace(config, training=True, ring=config.ring or training.plan.cores > 1)
    return step_comparison(training, config, place.name, most, place.memory, place.cells, check)


def _open(run, callbacks):
    """Opens the checkpoint and the log of a training run. Raises DataError."""
    if callbacks.checkpoint:
        run.checkpoints, run.keep_all = checkpoint_in(callbacks.checkpoint.folder), callbacks.checkpoint.keep_all
        if run.checkpoints.exists():
            if not callbacks.checkpoint.resume:
                raise run.checkpoints.error("exists already; give Checkpoint(folder, resume=True), or another folder")
            restore(run.training, run.checkpoints)
    if callbacks.tensorboard:
        run.log = EventLog(callbacks.tensorboard.folder, run.training.step_number + 1)


def _history(training, compared, own):
    position, core = training.position, None
    if compared:
        program, comparison = compared
        core = comparison.figures(program.useful_macs, program.config.n**2) | {"ring": comparison.ring_figures}
    return History(
        epochs=position.history,
        step_losses=training.losses[: training.step_number].copy(),
        best_epoch=position.best and position.best.epoch,
        stopped_early=training.step_number < training.total,
        core=core,
        own_form=own,
    )
