"""Learning rate schedules: the factor of the learning rate at each step."""

import math
from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["RateSchedule", "parse_schedule", "DEFAULT", "FORMS"]

#: Pairs: a fraction of all steps, and the factor of the learning rate from there on.
_FIFTHS = ((0.0, 1.0), (0.4, 0.5), (0.6, 0.2), (0.8, 0.1))
DEFAULT = "fifths"
#: Forms of the option `--schedule`, for its help and errors.
FORMS = (
    "`fifths` (1, 1, .5, .2, .1, each for a fifth of the steps), `constant`, `steps:2,4:0.1` (times 0.1 after epochs 2 and 4), "
    "`exponential:0.95` (times 0.95 after each epoch), or the factor of each epoch, such as `1,1,.5,.2,.1`"
)


@dataclass(frozen=True)
class RateSchedule:
    """A learning rate schedule: it gives the factor by which the learning rate is multiplied at each step.

    Parameters
    ----------
    text : str
        The schedule as written by the user.
    kind : str
        `constant`, `fifths`, `steps`, `exponential` or `list`.
    numbers : tuple of float
        For `steps`: the epochs after which the rate falls. For `list`: the factor of each epoch; later epochs use the last
        factor.
    factor : float
        Factor applied at each fall of `steps`, or after each epoch of `exponential`.
    """

    text: str
    kind: str
    numbers: tuple[float, ...] = ()
    factor: float = 1.0

    @property
    def depends_on_epochs(self):
        """Returns True if the factor depends on the total number of epochs."""
        return self.kind == "fifths"

    def at(self, epoch, step, steps, epochs):
        """Returns the factor of the learning rate at a step.

        Parameters
        ----------
        epoch : int
            Number of the epoch, counted from 0.
        step, steps : int
            Number of the step within the epoch, counted from 0; and number of steps per epoch.
        epochs : int
            Total number of epochs.
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
    """Parses a schedule such as `steps:2,4:0.1`. Returns a :class:`RateSchedule`. Raises ValueError, with a message of one line,
    for other forms."""
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
    raise ValueError(f"{text!r} is not a schedule; write {FORMS.replace('`', '')}")
