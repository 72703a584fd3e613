"""Training of a loaded model: the run that the arguments of `fit` describe."""

from dataclasses import replace

import numpy as np

from ..autodiff.initialize import initialize
from ..data.progress_lines import ProgressLine
from ..export.writer import ModelWriter
from ..golden.compiled_sums import fastest_sums
from ..golden.training import bound_graph, initial_state
from ..ir.errors import ModelError
from ..ir.losses import JointLoss
from ..ir.optimizers import Adam, RmsProp, Sgd
from ..ir.row_norms import for_training_on
from ..trainer.errors import ArgumentError
from ..trainer.event_log import EventLog
from ..trainer.golden_training import Training, check_finite
from ..trainer.loop import TrainingRun
from ..trainer.new_training import in_units_of_targets, make_plan, step_comparison, trainable_network
from ..trainer.plan import numbers_of
from ..trainer.resuming import checkpoint_in, restore
from .arguments import check_name, check_whole, shown
from .callbacks import Callbacks
from .cores import config_of, training_preset
from .evaluation import Metrics, parse_loss
from .history import History
from .inference_run import RunError
from .places import SIMULATORS, Simulator
from .training_data import training_sets

__all__ = ["fit"]

_OPTIMIZERS = {"adam": Adam(), "adamw": Adam(weight_decay=0.01), "rmsprop": RmsProp(), "sgd": Sgd()}
_BUILDS = " (the first run builds the simulator)"
_STEP_SIMULATORS = tuple(name for name in SIMULATORS if name != "golden")


def fit(network, x, y, given, source, check_programs):
    """Trains a network, with the arguments of :meth:`sim.tpu.model.Model.fit`. Returns `(model, constants, scales, history)`:
    the trained onnx.ModelProto, the constants of its graph, :attr:`.ModelWriter.scales`, and the :class:`.History`.

    Parameters
    ----------
    given : FitArguments
    source : Source or None
        The object of a framework. It knows which parameters are not trained, and callbacks may read its weights. None: all are
        trained, and another form of the file may hold them.
    check_programs : bool
        See :func:`.step_comparison`.
    """
    callbacks, loss = Callbacks(given.callbacks), parse_loss(network, given.loss, given.loss_weights)
    _check(given)
    trained = trainable_network(network, loss)
    writer = _writer(trained, source)
    trained = writer.with_updates(trained)
    held = writer.held() if source else {}
    if source:
        trained = _with_frozen(trained, source.frozen(held, writer.scales))
    samples, measured = training_sets(network, x, y, loss, given)
    if samples.is_counted or measured and measured.is_counted:
        trained = replace(trained, is_counted=True)
    early = callbacks.early_stopping
    if early and measured is None:
        raise ArgumentError("EarlyStopping needs `validation_split` or `validation_data`")
    optimizer = in_units_of_targets(_optimizer(given.optimizer), trained, samples)
    patience = early and early.patience
    plan = make_plan(network, replace(given, optimizer=optimizer), patience=patience, keep_best=bool(early))
    if source:
        trained = source.with_statistics(trained, held, plan.batch_size)
    trained = for_training_on(trained, config_of(given.core, training_preset(trained)))
    masters = initialize(trained, given.seed) if given.initialize else None
    state = initial_state(trained, plan.optimizer, masters)
    metrics = Metrics(network, loss, given.metrics)
    if metrics and measured is None:
        raise ArgumentError("`metrics` need `validation_split` or `validation_data`; afterwards, evaluate has them too")
    metrics = metrics if metrics or isinstance(loss, JointLoss) else None
    training = Training(trained, plan, samples, measured, state, fastest_sums(), metrics)
    with ProgressLine(given.verbose) as line:
        line("compiling a training step for the core" if given.check_steps else "training")
        compared = _compared(training, given, check_programs)
        run = _run(training, callbacks, compared and compared[1], line, "" if given.on == "model" else _BUILDS)
        if callbacks.read_weights:

            def show():
                graph = bound_graph(trained, training.position.state)
                source.show(writer.model(graph)[0], writer.scales, graph.constants)

            run.before_epoch = show
        run()
    callbacks.finish()
    if run.failure:
        raise RunError(run.failure)
    check_finite(training.position.state, training.step_number)
    learnt = training.learnt
    model, own = writer.model(learnt)
    return model, learnt.constants, writer.scales, _history(training, compared, own)


def _writer(network, source):
    """Returns the :class:`.ModelWriter` of a network. Raises ModelError if there is none, or if the trained weights cannot be
    stored in an object of a framework."""
    try:
        writer = ModelWriter(network)
    except ModelError:
        if source:
            source.frozen({}, None)
        raise
    if source and not writer.own_form:
        source.frozen({}, None)
    return writer


def _with_frozen(network, names):
    """Returns a network with frozen parameters as constants. Raises ModelError if no parameter is left."""
    if names and len(names) == len(network.parameters):
        raise ModelError(f"{network.name}: all its weights are frozen; make some trainable")
    return bound_graph(network, initial_state(network, Sgd()), names) if names else network


def _check(given):
    """Raises ArgumentError for numbers of a wrong type or below their minimum."""
    if given.epochs is not None and given.steps is not None:
        raise ArgumentError("`epochs` and `steps` exclude each other; give one")
    for name, kind, least in [*numbers_of(given), ("validation_split", float, 0)]:
        value = getattr(given, name)
        if kind is int:
            check_whole(name, value, least)
        elif isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ArgumentError(f"`{name}` must be a number, not {shown(value)}")


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
    check_name("optimizer", given, _OPTIMIZERS, ", tpu.Sgd(), tpu.Adam() or tpu.RmsProp(), with its rate in `learning_rate`")
    return _OPTIMIZERS[given]


def _compared(training, given, check):
    """Returns the program and the comparison of :func:`.step_comparison` for the arguments of `fit`, or None without steps to
    compare."""
    if given.check_steps == 0:
        return None
    on = given.on
    check_name("on", on.name if isinstance(on, Simulator) else on, _STEP_SIMULATORS, ", or a Simulator of such a name")
    place = Simulator(on) if isinstance(on, str) else on
    most = None if given.check_steps == "all" else check_whole("check_steps", given.check_steps)
    config = config_of(given.core, training_preset(training.network))
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
