"""Errors of training."""

__all__ = ["TrainingError"]


class TrainingError(RuntimeError):
    """Training that cannot continue; one line with the cause and the remedy."""
