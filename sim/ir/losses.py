"""The losses of training. The command line reads this file before numpy is imported."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Head", "Huber", "JointLoss", "Loss", "losses_of"]


class Loss(StrEnum):
    """The loss of a position.

    The cross-entropy is of the Softmax of its channels, with one class. The others are means over the channels, with a wanted
    number for each: the cross-entropy of the Sigmoid, the square of the error, its absolute value, and Huber's loss, which is
    half the square up to an error of 1, and linear from there.
    """

    CROSS_ENTROPY = "cross-entropy"
    BINARY = "binary-cross-entropy"
    SQUARED_ERROR = "mse"
    ABSOLUTE_ERROR = "mae"
    HUBER = "huber"

    @property
    def is_of_classes(self):
        """True if labels are class numbers, one for each position."""
        return self is Loss.CROSS_ENTROPY

    @property
    def is_of_logits(self):
        """True if a network ends in logits, and its last Softmax or Sigmoid belongs to the loss."""
        return self in (Loss.CROSS_ENTROPY, Loss.BINARY)


@dataclass(frozen=True)
class Huber:
    """Huber's loss of another `delta` than 1: half the square up to an error of `delta`, and linear from there."""

    delta: float
    is_of_classes = is_of_logits = False

    @property
    def value(self):
        """A text that identifies the loss."""
        return f"huber:{self.delta!r}"


@dataclass(frozen=True)
class Head:
    """One of several outputs of a model that are trained together."""

    name: str
    loss: Loss | Huber
    weight: float
    first: int  # index of its first number among the results
    size: int

    @property
    def place(self):
        """The slice of its numbers in the results."""
        return slice(self.first, self.first + self.size)


@dataclass(frozen=True)
class JointLoss:
    """The sum of the losses of several outputs, each times a weight. The network's result has the numbers of all outputs
    side by side. Targets are numbers: a class is a row of zeros and a one."""

    heads: tuple[Head, ...]
    is_of_classes = is_of_logits = False

    @property
    def value(self):
        """A text that identifies the loss."""
        return ", ".join(f"{one.weight:g} {one.loss.value} of {one.name}" for one in self.heads)


def losses_of(loss):
    """Returns the losses of all outputs, as a list of :class:`Loss`."""
    return [one.loss for one in loss.heads] if isinstance(loss, JointLoss) else [loss]
