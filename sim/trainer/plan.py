"""The hyperparameters of a training run: each is an argument of `fit`, an option of `tpu train`, and a setting of the run."""

import inspect
import textwrap
from dataclasses import dataclass, field, fields

from amaranth_tpu.hw.spec.ring_size import MOST_CORES

from .schedules import FORMS

__all__ = ["FLAGS", "Hyperparameters", "Plan", "argument", "member_of", "numbers_of", "option_of", "takes"]


def argument(default, kind, text, **option):
    """Returns a field that is an argument of the Python API.

    Parameters
    ----------
    kind, text : str
        Its type and its description, for the documentation.
    option : dict
        The option of `tpu train`: `name` (default: the name of the argument), `type`, `min` and `max`, `more` to add to the
        description, and `texts`, other words for the description.
    """
    return field(default=default, metadata={"kind": kind, "text": text, "option": option})


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The hyperparameters as a caller gives them, with the defaults of `fit`."""

    epochs: int | None = argument(None, "int or None", "Number of epochs. Default: 1.", max=100_000, texts={"1.": "5."})
    steps: int | None = argument(
        None, "int or None", "Number of steps, in place of epochs.", max=1 << 40, texts={"epochs": "--epochs"}
    )
    evaluate_every: int | None = argument(
        None,
        "int or None",
        "Number of steps between two evaluations, each an entry in the history. Default: an epoch. The last step is always "
        "followed by one.",
        name="eval-every",
        texts={", each an entry in the history": ""},
    )
    batch_size: int = argument(
        32, "int", "Samples per step. The incomplete last batch of an epoch is dropped.", name="batch", max=1 << 20
    )
    cores: int = argument(
        1,
        "int",
        "Number of cores. Each batch is split evenly; a ring all-reduces the gradients. Rounding depends on the number of cores.",
        max=MOST_CORES,
    )
    optimizer: object = argument(
        "adam",
        "str, Sgd, Adam or RmsProp",
        "`adam`, `adamw` (weight decay 0.01), `rmsprop` or `sgd` (momentum 0.9), or an object such as `tpu.Sgd(momentum=0.5)`.",
        type=str,
    )
    learning_rate: float | None = argument(
        None,
        "float or None",
        "Learning rate. Default: 0.001 for Adam and RMSprop; 0.1 for SGD, or 0.05 for a CNN.",
        name="rate",
        type=float,
        more=" For gpt: 0.004, or 0.3 for SGD.",
    )
    clip_value: float | None = argument(
        None,
        "float or None",
        "Largest absolute value of a number of the mean gradient; larger ones are clipped, as by torch.nn.utils.clip_grad_value_ "
        "and Keras' `clipvalue`.",
        type=float,
    )
    clip_norm: float | None = argument(
        None,
        "float or None",
        "Largest norm of all mean gradients together; larger gradients are scaled, as by torch.nn.utils.clip_grad_norm_ and "
        "Keras' `global_clipnorm`. A core stores each gradient and its square, 4 bytes a parameter, until the norm is known.",
        type=float,
    )
    schedule: object = argument(
        "constant",
        "str or function",
        f"Learning rate schedule: {FORMS}. A function gets the number of the step, from 0, and returns the factor.",
        type=str,
        texts={" A function gets the number of the step, from 0, and returns the factor.": ""},
        more=" The default falls; Keras and PyTorch keep the rate `constant`.",
    )
    dropout: object = argument(
        None,
        "float or None",
        "Dropout rate of the hidden dense layers; without such layers, of the inputs of the last layer. Default: the tensors and "
        "rates of the PyTorch module or Keras model, else 0.",
        type=float,
        min=0,
        max=0.95,
        texts={" Default: the tensors and rates of the PyTorch module or Keras model, else 0.": ""},
    )
    seed: int = argument(
        1,
        "int",
        "Seed of new weights, the order of samples, the validation split and dropout.",
        min=0,
        max=(1 << 31) - 1,
        texts={"split and dropout": "split, dropout and --pauses"},
    )


@dataclass(frozen=True, kw_only=True)
class Plan(Hyperparameters):
    """The hyperparameters of a training run. Together with network and samples they determine its bits. The optimizer is a
    :class:`.Sgd` or :class:`.Adam`, `schedule` a :class:`.RateSchedule`, and `dropout` a :class:`.Dropout`.
    """

    #: Early stopping: training stops after this number of evaluations without a lower validation loss. The result then has the
    #: parameters of the best evaluation.
    patience: int | None = None
    keep_best: bool = False  # the result has the parameters of the best evaluation, without early stopping, too


#: The option of `tpu train` for each argument of `fit`, of :class:`.Sgd` and of :class:`.Adam`.
FLAGS = {one.name: "--" + one.metadata["option"].get("name", one.name.replace("_", "-")) for one in fields(Hyperparameters)}
FLAGS |= {"momentum": "--momentum", "weight_decay": "--weight-decay"}


def option_of(name):
    """Returns `(type, settings)` of the option of `tpu train` for an argument: settings are `flag`, `help`, `min` and `max`."""
    entry = Hyperparameters.__dataclass_fields__[name]
    text, option = entry.metadata["text"], {"min": 1, **entry.metadata["option"]}
    for words, others in option.pop("texts", {}).items():
        text = text.replace(words, others)
    kind = option.pop("type", int)
    if kind is not int and "max" not in option:
        del option["min"]
    option.pop("name", None)
    return kind, {"flag": FLAGS[name], "help": text + option.pop("more", ""), **option}


def member_of(name):
    """Returns the name of an argument among the options of `tpu train`, as a Python name."""
    return FLAGS[name][2:].replace("-", "_")


def numbers_of(given):
    """Yields `(name, type, minimum)` of each hyperparameter that is a number, without those that are left to their default."""
    for one in fields(Hyperparameters):
        kind = one.metadata["option"].get("type", int)
        if kind in (int, float) and not isinstance(getattr(given, one.name), (tuple, type(None))):
            yield one.name, kind, one.metadata["option"].get("min", 1)


def takes(record):
    """Returns a decorator of methods that take the fields of a dataclass of :func:`argument` entries as keywords: it adds them to
    the signature, and to the docstring in front of its section Raises."""

    def decorate(method):
        own = [one for one in inspect.signature(method).parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        named = [inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default) for one in fields(record)]
        method.__signature__ = inspect.Signature([*own, *named])
        wide = {"width": 120, "initial_indent": "    ", "subsequent_indent": "    ", "break_long_words": False}
        entries = [
            f"{one.name} : {one.metadata['kind']}\n{textwrap.fill(one.metadata['text'], **wide)}" for one in fields(record)
        ]
        before, raises, after = inspect.cleandoc(method.__doc__).partition("\nRaises\n")
        method.__doc__ = "\n".join([before.rstrip("\n"), *entries]) + "\n" + raises + after
        return method

    return decorate
