"""Networks from ONNX files."""

from pathlib import Path

__all__ = ["load_network"]


def load_network(path, keep_softmax=False):
    """The network in an ONNX file (opset 8 or later; weights in the file or in external ones beside it), as a
    :class:`sim.ir.graph.Graph`.

    A batch of one is no batch: the model takes one sample. With a larger one, or an open one, each result depends on one sample
    alone, or the model is refused; if it is fixed, all of the input is then tried as one sample, and `input_shape` has all of its
    axes.

    Parameters
    ----------
    path : path
    keep_softmax : bool
        Whether a Softmax at the end stays; by default it is left out, and results are logits.

    Raises
    ------
    ModelError
        If the file can't be read, or holds what no stage of the core can do.
    """
    from .reader import read_network  # onnx is slow to import

    return read_network(Path(path), keep_softmax)
