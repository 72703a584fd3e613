"""Normalizations of Keras over channels as operators of ONNX, in exports by the backend torch. Keras' own exports write them out
in forms whose scales and shifts are not found, or fail."""

import math

__all__ = ["norm_call"]


def norm_call(layer):
    """Returns a `call` that exports LayerNormalization and RMSNormalization over the last axis, and GroupNormalization of the
    last axis, as operators. Returns None for other layers."""
    import keras
    from torch.nn import functional

    def own(name):
        weight = getattr(layer, name, None)
        return None if weight is None else weight.value

    if not layer.built:
        return None
    kind, axes = type(layer), getattr(layer, "axis", None)
    is_last = axes in (-1, [-1], (-1,))
    if kind is keras.layers.LayerNormalization and is_last and not getattr(layer, "rms_scaling", False):
        return lambda x, **_: functional.layer_norm(x, [int(x.shape[-1])], own("gamma"), own("beta"), layer.epsilon)
    if kind is keras.layers.RMSNormalization and is_last:
        return lambda x, **_: x / (x.square().mean(-1, keepdim=True) + layer.epsilon).sqrt() * own("scale")
    if kind is keras.layers.GroupNormalization and is_last:

        def call(x, **_):
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
