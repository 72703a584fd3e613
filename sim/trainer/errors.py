"""What training ends with, if not with a result."""

__all__ = ["TrainingError"]


class TrainingError(RuntimeError):
    """Training that can't go on; one line with what to do."""
