"""Loading of ONNX models from files and from memory."""

from functools import partial
from pathlib import Path

import onnx

from ..frontend.load import load_network
from ..golden.network import channel_means
from ..golden.weight_formats import FORMAT_NAMES, rounded_network
from ..ir.errors import ModelError
from ..models.shipped import SHIPPED
from ..trainer.errors import ArgumentError
from .arguments import needs_conversion
from .divided import DividedModel
from .inputs_outputs import samples_of
from .model import Model
from .temporary_file import TemporaryFile

__all__ = ["load"]


def load(model, probabilities=False, effort="best", shapes=None, weights=None, strict=False, calibration=None):
    """Loads an ONNX model.

    Parameters
    ----------
    model : path, onnx.ModelProto or bytes
        Path of an ONNX file, name of a shipped network (`default`, `a`, `b`, `c`, `d`, `vit`), a model in memory, or the
        content of a file.
    probabilities : bool
        Compute a final Softmax in the core's softmax unit. Default: the host computes it, in binary64.
    effort : str
        Effort of the compiler. `best` searches for the schedule with the fewest cycles; `fast` takes the first schedule that
        fits.
    shapes : dict of str to tuple of int, or None
        Shapes of inputs whose sizes the file leaves open, by name, with the batch: `{"x": (1, 3, 48, 192)}`.
        Of a scalar input, its value: `{"rate": 16000}`. It is then a constant.
    weights : str or None
        Format to which the weights are rounded, once: `mxfp8`, `mxfp6`, `mxfp4` or `mxint8`. Cores with `weight_formats` store
        them so; other cores store the same values in bfloat16. Default: bfloat16.

    strict : bool
        Refuse a model that the core cannot run alone. Default: the host computes the nodes that the core lacks.
    calibration : array, dict of arrays, or None
        Samples, as for :meth:`.Model.run`. Weights are then rounded so that the sums of each channel keep their means over the
        samples: results of a network with many layers are closer to the file's, by a half as a rule. Only for a model that the
        core runs alone. Default: weights are rounded to the nearest bfloat16.

    Returns
    -------
    Model, or DividedModel for a model of which the host computes nodes

    Raises
    ------
    ModelError
        If the file cannot be read, or a node cannot be computed exactly enough. The message is one line that names the file or
        node, or a model to be calibrated needs the host.
    ArgumentError
        If `model` is an object of another kind, such as a PyTorch module, or if `weights` is not a format.

    Examples
    --------
    >>> from amaranth_tpu import tpu
    >>> tpu.load("d")
    <Model mnist_dense: image (None, 1, 28, 28) -> probabilities (None, 10)>
    """
    if weights is not None and weights not in FORMAT_NAMES:
        raise ArgumentError(f"weights must be one of {', '.join(FORMAT_NAMES)}, not {weights!r}")
    if not isinstance(model, (str, Path, bytes, onnx.ModelProto)):
        raise ArgumentError(f"`model` must be a path, an onnx.ModelProto or bytes of a file, not {needs_conversion(model)}")
    file = (
        None
        if isinstance(model, (str, Path))
        else TemporaryFile(model, "model" if isinstance(model, bytes) else model.graph.name)
    )
    path = file.path if file else SHIPPED.get(str(model)) or Path(model)
    if weights and calibration is not None:
        raise ArgumentError("calibration is for weights in bfloat16; leave `weights` out")
    read = partial(file.load if file else partial(load_network, path), keep_softmax=probabilities, shapes=shapes)
    try:
        network = read()
        if calibration is not None:
            network = read(means=channel_means(network, samples_of(network, calibration).rows))
        return Model(rounded_network(network, weights), effort, file=file)
    except ModelError as error:
        if strict or calibration is not None:
            raise
        refusal = error.with_traceback(None)  # its frames hold all values of the graph
        refusal.__context__ = None
    return DividedModel(path, refusal, keep_softmax=probabilities, shapes=shapes, effort=effort, weights=weights, file=file)
