"""The error of data, in a file of its own: who only names it need not import numpy."""

__all__ = ["DataError"]


class DataError(ValueError):
    """Data that can't be read, or do not fit the model; one line that names the file, the cause and the fix."""
