"""The start of a training run: the checks of a model and of hyperparameters, and the comparison of its steps with a core."""

from dataclasses import fields, replace

import ml_dtypes
import numpy as np
import onnx

from ..autodiff.trainable_parameters import with_parameters
from ..compiler.step import compile_step
from ..data.printable import printable
from ..export.other_weights import with_other_weights
from ..golden.dropout import Dropout
from ..golden.shards import shards_of
from ..ir.errors import ModelError
from ..ir.losses import JointLoss, Loss
from ..ir.optimizers import Adam
from .core_comparison import StepComparison
from .core_steps import StepRunner
from .errors import ArgumentError
from .plan import Hyperparameters, Plan
from .samples import LabelledSamples
from .schedules import parse_schedule
from .step_check import checked_step

__all__ = ["in_units_of_targets", "make_plan", "step_comparison", "step_program", "trainable_network"]

_RATES = {"Sgd": (0.1, 0.05), "Adam": (0.001, 0.001), "RmsProp": (0.001, 0.001)}  # learning rates: dense networks, CNNs
_MEASURED = 10_000  # targets that are measured at most
_LEAST = float(ml_dtypes.finfo(ml_dtypes.bfloat16).smallest_normal)  # smaller numbers are flushed to 0


def trainable_network(graph, loss=Loss.CROSS_ENTROPY):
    """Returns the :class:`sim.ir.graph.Graph` of a network from an ONNX file. Raises ModelError if it cannot be
    trained with a :class:`sim.ir.losses.Loss`. A file with ONNX's own `training_info` is refused, because it describes
    another training."""
    if graph.origin.is_split != isinstance(loss, JointLoss) or len(graph.origin.inputs) > 1 and not graph.feeds:
        raise ModelError(
            f"{printable(graph.origin.path.name)}: has several inputs or outputs; `tpu train` needs a model with one of each, "
            "and tpu.load(file).fit trains it"
        )
    if onnx.load(graph.origin.path, load_external_data=False).training_info:
        raise ModelError(
            f"{printable(graph.origin.path.name)}: has training_info, which is not supported; export the model without it"
        )
    return with_parameters(graph, loss, apart=lambda: with_other_weights(graph))


def make_plan(graph, given, *, patience=None, keep_best=False):
    """Checks the hyperparameters of a training run. Returns its :class:`.Plan`. Raises ArgumentError.

    Parameters
    ----------
    graph : Graph
    given : Hyperparameters
        With an optimizer object. The learning rate None is 0.1 for SGD, or 0.05 for a CNN; 0.001 for Adam.
    patience, keep_best
        As in the plan.
    """
    named = {one.name: getattr(given, one.name) for one in fields(Hyperparameters)}
    if given.learning_rate is None:
        named["learning_rate"] = _RATES[type(given.optimizer).__name__][graph.is_convolutional]
    try:
        shards_of(given.batch_size, given.cores)
        share, rates = (0.0, given.dropout) if isinstance(given.dropout, tuple) else (given.dropout or 0.0, ())
        limits = {name: named[name] for name in ("clip_value", "clip_norm") if named[name] is not None}
        optimizer = replace(given.optimizer, **limits)
        named |= {
            "schedule": parse_schedule(given.schedule),
            "dropout": Dropout(share, given.seed, rates),
            "optimizer": optimizer,
        }
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    _check_factors(optimizer, named["learning_rate"], given.batch_size)
    return Plan(**named | {"epochs": given.epochs or 1}, patience=patience, keep_best=keep_best)


def in_units_of_targets(optimizer, network, samples):
    """Returns an optimizer for the targets of a squared error, whose gradients are as large as the targets. Adam's limits are
    those of targets near 1; they are multiplied by a power of two. Targets of a :class:`.Stream` are not known before."""
    if network.loss is not Loss.SQUARED_ERROR or not isinstance(optimizer, Adam) or not isinstance(samples, LabelledSamples):
        return optimizer
    some = np.asarray(samples.labels[:: -(-len(samples) // _MEASURED)], np.float64)
    size = float(np.sqrt(np.square(some).mean()))
    return replace(optimizer, unit=2.0 ** int(np.ceil(np.log2(size)))) if 1 < size < np.inf else optimizer


def _check_factors(optimizer, rate, batch):
    """Raises ArgumentError if the learning rate is not above 0, or if a factor of the update is not a bfloat16 number."""
    if not 0 < rate < float("inf"):
        raise ArgumentError(f"`learning_rate` must be a number above 0, not {rate:g}")
    with np.errstate(over="ignore"):
        factors = {name: float(factor) for name, factor in optimizer.factors(rate, batch, 1).items()}
    asked = {"learning_rate": rate, "weight_decay": optimizer.weight_decay}
    asked |= {"clip_value": optimizer.clip_value, "clip_norm": optimizer.clip_norm}
    pairs = zip(("rate", "decay", "clip", "norm"), asked.values())
    vanish = any(number and abs(factors[name]) < _LEAST for name, number in pairs)
    if vanish or not all(map(np.isfinite, factors.values())):
        given = " or ".join(f"`{name}` {number:g}" for name, number in asked.items() if number is not None)
        raise ArgumentError(f"{given} becomes 0 or infinite in bfloat16 with `batch_size` {batch}; give another value")


def step_program(training, config, network=None):
    """Compiles one step of a :class:`.Training` for cores with this :class:`.Config`. Returns the :class:`.Program`. Raises
    CompileError if a step does not fit the core, or a step of this network cannot be compiled. `network` is the network in the
    form for another core."""
    plan = training.plan
    share = plan.batch_size // plan.cores
    return compile_step(network or training.network, plan.optimizer, config, share, plan.dropout, plan.cores)


def step_comparison(training, config, simulator, most, memory=None, cells="rtl", check=True):
    """Compiles the program of a training step, and checks it before the RTL uses it. Returns `(program, comparison)`: the
    :class:`.Program`, and the :class:`.StepComparison` that repeats steps on a core. Raises CompileError if a step does not fit
    the core, or a step of this network cannot be compiled. Raises RunError if the program is wrong.

    Parameters
    ----------
    training : Training
    config : Config
        Configuration of each core, with the option `training`, and with `ring` for several cores.
    simulator : str
        `verilator`, `icarus` or `model`.
    most : int or None
        Number of steps to compare. None: all.
    memory : dict or None
        Settings of the simulated host memory, see :class:`sim.trainer.core_steps.StepRunner`.
    cells : str
        Cells of the RTL, `rtl` or `native`; see :mod:`sim.rtl.native_cells`.
    check : bool
        See :func:`.checked_step`.
    """
    program = step_program(training, config)
    if check and simulator != "model":  # the comparison itself runs on that model
        program = checked_step(training, program)
    runner = StepRunner(program, simulator, memory or {}, cells=cells)
    return program, StepComparison(training.network, runner, most, runner.together, ring_words=program.ring_words)
