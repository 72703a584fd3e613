"""The error for models that cannot be compiled."""

__all__ = ["ModelError"]


class ModelError(ValueError):
    """An error for a model that cannot be compiled. The message is one line that names the operator, its node, the cause and the
    remedy.

    Attributes
    ----------
    value : str or None
        The first result of the ONNX node at fault, if the error is about a node.
    """

    value = None
