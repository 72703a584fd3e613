"""What is said of a network that can't be compiled."""

__all__ = ["ModelError"]


class ModelError(ValueError):
    """A model that can't be compiled; one line that names the cause, the operator and its node, and the fix."""
