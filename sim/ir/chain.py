"""The compiler's input: a chain of dense layers. What is more than that is a :class:`sim.ir.graph.Graph`."""

from dataclasses import dataclass, field

import numpy as np

__all__ = ["Dense", "Network"]


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
