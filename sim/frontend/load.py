"""Loading of networks from ONNX files."""

from pathlib import Path

__all__ = ["load_network"]


def load_network(path, keep_softmax=False, shapes=None, means=None):
    """Reads an ONNX file (opset 8 or later; weights in the file or in external files). Returns the network as a
    :class:`sim.ir.graph.Graph`. Raises ModelError if the file cannot be read, or has an operation that the core does not
    support.

    A model whose input has a batch of one takes one sample. If the batch is larger or open, each result must depend on one sample
    alone; other models are refused. If reading with a fixed batch fails, the reader tries again with the whole input as one
    sample; `input_shape` then has all axes of the input.

    Parameters
    ----------
    path : path
    keep_softmax : bool
        True to keep a Softmax at the end. Default: it is removed, and the results are logits.
    shapes : dict of str to tuple of int, or None
        Shapes of inputs whose sizes the file leaves open, by name, with the batch, and values of scalar inputs. Default:
        the shapes of the file.
    means : dict of str to array, or None
        Means of the channels of each tensor of the graph, by name: :func:`sim.golden.network.channel_means`. Rounding of weights
        then keeps the means of sums.
    """
    from .reader import read_network  # onnx is slow to import

    return read_network(Path(path), keep_softmax, shapes, means)
