"""Keras models as models."""

import contextlib
import io
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx

from ..data.printable import printable
from ..frontend.load import load_network
from ..ir.errors import ModelError
from .model import Model
from .source import Source, dropout_rate
from .temporary_file import TemporaryFile

__all__ = ["from_keras"]

#: Packages that Keras' exporter needs, by backend.
_EXPORTERS = {"torch": ("torch", "onnxscript"), "tensorflow": ("tensorflow", "tf2onnx"), "jax": ("tensorflow", "jax", "tf2onnx")}


def from_keras(model, probabilities=False, effort="best"):
    """Converts a Keras model. :meth:`Model.fit` stores the trained weights in it, so that `keras_model.evaluate` and
    `keras_model.save` use them.

    Keras exports the model, with any backend that can export: torch, tensorflow or jax. Dropout layers give `fit` its dropout
    rate. `pip install 'amaranth-tpu[keras]'` installs Keras, and what it needs with the backend torch.

    Parameters
    ----------
    model : keras.Model
        A built model; all sizes but the batch must be known.
    probabilities, effort
        As in :func:`load`.

    Returns
    -------
    Model

    Raises
    ------
    ImportError
        If a package is missing. The message is one line with the command that installs it.
    ModelError
        If Keras cannot export the model, or the core cannot compute it.

    Examples
    --------
    >>> import keras                                                 # doctest: +SKIP
    >>> from amaranth_tpu import tpu
    >>> net = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(2, activation="softmax")])  # doctest: +SKIP
    >>> tpu.from_keras(net)                                          # doctest: +SKIP
    <Model sequential: keras_tensor (None, 8) -> 13 (None, 2)>
    """
    if find_spec("keras") is None:
        raise ImportError("from_keras needs keras: pip install 'amaranth-tpu[keras]'")
    import keras

    backend = keras.backend.backend()
    if backend not in _EXPORTERS:
        names = ", ".join(_EXPORTERS)
        raise ImportError(f"Keras' backend {backend} cannot export; set the environment variable KERAS_BACKEND to one of {names}")
    missing = [name for name in _EXPORTERS[backend] if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"Keras' exporter with the backend {backend} needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model, not {type(model).__name__}")
    source = Source(
        model.name,
        lambda: {one.path: np.array(keras.ops.convert_to_numpy(one.value)) for one in _weights(model)},
        lambda values: [one.assign(values[one.path]) for one in _weights(model)],
        lambda: _exported(model),
        dropout_rate(model.name, list(_layers(model))),
    )
    file = TemporaryFile(source.model, model.name)
    return Model(load_network(file.path, keep_softmax=probabilities), effort, file, source)


def _weights(model):
    return [one for one in model.weights if "float" in str(one.dtype)]


def _layers(model):
    """Yields the layers for :func:`.dropout_rate`, in the order of the model."""
    import keras

    for one in model.layers:
        if isinstance(one, keras.Model):
            yield from _layers(one)
        elif isinstance(one, keras.layers.Dropout):
            yield one.rate
        elif one.weights:
            yield "dense" if isinstance(one, keras.layers.Dense) else "other"


def _exported(model):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        try:
            shapes = model.input_shape if isinstance(model.input_shape, list) else [model.input_shape]
            zeros = [np.zeros((1, *shape[1:]), np.float32) for shape in shapes]
            model(zeros if len(zeros) > 1 else zeros[0])  # Keras exports models that were called
            model.export(str(path), format="onnx", verbose=False)
        except Exception as error:  # its own types, and any error of a layer
            raise ModelError(f"{model.name}: Keras cannot export it: {printable(error, 300)}") from None
        return onnx.load(path)
