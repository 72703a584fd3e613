"""Loading of networks from ONNX files."""

from pathlib import Path

__all__ = ["load_network"]


def load_network(path, keep_softmax=False):
    """Returns the network in an ONNX file (opset 8 or later; weights in the file or in external files) as a
    :class:`sim.ir.graph.Graph`.

    A batch of one counts as no batch: the model takes one sample. With a larger or an open batch, each result must depend on one
    sample alone; other models are refused. If that fails for a fixed batch, the whole input is tried as one sample, and
    `input_shape` has all axes of the input.

    Parameters
    ----------
    path : path
    keep_softmax : bool
        Keep a Softmax at the end. Default: it is removed, and results are logits.

    Raises
    ------
    ModelError
        If the file cannot be read, or has an operation that the core does not support.
    """
    from .reader import read_network  # onnx is slow to import

    return read_network(Path(path), keep_softmax)
