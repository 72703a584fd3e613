"""Layers of PyTorch and Keras that act in training alone, in a way that `fit` does not have. `fit` refuses them by name."""

import itertools
from contextlib import suppress

from ..ir.errors import ModelError
from .numbered_weights import MOST_NUMBERS

__all__ = ["refused_in_keras", "refused_in_torch", "without_gradient"]

_DROPOUT = "put a Dropout layer in its place"
_DECAY = "leave it out, and give fit the optimizer tpu.Adam(weight_decay=0.01)"
_BEFORE = "give it dropout=0.0, and put a Dropout layer before it"
_LABELS = "leave out Masking and mask_zero, and give the label -100 to positions that do not count"
_OF_KERAS = {
    "SpatialDropout1D": _DROPOUT,
    "SpatialDropout2D": _DROPOUT,
    "SpatialDropout3D": _DROPOUT,
    "AlphaDropout": _DROPOUT,
    "GaussianDropout": _DROPOUT,
    "GaussianNoise": _DROPOUT,
    "ActivityRegularization": _DECAY,
}
_OF_TORCH = ("Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout")


def refused_in_keras(model):
    """Returns the ModelError of the first layer of a Keras model that `fit` would ignore, or None."""
    found = ((layer, *one) for layer in model._flatten_layers(include_self=False) for one in _keras_causes(layer))
    masked = [one._keras_history.operation for one in model.outputs if getattr(one, "_keras_mask", None) is not None]
    found = itertools.chain(found, ((layer, "has a mask, by which Keras leaves out positions", _LABELS) for layer in masked))
    return next((_error(model.name, f"{layer.name} ({type(layer).__name__})", *one) for layer, *one in found), None)


def _keras_causes(layer):
    """Yields `(cause, remedy)`."""
    kind = type(layer).__name__
    if kind in _OF_KERAS and any(getattr(layer, name, 0) for name in ("rate", "stddev", "l1", "l2")):
        yield "acts in training alone", _OF_KERAS[kind]
    if kind == "Dropout" and layer.rate and layer.noise_shape is not None:
        yield "has noise_shape", "leave noise_shape out"
    if kind == "SpectralNormalization":
        yield "changes its weights beside the optimizer", "leave it out"
    if kind.startswith("Random"):
        yield "changes samples in training alone", "leave it out, and change the samples before fit"
    if hasattr(layer, "recurrent_dropout") and layer.recurrent_dropout:
        yield "has recurrent_dropout", "give it recurrent_dropout=0.0, and put a Dropout layer after it"
    if (hasattr(layer, "recurrent_dropout") or kind in ("Attention", "AdditiveAttention")) and getattr(layer, "dropout", 0):
        yield "has dropout", _BEFORE
    if layer.activity_regularizer or any(one.regularizer for one in layer.trainable_weights):
        yield "has a regularizer", _DECAY
    if any(one.constraint for one in layer.trainable_weights):
        yield "has a constraint", "leave it out"


def refused_in_torch(module, is_other=False):
    """Returns the ModelError of the first layer of a PyTorch module that `fit` would ignore, or None. `is_other`: the module
    computes other results in training."""
    from torch import nn

    title = type(module).__name__
    for name, layer in module.named_modules():
        kind, remedy = type(layer).__name__, None
        for option, off in (("padding_idx", None), ("scale_grad_by_freq", False)):
            if isinstance(layer, nn.Embedding) and getattr(layer, option) is not off:
                return _error(title, f"{name} ({kind})".lstrip(), f"has {option}", f"leave {option} out")
        if kind in _OF_TORCH and layer.p:
            remedy = _DROPOUT
        elif isinstance(layer, nn.RNNBase) and layer.dropout and layer.num_layers > 1:
            remedy = "give it dropout=0.0, or divide it into layers with Dropout layers between them"
        if any(one._backward_hooks for one in layer.parameters(recurse=False)):
            return _error(title, f"{name} ({kind})".lstrip(), "has a hook that changes a gradient", "remove the hook")
        if remedy:
            return _error(title, f"{name} ({kind})".lstrip(), "acts in training alone", remedy)
    if is_other:
        remedy = "let forward return the same in training and in inference"
        return ModelError(f"{title}: it computes other results in training, which fit does not have; {remedy}")
    return None


def without_gradient(weights, call):
    """Returns the names of weights that no gradient reaches, as before `detach`, so that PyTorch does not train them.

    Parameters
    ----------
    weights : dict of str to torch.nn.Parameter
    call : callable
        Returns results on examples.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    if not weights or sum(one.numel() for one in weights.values()) > MOST_NUMBERS:  # they are not trained
        return set()
    with suppress(Exception), torch.enable_grad():  # the export has an error's message
        results = [one.sum() for one in tree_leaves(call()) if isinstance(one, torch.Tensor) and one.requires_grad]
        found = torch.autograd.grad(results, list(weights.values()), allow_unused=True) if results else [None] * len(weights)
        return {name for name, gradient in zip(weights, found) if gradient is None}
    return set()


def _error(title, layer, cause, remedy):
    return ModelError(f"{title}: its layer {layer} {cause}, which fit does not have; {remedy}")
