"""When constants may be merged, so that the result is what ONNX has, which computes one operator after the other in binary32.

A factor may be merged if it leaves binary32 enough room on the way: factors of more than 2^32, or of less than 2^-32, stay
operators of their own, and so do those that would make normal weights infinite or subnormal.

Shifts may be merged if they do not cancel out. Binary32 loses 2^-24 of what there is on the way: x + 12582912 is an integer, so
taking 12582912 away again does not bring x back. A :class:`Loss` keeps the size of what there was.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..ir.errors import ModelError

__all__ = ["Loss", "lost", "both", "gentle", "keeps_range", "together", "check_losses"]

_STEEP = 2.0**32
_LEAST, _INFINITE = 2.0**-126, 2.0**128 - 2.0**119
_SHIFT = 2.0**14  # times what is left: 2^-24 of it is a quarter of bfloat16's last place
_SUM = 2.0**8  # times the weights of a sum: an operand of 2^-6 and above is right, of smaller ones what binary32 leaves


@dataclass(frozen=True, eq=False)
class Loss:
    """The size of what merged constants had made of 0, as seen in the result, for each channel; and the title of the node
    that was merged last."""

    size: np.ndarray
    title: str


def lost(node, scale, shift, title):
    """The Loss of a node that a scale, or what takes the place of one, and more constants come behind; `shift` is its own. None
    if there is none yet."""
    sizes = [] if node.loss is None else [node.loss.size]
    sizes += [] if shift is None else [np.abs(shift)]
    return Loss(sum(sizes) * (1 if scale is None else np.abs(scale)), title) if sizes else None


def both(one, two):
    """The Loss of a sum of two."""
    return two if one is None else one if two is None else Loss(one.size + two.size, two.title)


def gentle(scale):
    """Whether factors may be merged with others."""
    sizes = np.abs(scale)
    return bool(((sizes == 0) | (sizes >= 1 / _STEEP) & (sizes <= _STEEP)).all())


def keeps_range(before, after):
    """Whether weights stay normal numbers of bfloat16 when they are multiplied, so far as they are."""
    before, after = np.abs(before), np.abs(after)
    small = (after < _LEAST) & (after > 0) & (before >= _LEAST)
    return not (small | (after >= _INFINITE) & (before < _INFINITE)).any()


def together(taps, size, title):
    """Taps of sums of this size, with those that scale the same values as one: of x - 0.999 x, bfloat16 would leave nothing."""
    kept = {}
    for tap in taps:
        same = tap.diagonal(size) and gentle(tap.weights)
        kept.setdefault(tap.source if same else tap, []).append(tap)
    result = []
    for first, *others in kept.values():
        if others:
            weights = sum(tap.weights for tap in others) + first.weights
            most = sum(np.abs(tap.weights) for tap in others) + np.abs(first.weights)
            if ((weights != 0) & (most > _SHIFT * np.abs(weights))).any():
                raise ModelError(
                    f"{title}: of factors of up to {most.max():.4g} of the same values, {np.abs(weights).min():.4g} "
                    "is left; ONNX loses last digits of the values in that, the core does not; leave them out"
                )
            first = replace(first, weights=weights, select=None)
        result.append(first)
    return result


def check_losses(nodes):
    """Refuses sums in whose constants more has cancelled out than binary32 would keep."""
    for node in nodes:
        loss = getattr(node, "loss", None)
        if loss is None:
            continue
        left = 0 if node.bias is None else np.abs(node.bias)
        good = loss.size <= _SHIFT * left
        sums = [sum(np.abs(tap.weights).sum((0, 1, 2)) for tap in part.taps) for part in node.parts]
        if any(len(part.taps) > 1 or part.taps[0].weights[..., 0].size > 1 for part in node.parts):
            good = good | (loss.size <= _SUM * np.stack(sums))
        if not good.all():
            size = loss.size[..., ~good.all(axis=tuple(range(good.ndim - 1)))].max()
            raise ModelError(
                f"{loss.title}: cancels out constants of {size:.4g} that are added before; ONNX rounds values of "
                "that size in between, the core does not; leave such constants out of the model"
            )
