"""The compiler's input: a chain of dense layers. What is more than that is a :class:`sim.ir.graph.Graph`."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

__all__ = ["Dense", "Network", "ModelError", "load_network"]


class ModelError(ValueError):
    """A model that can't be compiled; one line that names the cause, the operator and its node, and the fix."""


@dataclass(frozen=True, eq=False)
class Dense:
    """One layer: `function(x @ weights + bias)`, with weights bfloat16 (K, N), bias float32 (N,) or None, and function
    `"none"` or `"relu"`."""

    name: str
    weights: np.ndarray
    bias: np.ndarray | None = None
    function: str = "none"


@dataclass(frozen=True)
class Network:
    """A chain of layers.

    Parameters
    ----------
    name : str
    input_size : int
        Values in one sample, in the order of the ONNX input.
    layers : tuple of Dense
    softmax : bool
        Whether the model ended in Softmax or LogSoftmax, which is left out: layers end with the logits.
    input_shape : tuple of int
        Shape of one sample, as the model had it.
    preprocess : str or None
        What the model's metadata says under `preprocess`: how pixels become inputs (:data:`sim.data.digits.PREPROCESSING`).
    origin : sim.fusion.origin.Origin or None
        The model's own input and outputs; None if the network was not read from a file.
    """

    name: str
    input_size: int
    layers: tuple[Dense, ...]
    softmax: bool = False
    input_shape: tuple[int, ...] = ()
    preprocess: str | None = None
    origin: object = field(default=None, repr=False, compare=False)

    @property
    def output_size(self):
        """Values in one result."""
        return self.layers[-1].weights.shape[1]


def load_network(path, keep_softmax=False):
    """The network in an ONNX file (opset 8 or later; weights in the file or in external ones beside it): a :class:`Network`
    if it is a chain of dense layers with no function but ReLU, else a :class:`sim.ir.graph.Graph`.

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
