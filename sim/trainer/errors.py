"""Exceptions of training."""

__all__ = ["ArgumentError", "TrainingError"]


class ArgumentError(ValueError):
    """An error for an argument with an invalid value. The message is one line, with the names of arguments in backticks."""


class TrainingError(RuntimeError):
    """An error after which training cannot continue. The message is one line with cause and remedy."""
