"""PyTorch modules as models."""

import logging
import tempfile
import warnings
from contextlib import contextmanager
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

__all__ = ["as_torch", "from_torch"]


def from_torch(module, example, probabilities=False, effort="best"):
    """Converts a PyTorch module. :meth:`Model.fit` stores the trained weights in it.

    The module is exported as in inference, with :func:`torch.onnx.export`. Dropout layers (`torch.nn.Dropout`) give `fit` its
    dropout rate. This needs the packages torch and onnxscript: `pip install 'amaranth-tpu[torch]'`.

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
        raise ImportError(f"from_torch needs {' and '.join(missing)}: pip install 'amaranth-tpu[torch]'")
    import torch

    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    title = type(module).__name__
    inputs = tuple(map(_two_samples, example if isinstance(example, tuple) else (example,)))
    source = Source(
        title,
        lambda: {name: one.detach().cpu().numpy().copy() for name, one in _weights(module)},
        lambda values: _write(module, values),
        lambda: _exported(module, inputs, title),
        dropout_rate(title, list(_layers(module))),
    )
    file = TemporaryFile(source.model, title)
    return Model(load_network(file.path, keep_softmax=probabilities), effort, file, source)


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
    """Yields `(name, tensor)` of the floating-point parameters and buffers."""
    for name, one in [*module.named_parameters(), *module.named_buffers()]:
        if one.is_floating_point():
            yield name, one


def _write(module, values):
    import torch

    with torch.no_grad():
        for name, one in _weights(module):
            one.copy_(torch.from_numpy(np.ascontiguousarray(values[name])))


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

    tensor = torch.as_tensor(example).detach().cpu()
    if not tensor.ndim:
        raise ModelError("example must have samples along its first axis, such as torch.zeros(1, 3, 32, 32)")
    return tensor if len(tensor) > 1 else torch.cat([tensor, tensor])


@contextmanager
def _as_in_inference(module):
    """Switches all parts of a module to inference for the duration of a `with` block, and silences warnings and log lines."""
    modes, disabled = [(one, one.training) for one in module.modules()], logging.root.manager.disable
    try:
        module.eval()
        logging.disable(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        for one, mode in modes:
            one.training = mode


def _exported(module, inputs, title):
    import torch

    batch = torch.export.Dim("batch")
    with tempfile.TemporaryDirectory() as folder, _as_in_inference(module):
        path = Path(folder) / "model.onnx"
        shapes = tuple({0: batch} for _ in inputs)
        try:
            options = {"dynamo": True, "dynamic_shapes": shapes, "external_data": False, "verbose": False}
            torch.onnx.export(module, inputs, path, **options)
        except Exception as error:  # its own types, and any error of the module
            raise ModelError(f"{title}: PyTorch cannot export it: {printable(error, 300)}") from None
        return onnx.load(path)
