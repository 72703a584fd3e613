"""The losses of training. The command line reads this file before numpy is imported."""

from enum import StrEnum

__all__ = ["Loss"]


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
