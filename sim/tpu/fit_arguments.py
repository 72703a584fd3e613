"""The arguments of `Model.fit`: the hyperparameters, and the data, checks and callbacks around them."""

from dataclasses import dataclass, fields

from ..trainer.plan import Hyperparameters, argument
from .arguments import check_name, check_whole

__all__ = ["FitArguments"]


@dataclass(frozen=True, kw_only=True)
class FitArguments(Hyperparameters):
    """All arguments of :meth:`sim.tpu.model.Model.fit` except the samples."""

    validation_split: float = argument(
        0.0, "float", "Fraction of the samples, chosen at random by `seed`, on which each epoch is evaluated instead of trained."
    )
    validation_data: object = argument(
        None,
        "(x, y), (x, y, sample_weight), iterable of such batches, or None",
        "Samples and labels on which each epoch is evaluated.",
    )
    steps_per_epoch: int | None = argument(
        None,
        "int or None",
        "For an iterable of batches: steps of an epoch. Default: a pass, which is counted first. An iterator needs it, or "
        "`steps`, to be read as it is trained on; without, all its samples are kept in memory.",
    )
    loss: str = argument(
        "cross_entropy",
        "str",
        "`cross_entropy` of the softmax, `binary_crossentropy` of the sigmoid, `mse`, `mae`, `huber`, `huber:0.5` for another "
        "delta than 1, or Keras' names for them. A Softmax or Sigmoid at the model's end belongs to the loss. For several "
        "outputs: a dict by output, or a list.",
    )
    loss_weights: object = argument(
        None, "dict, list or None", "Factors of the losses of several outputs, by output or as a list. Default: 1."
    )
    metrics: object = argument(
        (),
        "name, function, or list of both",
        "Metrics of each epoch on the validation data, as in :meth:`evaluate`. The accuracy is always there.",
    )
    sample_weight: object = argument(
        None, "array or None", "Factor of the loss of each sample, (count,), or of each of its positions, (count, positions)."
    )
    class_weight: object = argument(None, "dict or None", "Factor of the loss of each class, by class number. Default: 1.")
    label_smoothing: float = argument(
        0.0, "float", "Share of each label, from 0 to below 1, that is divided among all classes, for the cross-entropies."
    )
    callbacks: object = argument(
        (),
        "callback or list of callbacks",
        ":class:`Checkpoint`, :class:`EarlyStopping`, :class:`TensorBoard`, and functions. A function is called with the "
        "statistics of each epoch; if it returns True, training ends. `callbacks=[print]` prints the statistics.",
    )
    check_steps: int | str = argument(0, 'int or "all"', "Number of steps that a core computes too.")
    on: object = argument(
        "model",
        "str or Simulator",
        "Simulator of these steps: `model` executes their instructions; `verilator` and `icarus` simulate the RTL, and take "
        "longer.",
    )
    core: object = argument(
        None,
        "Config, name of a preset, or None for the preset `training`, or `transformer` if the model multiplies two tensors",
        "Configuration of each core. The options `training` and, for several cores, `ring` are switched on. With `normalize`, "
        "steps compute normalizations by NORMALIZE, with its bits.",
    )
    initialize: bool = argument(False, "bool", "Start from new random weights. Default: start from the model's weights.")
    verbose: bool = argument(
        True,
        "bool",
        "Show the progress of a fit of more than two seconds on standard error: a line on a terminal, else a line every ten "
        "seconds. `callbacks=[print]` prints the statistics of each epoch.",
    )

    @classmethod
    def of(cls, given):
        """Returns the arguments in a dict. Raises ArgumentError for a name that is no argument."""
        for name in given:
            check_name("fit's arguments", name, [one.name for one in fields(cls)])
        found = cls(**given)
        if found.steps_per_epoch is not None:
            check_whole("steps_per_epoch", found.steps_per_epoch)
        return found
