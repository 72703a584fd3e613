"""Schedules: how the rate of learning goes down during training."""

import math
from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["RateSchedule", "parse_schedule", "DEFAULT", "FORMS"]

#: A share of all steps, and the factor from there on.
_FIFTHS = ((0.0, 1.0), (0.4, 0.5), (0.6, 0.2), (0.8, 0.1))
DEFAULT = "fifths"
#: What `--schedule` takes, in words.
FORMS = (
    "`fifths` (1, 1, .5, .2, .1, each for a fifth of the steps), `constant`, `steps:2,4:0.1` (times 0.1 after epochs 2 and 4), "
    "`exponential:0.95` (times 0.95 after each epoch), or the factor of each epoch, as `1,1,.5,.2,.1`"
)


@dataclass(frozen=True)
class RateSchedule:
    """The factor of the rate at each step.

    Parameters
    ----------
    text : str
        As it was given.
    kind : str
        `constant`, `fifths`, `steps`, `exponential` or `list`.
    numbers : tuple of float
        Of `steps`: the epochs after which the rate falls; of `list`: the factor of each epoch, the last one of all that follow.
    factor : float
        Of `steps` and `exponential`.
    """

    text: str
    kind: str
    numbers: tuple[float, ...] = ()
    factor: float = 1.0

    @property
    def depends_on_epochs(self):
        """Whether a step's factor depends on how many epochs there are in all."""
        return self.kind == "fifths"

    def at(self, epoch, step, steps, epochs):
        """The factor at a step.

        Parameters
        ----------
        epoch : int
            From 0.
        step, steps : int
            Number of the step within the epoch, from 0; steps of an epoch.
        epochs : int
            Epochs in all.
        """
        if self.kind == "fifths":
            share = (epoch * steps + step) / (epochs * steps)
            return [factor for start, factor in _FIFTHS if start <= share][-1]
        if self.kind == "steps":
            return self.factor ** bisect_right(self.numbers, epoch)
        if self.kind == "exponential":
            return self.factor**epoch
        return self.numbers[min(epoch, len(self.numbers) - 1)] if self.kind == "list" else 1.0


def _numbers(text, kind):
    numbers = tuple(map(kind, text.split(",")))
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ValueError
    return numbers


def _factor(text):
    (factor,) = _numbers(text, float)
    return factor


def parse_schedule(text):
    """The :class:`RateSchedule` of a text such as `steps:2,4:0.1`. Raises ValueError, in one line, for any other than `FORMS`."""
    kind, *parts = text.strip().split(":")
    try:
        match kind, parts:
            case (("constant" | "fifths"), []):
                return RateSchedule(text, kind)
            case "steps", [epochs, factor]:
                numbers = _numbers(epochs, int)
                if list(numbers) == sorted({*numbers}):
                    return RateSchedule(text, kind, numbers, _factor(factor))
            case "exponential", [factor]:
                return RateSchedule(text, kind, factor=_factor(factor))
            case _, []:
                return RateSchedule(text, "list", _numbers(kind, float))
    except ValueError:
        pass
    raise ValueError(f"{text!r} is no schedule; write {FORMS.replace('`', '')}")
