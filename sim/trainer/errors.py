"""Exceptions of training."""

__all__ = ["TrainingError"]


class TrainingError(RuntimeError):
    """An error after which training cannot continue. The message is one line with cause and remedy."""
