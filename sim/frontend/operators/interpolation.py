"""Linear interpolation along axes, for Resize and Upsample.

Each row of a result is a mean of two rows of the operand, with constant weights. A node has a region for each run of rows with
the same weights and a constant distance between the rows that they read. Height and width take a node each.
"""

import numpy as np

from ...fusion.nodes import Linear, SumRegion, Tap
from ...ir.errors import ModelError
from ..index.values import limited, show, whole
from ..index.views import arrangement, in_place

__all__ = ["COORDINATES", "interpolated"]

_MOST_REGIONS = 1024  # of one node

#: Coordinate transformation modes: functions of the results' positions, the scale, and both lengths.
COORDINATES = {
    "half_pixel": lambda x, scale, have, size: (x + 0.5) / scale - 0.5,
    "half_pixel_symmetric": lambda x, scale, have, size: have / 2 * (1 - size / (scale * have)) + (x + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda x, scale, have, size: (x + 0.5) / scale - 0.5 if size > 1 else 0 * x,
    "align_corners": lambda x, scale, have, size: x * (have - 1) / (size - 1) if size > 1 else 0 * x,
    "asymmetric": lambda x, scale, have, size: x / scale,
    "tf_half_pixel_for_nn": lambda x, scale, have, size: (x + 0.5) / scale,
}


def interpolated(step, tensor, factors, mode):
    """Returns a tensor that is interpolated linearly. `factors` has `(scale, size)` for each axis of the tensor. `mode` is a key
    of :data:`COORDINATES`."""
    sample = tensor.sample
    for axis, (_, size) in enumerate(factors):
        if tensor.dims[axis] == 1:
            sample = sample.repeat(size, axis=axis)
    stretched = [axis for axis, have in enumerate(tensor.dims) if have > 1 and factors[axis] != (1, have)]
    if not stretched:
        return tensor.permuted(sample)
    lengths = [factors[axis][0] * tensor.dims[axis] for axis in stretched]
    if mode == "align_corners" and any(abs(length - round(length)) > 1e-3 for length in lengths):
        raise ModelError(
            f"{step.title}: align_corners with scales that give no whole number of rows, which interpreters read differently; "
            f"give its sizes, of an open batch only those of the attribute axes (opset 18)"
        )
    limited(step, *(size for _, size in factors))
    tensor, dims = tensor.permuted(sample), sample.shape
    fixed = [axis for axis in range(1, len(dims)) if axis not in stretched and axis != tensor.batch]
    tensor, seen, roles = arrangement(step, tensor, fixed[0] if fixed else None)
    if not set(stretched) <= set(roles[1:]):
        raise ModelError(
            f"{step.title}: interpolates along the axes {stretched} of {show(tensor)}; at most height and width are supported, "
            f"and an axis of channels beside them"
        )
    node = seen.source
    for along in (1, 0):  # columns of few rows first: the core stores each value of a column by itself
        axis, order = roles[1 + along], (seen.rows, seen.columns)[along]
        scale, size = (1, len(order)) if axis is None else factors[axis]
        if axis in stretched or not np.array_equal(order, np.arange(len(order))):
            node = _stretched(step, node, along, order, COORDINATES[mode](np.arange(size), scale, len(order), size))
    sizes = [factors[axis][1] if axis in stretched else size for axis, size in enumerate(dims)]
    return tensor.of(node, in_place(whole(node)[seen.channels], sizes, roles))


def _stretched(step, source, along, order, places):
    """Returns a node with the values of `source` at these places, between its rows (`along` 0) or columns (1). `order` has the
    row or column of the node for each row or column of the operand."""
    places = np.clip(places, 0, len(order) - 1)
    low = np.floor(places).astype(int)
    high, share = np.minimum(low + 1, len(order) - 1), places - low
    runs = list(_runs(order[low], order[high], share))
    if len(runs) > _MOST_REGIONS:
        raise ModelError(
            f"{step.title}: interpolates {len(runs)} rows; at most {_MOST_REGIONS} are supported; resize on the host"
        )
    size, channels, parts = list(source.shape[:2]), source.shape[2], []

    def pair(value, other):
        return (value, other) if along == 0 else (other, value)

    for first, end, stride in runs:
        extent = pair(end - first, size[1 - along])
        weights = ((order[low[first]], 1 - share[first]), (order[high[first]], share[first]))
        taps = [
            Tap(
                source,
                np.full((1, 1, 1, channels), weight),
                stride=pair(stride, 1),
                padding=pair(-int(place), 0),
                groups=channels,
                exact=True,
            )
            for place, weight in weights
            if weight
        ]
        parts.append(SumRegion(tuple(taps), extent, pair(first, 0)))
    return Linear(**step.titles, shape=(*pair(len(places), size[1 - along]), channels), parts=tuple(parts))


def _runs(low, high, share):
    """Divides the rows of a result into runs that one region can compute. Yields `(first, end, stride)`."""
    first = 0
    while first < len(low):
        end, stride = first + 1, max(1, low[first + 1] - low[first]) if first + 1 < len(low) else 1
        while (
            end < len(low)
            and share[end] == share[first]
            and low[end] - low[end - 1] == stride
            and (share[end] == 0 or high[end] - high[end - 1] == stride)
        ):
            end += 1
        yield first, end, int(stride) if end - first > 1 else 1
        first = end
