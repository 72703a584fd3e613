"""The losses of training. The command line reads this file before numpy is imported."""

from enum import StrEnum

__all__ = ["Loss"]


class Loss(StrEnum):
    """The loss of a position: the cross-entropy of the Softmax of its channels, or the mean square of their errors."""

    CROSS_ENTROPY = "cross-entropy"
    SQUARED_ERROR = "mse"
