"""Keras models as models."""

import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx

from ..ir.errors import ModelError
from ..trainer.errors import ArgumentError
from .arguments import framework_of, needs_conversion
from .batch_norms import BatchNorm
from .dropouts import dropout_rate
from .exports import export_error, silent
from .keras_norms import norm_call
from .keras_recurrent import recurrent_call
from .model import Model
from .source import Source
from .temporary_file import TemporaryFile
from .training_layers import refused_in_keras, without_gradient

__all__ = ["from_keras"]

#: Packages that Keras' exporter needs, by backend.
_EXPORTERS = {"torch": ("torch", "onnxscript"), "tensorflow": ("tensorflow", "tf2onnx"), "jax": ("tensorflow", "jax", "tf2onnx")}


def from_keras(model, probabilities=False, effort="best"):
    """Converts a Keras model. :meth:`Model.fit` stores the trained weights in it, so that `keras_model.evaluate` and
    `keras_model.save` use them.

    Keras exports the model, with any backend that can export: torch, tensorflow or jax. Set the environment variable
    `KERAS_BACKEND=torch` before the first `import keras`; the default, tensorflow, may not be installed. Dropout layers give
    `fit` its dropout rate. `pip install keras torch onnxscript` installs what this needs with the backend torch.

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
    ArgumentError
        If `model` is an object of another kind.

    Warns
    -----
    UserWarning
        If the model is compiled with an optimizer, and :meth:`Model.fit` would refuse it because trained weights cannot be stored
        in it.

    Examples
    --------
    >>> import keras                                                 # doctest: +SKIP
    >>> from amaranth_tpu import tpu
    >>> net = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(2, activation="softmax")])  # doctest: +SKIP
    >>> tpu.from_keras(net)                                          # doctest: +SKIP
    <Model sequential: keras_tensor (None, 8) -> 13 (None, 2)>
    """
    keras = _keras(model)
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
        raise ArgumentError(f"`model` must be a keras.Model, not {needs_conversion(model)}")
    if not getattr(model, "outputs", None):
        raise ModelError(
            f"{model.name}: its inputs are not known; make it by keras.Model(inputs, outputs), or begin it with Input"
        )
    source = Source(
        model.name,
        lambda: {one.path: np.array(keras.ops.convert_to_numpy(one.value)) for one in _weights(model)},
        lambda values: [one.assign(values[one.path]) for one in _weights(model)],
        lambda affine, training=False: _exported(model, affine or {}, training),
        dropout_rate(model.name, layers := list(_layers(model)), _drops_elsewhere(model, layers)),
        {one.path for one in model.non_trainable_weights} | _without_gradient(model),
        [norm for norm, _ in _norms(model)],
        refused_in_keras(model),
    )
    source.object = model
    if getattr(model, "optimizer", None) is not None:
        source.warn("give from_keras a model without an optimizer if you only run it")
    file = TemporaryFile(source.model, model.name)
    return Model(file.load(keep_softmax=probabilities), effort, file, source)


def _keras(model):
    """Imports Keras. Raises ArgumentError for a PyTorch module, and ImportError if Keras or its backend is not installed."""
    if framework_of(model) == "torch":
        raise ArgumentError(f"`model` must be a keras.Model, not {needs_conversion(model)}")
    if find_spec("keras") is None:
        raise ImportError("from_keras needs keras: pip install keras torch onnxscript")
    try:
        import keras
    except ImportError as error:
        raise ImportError(
            f"Keras' backend cannot be imported ({error}); set the environment variable KERAS_BACKEND, before Python starts or "
            "before the first `import keras`, to the name of an installed backend, such as torch"
        ) from None
    return keras


def _weights(model):
    return [one for one in model.weights if "float" in str(one.dtype)]


def _layers(model):
    import keras

    for one in model.layers:
        if isinstance(one, keras.Model):
            yield from _layers(one)
        elif isinstance(one, keras.layers.Dropout):
            yield one.rate
        elif one.weights:
            yield "dense" if isinstance(one, keras.layers.Dense) else "other"


def _without_gradient(model):
    """Returns the names of weights that no gradient reaches, as before `stop_gradient`, with the backend torch."""
    import keras

    if keras.backend.backend() != "torch":
        return set()
    return without_gradient({one.path: one.value for one in model.trainable_weights}, lambda: model(_zeros(model)))


def _zeros(model):
    shapes = model.input_shape if isinstance(model.input_shape, list) else [model.input_shape]
    zeros = [np.zeros((1, *shape[1:]), np.float32) for shape in shapes]
    return zeros if len(zeros) > 1 else zeros[0]


def _drops_elsewhere(model, layers):
    """Returns True if a layer has a Dropout of its own, as attention has. `layers` are from :func:`_layers`."""
    import keras

    every = [one for one in model._flatten_layers() if isinstance(one, keras.layers.Dropout) and one.rate]
    return len(every) > sum(not isinstance(one, str) and one > 0 for one in layers)


def _norms(model):
    """Yields `(BatchNorm, layer)` of each batch normalization."""
    import keras

    for one in model._flatten_layers():
        if type(one) is keras.layers.BatchNormalization and one.built:
            own = (one.moving_mean, one.moving_variance, one.gamma if one.scale else None, one.beta if one.center else None)
            names = (None if weight is None else weight.path for weight in own)
            fields = {"momentum": 1 - one.momentum, "unbiased": False, "is_frozen": not one.trainable}
            yield BatchNorm(one.path, *names, one.epsilon, one.axis, **fields), one


@contextmanager
def _with_calls(model, *finders):
    """Replaces the `call` of layers during a `with` block. `finder(layer)` returns the function in its place, or None; the first
    one counts."""
    pairs = [(layer, next(filter(None, (find(layer) for find in finders)), None)) for layer in model._flatten_layers()]
    layers = {layer: call for layer, call in pairs if call}
    try:
        for layer, call in layers.items():
            layer.call = call
        yield
    finally:
        for layer in layers:
            vars(layer).pop("call", None)


def _affine(layer, scale, shift):
    """Returns the `call` of a normalization as `x * scale + shift`."""
    import keras

    def by_channel(vector, x):
        shape = [1] * len(x.shape)
        shape[layer.axis] = -1
        return keras.ops.convert_to_tensor(vector.reshape(shape))

    return lambda x, **_: x * by_channel(scale, x) + by_channel(shift, x)


def _dropout(layer):
    """Returns the `call` of a layer of Dropout that drops values in exports of the backend torch, or None for other layers."""
    import keras
    from torch.nn import functional

    if not isinstance(layer, keras.layers.Dropout) or not layer.rate:
        return None
    return lambda x, **_: functional.dropout(x, layer.rate, True)


def _prelu(layer):
    """Returns the `call` of a PReLU as one operator, or None for other layers. Keras' own exports fold a sign into its slopes."""
    import keras
    import torch

    if type(layer) is not keras.layers.PReLU or not layer.built:
        return None

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(context, x, slopes):
            return torch.where(x < 0, x * slopes, x)

        @staticmethod
        def symbolic(graph, x, slopes):
            return graph.op("PRelu", x, slopes)

    return lambda x, **_: Operator.apply(x, layer.alpha.value)


@contextmanager
def _attention_in_inference(model, training):
    """Lets Keras export attention as without its dropout during a `with` block, but for training: it has other operators."""
    import keras

    every = model._flatten_layers()
    rates = {one: one._dropout for one in every if isinstance(one, keras.layers.MultiHeadAttention) and not training}
    try:
        for layer in rates:
            layer._dropout = 0.0
        yield
    finally:
        for layer, rate in rates.items():
            layer._dropout = rate


def _exported(model, affine, training):
    import keras

    norms = {layer.path: _affine(layer, *affine[norm.name]) for norm, layer in _norms(model) if norm.name in affine}
    finders = [lambda layer: norms.get(layer.path)]
    if keras.backend.backend() == "torch":
        finders += [recurrent_call, norm_call, _prelu]
    if training:
        finders.append(_dropout)
    attention = _attention_in_inference(model, training)
    with tempfile.TemporaryDirectory() as folder, silent(), _with_calls(model, *finders), attention:
        path = Path(folder) / "model.onnx"
        try:
            model(_zeros(model))  # Keras exports models that were called
            model.export(str(path), format="onnx", verbose=False)
        except Exception as error:  # its own types, and any error of a layer
            raise export_error(model.name, error, "Keras", 'model.export("model.onnx", format="onnx")') from None
        return onnx.load(path)
