"""Learning rate schedules: the factor of the learning rate at each step."""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from numbers import Real

from .errors import ArgumentError

__all__ = ["RateSchedule", "parse_schedule", "DEFAULT", "FORMS"]

#: Pairs: a fraction of all steps, and the factor of the learning rate from there on.
_FIFTHS = ((0.0, 1.0), (0.4, 0.5), (0.6, 0.2), (0.8, 0.1))
DEFAULT = "fifths"
#: Forms of the option `--schedule`, for its help and errors.
FORMS = (
    "`fifths` (1, 1, .5, .2, .1, each for a fifth of the steps), `constant`, `cosine` (falls to 0) or `cosine:0.1` (to a tenth), "
    "`linear` or `linear:0.1` (in a line), "
    "`steps:2,4:0.1` (times 0.1 after epochs 2 and 4), `exponential:0.95` (times 0.95 after each epoch), "
    "`exponential:0.96/100000` (times 0.96 over 100,000 steps), or the factor of each epoch, such as `1,1,.5,.2,.1`; "
    "`warmup:50+` before one of them rises over 50 steps first"
)


@dataclass(frozen=True)
class RateSchedule:
    """A learning rate schedule: it gives the factor by which the learning rate is multiplied at each step."""

    text: str  # the schedule as written by the user
    kind: str  # `constant`, `fifths`, `cosine`, `linear`, `steps`, `exponential`, `list` or `function`
    #: For `steps`: the epochs after which the rate falls. For `list`: the factor of each epoch; later epochs use the last factor.
    numbers: tuple[float, ...] = ()
    #: Factor applied at each fall of `steps`, or after each epoch of `exponential`; for `cosine` and `linear`, the last factor.
    factor: float = 1.0
    over: int | None = None  # for `exponential`: number of steps over which the factor applies, in place of an epoch
    warmup: int = 0  # number of steps over which the rate first rises, in equal parts
    function: object = None  # for `function`: `function(step)` returns the factor

    @property
    def depends_on_epochs(self):
        """Returns True if the factor depends on the total number of steps."""
        return self.kind in ("fifths", "cosine", "linear")

    def at(self, step, steps, total):
        """Returns the factor of the learning rate at a step.

        Parameters
        ----------
        step : int
            Number of the step, counted from 0.
        steps, total : int
            Number of steps per epoch, and in the whole training.
        """
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return rise * self._fall(step, step // steps, total)

    def _fall(self, step, epoch, total):
        if self.kind == "fifths":
            share = step / total
            return [factor for start, factor in _FIFTHS if start <= share][-1]
        if self.kind == "cosine":
            return self.factor + (1 - self.factor) * (0.5 + 0.5 * math.cos(math.pi * step / total))
        if self.kind == "linear":
            return 1 + (self.factor - 1) * step / total
        if self.kind == "function":
            return self._of_function(step)
        if self.kind == "steps":
            return self.factor ** bisect_right(self.numbers, epoch)
        if self.kind == "exponential":
            return self.factor ** (step / self.over if self.over else epoch)
        return self.numbers[min(epoch, len(self.numbers) - 1)] if self.kind == "list" else 1.0

    def _of_function(self, step):
        found = self.function(step)
        if not (isinstance(found, Real) and math.isfinite(found) and found >= 0):
            raise ArgumentError(f"`schedule` must return a factor of at least 0 for each step, not {found!r} for step {step}")
        return float(found)


def _numbers(text, kind):
    numbers = tuple(map(kind, text.split(",")))
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ValueError
    return numbers


def _factor(text):
    (factor,) = _numbers(text, float)
    return factor


def _parsed(text, kind, parts):
    """Returns the schedule of one form, or None for an unknown form. Raises ValueError for wrong numbers."""
    match kind, parts:
        case (("constant" | "fifths"), []):
            return RateSchedule(text, kind)
        case (("cosine" | "linear"), [*factor]):
            return RateSchedule(text, kind, factor=_factor(*factor)) if factor else RateSchedule(text, kind, factor=0.0)
        case "steps", [epochs, factor]:
            numbers = _numbers(epochs, int)
            return RateSchedule(text, kind, numbers, _factor(factor)) if list(numbers) == sorted({*numbers}) else None
        case "exponential", [factor]:
            factor, *over = factor.split("/")
            (over,) = (*_numbers(",".join(over), int),) if over else (None,)
            return RateSchedule(text, kind, factor=_factor(factor), over=over)
        case _, []:
            return RateSchedule(text, "list", _numbers(kind, float))
    return None


def parse_schedule(text):
    """Parses a schedule such as `steps:2,4:0.1`, or takes a function of the step. Returns a :class:`RateSchedule`. Raises
    ValueError, with a message of one line, for other forms."""
    if callable(text):
        return RateSchedule("function", "function", function=text)
    try:
        first, plus, rest = text.strip().partition("+")
        warmup = 0
        if plus:
            word, warmup = first.split(":")
            (warmup,) = _numbers(warmup, int)
            rest = rest if word == "warmup" else ""
        kind, *parts = (rest if plus else first).split(":")
        if schedule := _parsed(text, kind, parts):
            return replace(schedule, warmup=warmup)
    except (AttributeError, TypeError, ValueError):
        pass
    raise ValueError(f"{text!r} is not a schedule; write {FORMS.replace('`', '')}")
