"""Conditions for folding constants. The result must equal the result of ONNX, which computes one operator after the other in
binary32.

A factor is folded only if intermediate values stay in the range of binary32. Factors above 2^32 or below 2^-32 remain separate
operators, as do factors that would make normal weights infinite or subnormal.

Shifts are folded only if they do not cancel out. Binary32 rounds each intermediate value with a relative error of 2^-24: x +
12582912 is an integer, so subtracting 12582912 does not restore x. :class:`FoldedConstants` records the magnitude of such
intermediate constants.
"""

from dataclasses import dataclass, replace

import numpy as np

from ..ir.errors import ModelError

__all__ = ["FoldedConstants", "folded_after", "folded_sum", "gentle", "keeps_range", "together", "drowns", "check_cancellation"]

_STEEP = 2.0**32
_LEAST, _INFINITE = 2.0**-126, 2.0**128 - 2.0**119
_SHIFT = 2.0**14  # largest ratio to the remaining constant; an error of 2^-24 is then 1/4 unit in the last place of bfloat16
_SUM = 2.0**8  # largest ratio to the weights of a sum: exact for operands of at least 2^-6, less exact for smaller operands


@dataclass(frozen=True, eq=False)
class FoldedConstants:
    """The magnitude of the constants that were folded into a node, before they cancelled: the largest intermediate value that
    ONNX computes for an input of 0.

    `size` is the magnitude per channel, multiplied by the factors that follow. `title` is the title of the node folded last.
    """

    size: np.ndarray
    title: str


def folded_after(node, scale, shift, title):
    """Returns the :class:`FoldedConstants` of a node after multiplication by `scale`. Returns None if no constants have been
    folded.

    `shift` is the node's own constant before the multiplication. `scale` may also be an array of weights.
    """
    sizes = [] if node.folded is None else [node.folded.size]
    sizes += [] if shift is None else [np.abs(shift)]
    return FoldedConstants(sum(sizes) * (1 if scale is None else np.abs(scale)), title) if sizes else None


def folded_sum(one, two):
    """Returns the :class:`FoldedConstants` of the sum of two values, from those of the values. None stands for no folded
    constants."""
    return two if one is None else one if two is None else FoldedConstants(one.size + two.size, two.title)


def gentle(scale):
    """Returns True if every factor is 0 or has a magnitude from 2^-32 to 2^32, so that the factors may be folded."""
    sizes = np.abs(scale)
    return bool(((sizes == 0) | (sizes >= 1 / _STEEP) & (sizes <= _STEEP)).all())


def keeps_range(before, after):
    """Returns True if no weight that is normal in bfloat16 becomes subnormal or infinite, given the weights `before` and `after`
    folding."""
    before, after = np.abs(before), np.abs(after)
    small = (after < _LEAST) & (after > 0) & (before >= _LEAST)
    return not (small | (after >= _INFINITE) & (before < _INFINITE)).any()


def drowns(shift, factors, taps):
    """Returns True if values times `factors` may cancel the constant `shift`, and a sum that starts from `shift` loses digits of
    the values of other `taps`, which are much smaller. An example is (1 - mask) * -1e9 + values: -1e9 + values + 1e9."""
    others = [np.abs(tap.weights).max() for tap in taps if tap.matrix is None and tap.weights.size]
    if shift is None or not others:
        return False
    size = np.abs(np.where(np.isfinite(shift), shift, 0)).max(initial=0)
    return bool(_SUM * min(others) < size <= _SUM * np.abs(factors).max(initial=0))


def together(taps, size, title):
    """Merges taps that scale the same values into one tap. With separately rounded weights, a difference such as x - 0.999 x
    would lose most of its digits. `size` is the (height, width) of the sums; `title` names the operator in errors."""
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
                    f"{title}: factors of up to {most.max():.4g} of the same values cancel down to {np.abs(weights).min():.4g}; "
                    "ONNX loses low digits of the values there, the core does not; remove these factors from the model"
                )
            first = replace(first, weights=weights, select=None)
        result.append(first)
    return result


def check_cancellation(nodes):
    """Raises ModelError for sums whose folded constants cancel so far that ONNX loses digits in binary32."""
    for node in nodes:
        folded = getattr(node, "folded", None)
        if folded is None:
            continue
        left = 0 if node.bias is None else np.abs(node.bias)
        good = folded.size <= _SHIFT * left
        sums = [sum(np.abs(tap.weights).sum((0, 1, 2)) for tap in part.taps) for part in node.parts]
        if any(len(part.taps) > 1 or part.taps[0].weights[..., 0].size > 1 for part in node.parts):
            good = good | (folded.size <= _SUM * np.stack(sums))
        if not good.all():
            size = folded.size[..., ~good.all(axis=tuple(range(good.ndim - 1)))].max()
            raise ModelError(
                f"{folded.title}: cancels out constants of {size:.4g} that are added before; ONNX rounds intermediate values of "
                "that size, the core does not; remove these constants from the model"
            )
