"""Normalizations of Keras over channels as operators of ONNX, in exports by the backend torch. Keras' own exports write them out
in forms whose scales and shifts are not found, or fail."""

import math
from contextlib import contextmanager

__all__ = ["with_norm_operators"]


@contextmanager
def with_norm_operators(model):
    """Exports LayerNormalization and RMSNormalization over the last axis, and GroupNormalization of the last axis, as operators
    during a `with` block."""
    layers = [(one, call) for one in model._flatten_layers() if one.built and (call := _call(one))]
    try:
        for one, call in layers:
            one.call = lambda inputs, training=None, mask=None, call=call: call(inputs)
        yield
    finally:
        for one, _ in layers:
            vars(one).pop("call", None)


def _call(layer):
    """Returns the function from inputs to results of a layer, or None for other layers."""
    import keras
    from torch.nn import functional

    def own(name):
        weight = getattr(layer, name, None)
        return None if weight is None else weight.value

    kind, axes = type(layer), getattr(layer, "axis", None)
    is_last = axes in (-1, [-1], (-1,))
    if kind is keras.layers.LayerNormalization and is_last and not getattr(layer, "rms_scaling", False):
        return lambda x: functional.layer_norm(x, [int(x.shape[-1])], own("gamma"), own("beta"), layer.epsilon)
    if kind is keras.layers.RMSNormalization and is_last:
        return lambda x: x / (x.square().mean(-1, keepdim=True) + layer.epsilon).sqrt() * own("scale")
    if kind is keras.layers.GroupNormalization and is_last:

        def call(x):
            last = x.dim() - 1  # the exporter needs axes that count from the start
            x = x.permute(0, last, *range(1, last))
            sizes = [int(size) for size in x.shape[1:]]
            x = x.reshape(-1, layer.groups, math.prod(sizes) // layer.groups)
            x = x - x.mean(-1, keepdim=True)
            x = (x / (x.square().mean(-1, keepdim=True) + layer.epsilon).sqrt()).reshape(-1, *sizes)
            x = x.permute(0, *range(2, last + 1), 1)
            x = x if own("gamma") is None else x * own("gamma")
            return x if own("beta") is None else x + own("beta")

        return call
    return None
