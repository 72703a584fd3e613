"""Restarts of the reader with another layout of an input."""

__all__ = ["Relayout"]


class Relayout(Exception):
    """A restart of the reader with another layout of the input node `name`: `shape` (height, width, channels), and `order`, the
    index into the input for each place."""

    def __init__(self, name, shape, order):
        super().__init__()
        self.name, self.shape, self.order = name, shape, order
