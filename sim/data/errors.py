"""The exception DataError, in a separate file so that importing it does not import numpy."""

__all__ = ["DataError"]


class DataError(ValueError):
    """An error for data that cannot be read or does not fit the model. The message is one line with file, cause and remedy."""
