"""The exception DataError, in a file of its own so that its users need not import numpy."""

__all__ = ["DataError"]


class DataError(ValueError):
    """Data cannot be read, or does not fit the model; the message is one line with the file, the cause and the remedy."""
