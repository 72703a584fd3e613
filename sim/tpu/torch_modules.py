"""PyTorch modules as models."""

import re
import tempfile
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

from ..data.printable import printable
from ..ir.errors import ModelError
from ..trainer.errors import ArgumentError
from .arguments import framework_of, needs_conversion, shown
from .batch_norms import BatchNorm
from .dropouts import dropout_rate
from .exports import export_error, shapes_of, silent
from .model import Model
from .source import Source
from .temporary_file import TemporaryFile
from .training_layers import refused_in_torch, without_gradient

__all__ = ["as_torch", "from_torch"]


def from_torch(module, example, probabilities=False, effort="best"):
    """Converts a PyTorch module. :meth:`Model.fit` stores the trained weights in it.

    The module is exported as in inference, with :func:`torch.onnx.export`. Dropout layers (`torch.nn.Dropout`) give `fit` its
    dropout rate. This needs the packages torch and onnxscript: `pip install torch onnxscript`.

    Parameters
    ----------
    module : torch.nn.Module
    example : tensor or array, or tuple of them
        Inputs of the module: samples along the first axis, such as `torch.zeros(1, 3, 32, 32)`. Only shapes and types matter.
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
        If PyTorch cannot export the module, or the core cannot compute it.
    ArgumentError
        If `module` or `example` is an object of another kind.

    Warns
    -----
    UserWarning
        If the module is in training mode, and :meth:`Model.fit` would refuse it because trained weights cannot be stored in it.

    Examples
    --------
    >>> import torch                                                 # doctest: +SKIP
    >>> from amaranth_tpu import tpu
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))  # doctest: +SKIP
    >>> tpu.from_torch(net, torch.zeros(1, 8))                       # doctest: +SKIP
    <Model Sequential: input (None, 8) -> linear_1 (None, 2)>
    """
    missing = [name for name in ("torch", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ImportError(f"from_torch needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    import torch

    if not isinstance(module, torch.nn.Module) or framework_of(module) == "keras":
        raise ArgumentError(f"`module` must be a torch.nn.Module, not {needs_conversion(module)}")
    title = type(module).__name__
    _check_norms(module, title)
    inputs = tuple(map(_two_samples, example if isinstance(example, tuple) else (example,)))
    is_random, is_other = _in_training(module, inputs)
    source = Source(
        title,
        lambda: {name: _array(one) for name, one in _weights(module)},
        lambda values: _write(module, values),
        lambda affine, training=False: _exported(module, inputs, title, affine or {}, training),
        dropout_rate(title, list(_layers(module)), is_random),
        {name for name, one in _weights(module) if not one.requires_grad} | _without_gradient(module, inputs),
        list(_norms(module)),
        refused_in_torch(module, is_other),
    )
    if module.training:
        source.warn("call module.eval() before from_torch if you only run it")
    file = TemporaryFile(source.model, title)
    return Model(file.load(keep_softmax=probabilities), effort, file, source)


def as_torch(model, on="golden", core=None):
    """Returns a :class:`torch.nn.Module` that computes a model on a backend: from a tensor to a tensor, or to a dict of tensors
    if the model has several outputs. It is for inference, without gradients.

    Parameters
    ----------
    model : Model
        A model from any source.
    on, core
        Backend and configuration, as in :meth:`Model.predict`.

    Examples
    --------
    >>> import torch                                                 # doctest: +SKIP
    >>> from amaranth_tpu import tpu
    >>> tpu.as_torch(tpu.load("d"), on="model", core="tiny")(torch.zeros(2, 784)).shape  # doctest: +SKIP
    torch.Size([2, 10])
    """
    import torch

    class OnBackend(torch.nn.Module):
        def forward(self, x):
            found = model.predict(x.detach().cpu().numpy(), on, core=core)
            if isinstance(found, dict):
                return {name: torch.from_numpy(one).to(x.device) for name, one in found.items()}
            return torch.from_numpy(found).to(x.device)

    return OnBackend()


def _weights(module):
    for name, one in [*module.named_parameters(), *module.named_buffers()]:
        if one.is_floating_point():
            yield name, one


def _array(tensor):
    """Returns a copy of a tensor. Types that numpy does not have become the one of ml_dtypes, or float32."""
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy().copy()
    except TypeError:
        kind = getattr(ml_dtypes, str(tensor.dtype).partition(".")[2], np.float32)
        return tensor.float().numpy().astype(kind)


def _write(module, values):
    import torch

    with torch.no_grad():
        for name, one in _weights(module):
            one.copy_(torch.from_numpy(np.array(values[name], order="C")))


def _layers(module):
    """Yields the layers for :func:`.dropout_rate`, in the order of their definition."""
    import torch

    for one in module.modules():
        if isinstance(one, torch.nn.Dropout):
            yield one.p
        elif any(True for _ in one.parameters(recurse=False)):
            yield "dense" if isinstance(one, torch.nn.Linear) else "other"


def _two_samples(example):
    """Returns an example with at least two samples on the CPU. With one sample, PyTorch would export a fixed batch."""
    import torch

    try:
        tensor = torch.as_tensor(example).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"`example` must be a tensor or array, or a tuple of them, not {shown(example)}") from None
    if not tensor.ndim or not len(tensor):
        raise ArgumentError("`example` must have samples along its first axis, such as torch.zeros(1, 3, 32, 32)")
    return tensor if len(tensor) > 1 else torch.cat([tensor, tensor])


def _in_training(module, inputs):
    """Returns `(True if a module drops values in training, True if it computes other results there for another reason, such as
    noise)`, not counting its layers of Dropout and its normalizations."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    drawn, results = [], []

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names = [one.name for one in function._schema.arguments]
            rate = (dict(zip(names, args)) | (kwargs or {})).get("dropout_p", "dropout_p" not in names)  # of attention
            if torch.Tag.nondeterministic_seeded in function.tags and rate:
                drawn.append(re.search("dropout|bernoulli|attention", function.name()))
            return function(*args, **kwargs or {})

    mha = torch.backends.mha
    is_fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)  # which leaves out results of padding, in inference alone
    try:
        for training in (False, True):
            with _with_modes(module, training, torch.nn.Dropout), torch.random.fork_rng(devices=[]), torch.no_grad():
                buffers = {name: one.clone() for name, one in module.named_buffers()}  # a forward in training may change its own
                with suppress(Exception), Listener():  # the export has an error's message
                    found = torch.func.functional_call(module, buffers, inputs)
                    results.append([one for one in tree_leaves(found) if isinstance(one, torch.Tensor)])
    finally:
        mha.set_fastpath_enabled(is_fast)
    shapes = [[one.shape for one in some] for some in results]
    if drawn or len(results) < 2 or shapes[0] != shapes[1]:
        return bool(drawn), not all(drawn) or not drawn and len(results) == 2
    near = (torch.allclose(one.double(), other.double(), 1e-2, 1e-3, equal_nan=True) for one, other in zip(*results))
    return False, not all(near)


def _without_gradient(module, inputs):
    weights = {name: one for name, one in module.named_parameters() if one.requires_grad}
    with _with_modes(module):
        return without_gradient(weights, lambda: module(*inputs))


@contextmanager
def _with_modes(module, training=False, others=()):
    """Switches all parts of a module to inference during a `with` block, in silence; or all but normalizations, and the classes
    `others`, to training."""
    from torch.nn.modules.batchnorm import _NormBase

    modes = [(one, one.training) for one in module.modules()]
    try:
        for one, _ in modes:
            one.training = training and not isinstance(one, (_NormBase, others))
        with silent():
            yield
    finally:
        for one, mode in modes:
            one.training = mode


def _norms(module):
    """Yields the :class:`.BatchNorm` of each layer that normalizes by running statistics in inference."""
    from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

    for name, one in module.named_modules():
        is_norm = isinstance(one, _BatchNorm) and type(one).forward in (_BatchNorm.forward, SyncBatchNorm.forward)
        if is_norm and one.running_mean is not None:
            names = [f"{name}.{part}".lstrip(".") for part in ("running_mean", "running_var", "weight", "bias")]
            weights, own = (names[2:], [one.weight, one.bias]) if one.affine else ((None, None), [])
            frozen = bool(own) and not any(weight.requires_grad for weight in own)
            momentum = 0.1 if one.momentum is None else one.momentum
            yield BatchNorm(name, *names[:2], *weights, one.eps, 1, momentum, True, frozen)


def _check_norms(module, title):
    """Raises ModelError for a layer that normalizes by the statistics of the batch, in inference, too."""
    from torch.nn.modules.batchnorm import _BatchNorm

    for name, one in module.named_modules():
        if isinstance(one, _BatchNorm) and one.running_mean is None:
            raise ModelError(
                f"{title}: its layer {name or type(one).__name__} has no running statistics, so that the results of a sample "
                "depend on the others of the batch; give it track_running_stats=True"
            )


def _by_channel(vector, x):
    return vector.reshape(1, -1, *[1] * (x.dim() - 2))


@contextmanager
def _with_forward(module, forwards):
    """Replaces the forward functions of layers, {name: function}, during a `with` block."""
    layers = {module.get_submodule(name): forward for name, forward in forwards.items()}
    try:
        for layer, forward in layers.items():
            layer.forward = forward
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


@contextmanager
def _with_affine(module, affine):
    """Replaces layers by `x * scale + shift` during a `with` block, for `{name: (scale, shift)}`."""
    import torch

    def forward(layer):
        return lambda x: x * _by_channel(layer.tpu_scale, x) + _by_channel(layer.tpu_shift, x)

    layers = {name: module.get_submodule(name) for name in affine}
    try:
        for name, layer in layers.items():
            for kind, array in zip(("tpu_scale", "tpu_shift"), affine[name]):
                layer.register_buffer(kind, torch.from_numpy(array.copy()))
        with _with_forward(module, {name: forward(layer) for name, layer in layers.items()}):
            yield
    finally:
        for layer in layers.values():
            layer._buffers.pop("tpu_scale", None), layer._buffers.pop("tpu_shift", None)


def _exported(module, inputs, title, affine, training):
    import torch

    batch = torch.export.Dim("batch")
    with tempfile.TemporaryDirectory() as folder, _with_modes(module, training), _with_affine(module, affine):
        path = Path(folder) / "model.onnx"
        try:
            with torch.no_grad():
                module(*inputs)
        except Exception as error:  # any error of the module
            raise ModelError(
                f"{title}: its forward fails on the example, two samples of shape {shapes_of(inputs)}: "
                f"{printable(error, 200)}; give an example of its input"
            ) from None
        shapes = tuple({0: batch} for _ in inputs)
        try:
            options = {"dynamo": True, "dynamic_shapes": shapes, "external_data": False, "verbose": False}
            torch.onnx.export(module, inputs, path, **options)
        except Exception as error:  # of many types
            raise export_error(title, error, "PyTorch", "torch.onnx.export(module, (example,), dynamo=True)") from None
        return onnx.load(path)
