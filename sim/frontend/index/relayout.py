"""Restarts of the reader with another layout of an input."""

__all__ = ["APART", "Relayout", "separated"]

#: In place of an input's name: each input gets a node of its own.
APART = ""


class Relayout(Exception):
    """A restart of the reader with another layout of the input node `name`: `shape` (height, width, channels), and `order`, the
    index into the input for each place. With the name `APART`, inputs that share a node are separated."""

    def __init__(self, name, shape=None, order=None):
        super().__init__()
        self.name, self.shape, self.order = name, shape, order


def separated(source):
    """Raises :class:`Relayout` if several inputs of the model share the node `source`."""
    if getattr(source, "joined", False):
        raise Relayout(APART)
