"""Lower bounds of the values of nodes, derived from their operations."""

import numpy as np

from ...fusion.nodes import Affine, Copy, Linear

__all__ = ["least"]

_NOT_NEGATIVE = ("relu", "sigmoid", "exp", "abs", "softplus", "root", "inverse_root")
_DEEPEST = 16


def least(node, depth=_DEEPEST):
    """Returns a lower bound of all values of a node in exact arithmetic. Returns -infinity if no bound is known. At most `depth`
    nodes in a chain are examined."""
    if depth and isinstance(node, Affine) and (node.scale is None or (node.scale >= 0).all()):
        low = least(node.source, depth - 1)
        low = low if node.scale is None or low == 0 else low * float(np.min(node.scale) if low > 0 else np.max(node.scale))
        return low + (0.0 if node.shift is None else float(np.min(node.shift)))
    if depth and isinstance(node, Copy):
        return min((0.0, *(least(source, depth - 1) for source in node.sources)))
    if not isinstance(node, Linear):
        return -np.inf
    if node.times is not None:
        (*_, tap), single = node.parts[0].taps, len(node.parts) == 1 and len(node.parts[0].taps) == 1
        square = single and node.bias is None and tap.source is node.times and tap.identity(node.parts[0].size)
        return 0.0 if square else -np.inf
    if node.softmax or node.function.name in _NOT_NEGATIVE:
        return 0.0 if node.softmax in ("", "softmax") else -np.inf
    if node.function.name == "clip":
        return node.function.parameters[0]
    taps = [tap for part in node.parts for tap in part.taps]
    if not depth or not node.open or any(tap.matrix is not None or (tap.weights < 0).any() for tap in taps):
        return -np.inf
    if any(least(tap.source, depth - 1) < 0 for tap in taps):
        return -np.inf
    return 0.0 if node.bias is None else float(np.min(node.bias))
