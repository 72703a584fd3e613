"""A training job, built from the options of `tpu train`: network, samples, training run, event log, comparison with the core, and
the figures at the end."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import typer

from amaranth_tpu.sim.autodiff.initialize import initialize
from amaranth_tpu.sim.compiler.program import Program
from amaranth_tpu.sim.data.whole_files import write_file
from amaranth_tpu.sim.export.writer import ModelWriter
from amaranth_tpu.sim.frontend.fixed_shapes import parse_shapes
from amaranth_tpu.sim.frontend.inputs import in_inference_form
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.compiled_sums import fastest_sums
from amaranth_tpu.sim.golden.training import initial_state
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.graph import Graph
from amaranth_tpu.sim.ir.optimizers import Adam, RmsProp, Sgd
from amaranth_tpu.sim.ir.row_norms import for_training_on
from amaranth_tpu.sim.models.gpt import gpt_model
from amaranth_tpu.sim.models.gpt_text import SHIPPED_ALPHABET, Alphabet
from amaranth_tpu.sim.models.gpt_weights import alphabet_of, new_weights, weights_of
from amaranth_tpu.sim.models.shipped import GPT_NAME, SHIPPED
from amaranth_tpu.sim.tpu.cores import training_preset
from amaranth_tpu.sim.tpu.temporary_file import TemporaryFile
from amaranth_tpu.sim.tpu.text import saved_model, written
from amaranth_tpu.sim.tpu.trainable import training_file
from amaranth_tpu.sim.trainer.event_log import EventLog
from amaranth_tpu.sim.trainer.golden_training import Training
from amaranth_tpu.sim.trainer.loop import TrainingRun
from amaranth_tpu.sim.trainer.metrics import measured
from amaranth_tpu.sim.trainer.new_training import in_units_of_targets, make_plan, step_comparison, step_program, trainable_network
from amaranth_tpu.sim.trainer.plan import Hyperparameters, member_of
from amaranth_tpu.sim.trainer.resuming import checkpoint_in, restore

from .faster_preset import faster_preset
from .memory_option import host_of
from .train_data import TrainData, choose_train_data, read_text
from .train_options import Keep, OptimizerKind, TrainOptions

__all__ = ["TrainJob", "make_job"]

_MOMENTUM = 0.9
_DECAY = 0.01  # of adamw, as in PyTorch
_EPOCHS = 5
_GPT_RATES = dict.fromkeys(OptimizerKind, 0.004) | {OptimizerKind.SGD: 0.3}
_LETTERS = 300  # of the text that a trained GPT writes


@dataclass(kw_only=True)
class TrainJob:
    """A training run with everything that `tpu train` does around it."""

    options: TrainOptions
    graph: Graph  # the network as read from the file
    start: str  # origin of the initial parameters: `fresh`, `file` or `checkpoint`
    data: TrainData
    run: TrainingRun
    writer: ModelWriter | None  # writes the trained model
    program: Program | None = None  # program of one step on the core, if steps are compared or `--explain` is given
    resumed_at: int | None = None  # number of steps in the checkpoint from which the run resumed
    file: TemporaryFile | None = None  # the model in the form for training, if it has one of its own

    @property
    def training(self):
        return self.run.training

    def resume(self):
        """Restores the checkpoint. Returns False if there is none. Raises CheckpointError."""
        if not self.run.checkpoints.exists():
            return False
        restore(self.training, self.run.checkpoints)
        self.start, self.resumed_at = "checkpoint", self.training.step_number
        return True

    def open_log(self):
        """Creates the file of TensorBoard events, which begins with the next step. Raises DataError if it cannot be written."""
        if self.options.log:
            self.run.log = EventLog(self.options.log, self.training.step_number + 1)

    def compile(self):
        """Compiles the program of one step. Raises CompileError."""
        self.program = step_program(self.training, _config(self.options, self.graph))

    def faster_preset(self):
        """Returns the entry `faster` of `--explain`; see :func:`.faster_preset`."""
        return faster_preset(
            self.options.core,
            self.program.config,
            self.program.predicted_cycles,
            ["transformer"],
            lambda other: step_program(self.training, other, for_training_on(self.training.network, other)).with_host(
                self.program.host
            ),
            ring=self.program.config.ring,
        )

    def compare(self):
        """Compiles and checks the program of one step, and makes the next steps run on the core too. Raises CompileError or
        RunError."""
        options, training = self.options, self.training
        config = _config(options, self.graph)
        host = host_of(options.memory)
        memory = host.plusargs(config) | {"pause_percent": options.pauses, "pause_seed": options.seed}
        where = config, options.simulator.value, options.steps_to_compare, memory, options.cells.value
        program, self.run.comparison = step_comparison(training, *where, check=not options.no_check)
        self.program = program.with_host(host)

    def write_model(self, path):
        """Writes the trained model. Returns True if the file has the graph of the original file. Raises ModelError or
        DataError."""
        model, own = self.model()
        write_file(path, model.SerializeToString(deterministic=True))
        return own

    def core_figures(self):
        """Returns the entries of `--json` about the steps on the core, as a dict."""
        comparison = self.run.comparison
        if comparison is None:
            names = "program_checked", "mismatched_bits", "cycles_per_step", "bound", "utilisation", "stalls", "ring"
            return {"rtl_steps": 0, **dict.fromkeys(names)}
        program, simulator = self.program, self.options.simulator
        estimated = None if simulator.has_time else program.predicted_cycles
        return {
            "n": program.config.n,
            "simulator": simulator.value,
            "program_checked": program.checked or not (simulator.has_time or comparison.failure),
            "cell_kind": self.options.cells.value if simulator.has_time else None,
            **comparison.figures(program.useful_macs, program.config.n**2),
            "estimated_cycles": estimated,
            "bound": program.bound,
            "ring": comparison.ring_figures,
            "pause_seed": self.options.seed if self.options.pauses else None,
        }

    def figures(self):
        """Returns the entries of `--json` about the training run, as a dict."""
        options, training = self.options, self.training
        plan, position = training.plan, training.position
        return {
            "model": options.model,
            "start": self.start,
            "resumed_at": self.resumed_at,
            "data": self.data.origin,
            "samples": len(self.data.train),
            "validation_samples": len(self.data.validation or ()),
            "test_samples": len(self.data.test or ()),
            "batch": plan.batch_size,
            "cores": plan.cores,
            "steps": training.step_number,
            "optimizer": options.optimizer.value,
            **asdict(plan.optimizer),
            "rate": plan.learning_rate,
            "schedule": plan.schedule.text,
            "dropout": plan.dropout.share,
            "seed": plan.seed,
            "epochs": [asdict(figures) for figures in position.history],
            "epochs_measured_with": self.data.measured[1],
            "best_epoch": position.best and position.best.epoch,
            "stopped_early": training.step_number < training.total and training.done,
            "loss": training.network.loss.value,
            **self._final(),
            "text": self.text(),
            **self.core_figures(),
        }

    def _final(self):
        """Returns loss, accuracy and metrics of the trained network, and the name of their set: the test set, else the validation
        set, else the training set."""
        names = ("final_loss", "accuracy", "accuracy_of", "metrics")
        training = self.training
        if not training.done or self.run.failure:
            return dict.fromkeys(names)
        of = "test" if self.data.test else "validation" if self.data.validation else "training"
        samples = self.data.test or self.data.validation or self.data.train
        results, objective = training.results(training.learnt, samples), training.objective
        score = objective.score(results, samples.labels)
        training.check_loss(score.loss)
        labels = np.asarray(samples.labels).reshape(len(samples), -1)
        metrics = measured(self.options.metric, objective.positions.vectors(results), labels) if self.options.metric else None
        return dict(zip(names, (score.loss, score.accuracy, of, metrics)))

    def text(self):
        """Returns a text by the trained GPT. Returns None for another network, or if training has not finished."""
        if self.options.model != GPT_NAME or not self.training.done or self.run.failure:
            return None
        return self.sample(_LETTERS)

    def sample(self, letters):
        """Returns a text by the GPT with its present weights, or None for another network."""
        if self.options.model != GPT_NAME:
            return None
        model = self.writer.model(self.training.learnt)[0]
        alphabet = alphabet_of(model)
        prompt = "The " if alphabet == SHIPPED_ALPHABET else alphabet.decoded(self.data.train.rows[0, :4])
        facts = {"seed": self.options.seed, "weights": weights_of(model), "alphabet": alphabet}
        return prompt + "".join(letter.text for letter in written(prompt, letters, "golden", **facts))

    def model(self):
        """Returns `(model, own)` of the trained network, as :meth:`sim.export.writer.ModelWriter.model`."""
        model, own = self.writer.model(self.training.learnt)
        return in_inference_form(model) if self.file else model, own


def make_job(options):
    """Builds the :class:`TrainJob` for these options. Raises ModelError, DataError or BadParameter."""
    if options.steps_to_compare != 0:
        _config(options)  # report an invalid core before reading the model
    is_gpt = options.model == GPT_NAME
    fresh = is_gpt or options.model in SHIPPED if options.initialize is None else options.initialize
    path = _gpt(options, fresh) if is_gpt else SHIPPED.get(options.model) or Path(options.model)
    graph = load_network(path, shapes=parse_shapes(options.shape))
    file = None if is_gpt else training_file(graph)  # the GPT's norms have no scales, which its weights take up
    network = trainable_network(file.load(shapes=parse_shapes(options.shape)) if file else graph, options.loss)
    writer = _writer(network, needed=options.output or is_gpt or file)
    network = writer.with_updates(network) if writer else network
    data = choose_train_data(graph, options)
    if any(part.is_counted for part in (data.train, data.validation, data.test) if part):
        network = replace(network, is_counted=True)
    network = for_training_on(network, _config(options, graph))
    plan = _plan(graph, options)
    plan = replace(plan, optimizer=in_units_of_targets(plan.optimizer, network, data.train))
    masters = initialize(network, options.seed) if fresh and not is_gpt else None  # the GPT's file has new weights
    state = initial_state(network, plan.optimizer, masters)
    if options.keep is Keep.BEST and not data.measured[0]:
        raise typer.BadParameter("--keep best needs a validation or test set: --validation 0.1")
    training = Training(network, plan, data.train, data.measured[0], state, fastest_sums())
    folder = checkpoint_in(options.checkpoint) if options.checkpoint else None
    return TrainJob(
        options=options,
        graph=graph,
        start="fresh" if fresh else "file",
        data=data,
        run=TrainingRun(training=training, checkpoints=folder, keep_all=options.keep is Keep.ALL),
        writer=writer,
        file=file,
    )


def _writer(network, needed):
    """Returns the :class:`.ModelWriter` of a network. Returns None if no file can hold its weights, unless that is `needed`."""
    try:
        return ModelWriter(network)
    except ModelError:
        if needed:
            raise
        return None


def _gpt(options, fresh):
    """Returns the file of the GPT: with the shipped weights, or with fresh ones, for the alphabet of the text."""
    if not fresh:
        return saved_model(gpt_model(has_state=False))
    alphabet = Alphabet.of(read_text(options.data)) if options.data and options.data.suffix != ".npy" else None
    weights = new_weights(options.seed, len(alphabet or SHIPPED_ALPHABET))
    return saved_model(gpt_model(weights=weights, has_state=False, alphabet=alphabet))


def _config(options, graph=None):
    """Returns the core's :class:`hw.config.Config`, for a network if it is known. Raises hw.config.ConfigError if no core can be
    generated from it."""
    return options.core.config(training_preset(graph) if graph else "training", **({"ring": True} if options.cores > 1 else {}))


def _plan(graph, options):
    decay = options.weight_decay
    if decay is None:
        decay = _DECAY if options.optimizer is OptimizerKind.ADAMW else 0.0
    try:
        if options.optimizer is OptimizerKind.SGD:
            momentum = _MOMENTUM if options.momentum is None else options.momentum
            optimizer = Sgd(momentum=momentum, weight_decay=decay)
        else:
            kind = RmsProp if options.optimizer is OptimizerKind.RMSPROP else Adam
            optimizer = kind(weight_decay=decay)
        named = {one.name: getattr(options, member_of(one.name)) for one in fields(Hyperparameters)}
        named |= {"optimizer": optimizer, "epochs": options.epochs or _EPOCHS}
        if options.rate is None and options.model == GPT_NAME:
            named["learning_rate"] = _GPT_RATES[options.optimizer]
        best = options.keep is Keep.BEST
        return make_plan(graph, Hyperparameters(**named), patience=options.early_stopping, keep_best=best)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
