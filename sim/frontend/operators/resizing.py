"""Resize and Upsample: the nearest values by whole factors, which only change the index map, and linear interpolation."""

import numpy as np

from ...ir.errors import ModelError
from ..index.values import SymbolicTensor, limited, show
from ..registry import SHAPES, operator
from .interpolation import COORDINATES, interpolated

__all__ = []

#: Modes of a Resize that repeat each value in a block: (coordinate_transformation_mode, nearest_mode).
_BLOCKS = (
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("half_pixel_symmetric", "round_prefer_floor"),
    ("half_pixel_symmetric", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
    ("asymmetric", "floor"),
    ("tf_half_pixel_for_nn", "floor"),
)


_RESIZE = (
    "mode",
    "coordinate_transformation_mode",
    "nearest_mode",
    "antialias",
    "keep_aspect_ratio_policy",
    "axes",
    "cubic_coeff_a",  # of the mode cubic alone
    "extrapolation_value",  # of tf_crop_and_resize alone
)


@operator("Resize", group=SHAPES, on_constants=False, attributes=_RESIZE)
@operator("Upsample", group=SHAPES, on_constants=False, attributes=("mode", "scales"))
def resize(step, tensor):
    """Handles Resize and Upsample that repeat the nearest value, by integer factors, or interpolate linearly."""
    if step.arguments[0] is not tensor:
        raise ModelError(f"{step.title}: its sizes must be constant")
    attributes = {name: value.decode() for name, value in step.attributes.items() if isinstance(value, bytes)}
    mode = attributes.get("mode", "nearest")
    if step.operator == "Upsample" or step.opset < 11:
        ways = _BLOCKS[-2]
    else:
        default = ("half_pixel", "round_prefer_floor")
        ways = tuple(
            attributes.get(name, usual) for name, usual in zip(("coordinate_transformation_mode", "nearest_mode"), default)
        )
    linear = mode == "linear" and ways[0] in COORDINATES
    if not linear and (mode != "nearest" or ways not in _BLOCKS):
        raise ModelError(
            f"{step.title}: mode {mode}, {ways[0]}, {ways[1]} is not supported; linear, and nearest with "
            f"{', '.join(' and '.join(one) for one in _BLOCKS)} are"
        )
    if step.attributes.get("antialias", 0) or attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise ModelError(f"{step.title}: antialias and keep_aspect_ratio_policy are not supported; leave them out")
    factors = _factors(step, tensor)
    if linear:
        return interpolated(step, tensor, factors, ways[0])
    sample = tensor.sample
    for axis, (factor, _) in enumerate(factors):
        if factor < 1 or factor != int(factor):
            raise ModelError(
                f"{step.title}: scales axis {axis} of {show(tensor)} by {factor:g}; only whole factors are supported"
            )
    limited(step, tensor.size, *(int(factor) for factor, _ in factors))
    for axis, (factor, _) in enumerate(factors):
        sample = sample.repeat(int(factor), axis=axis)
    return tensor.permuted(sample)


def _factors(step, tensor):
    """Returns `(scale, size of the result)` of a Resize, for each axis of the tensor."""
    dims, batch = tensor.shape(tensor.samples or 1), tensor.batch
    axes = step.attributes.get("axes") or range(len(dims))
    lists = (step.attributes.get("scales"), step.argument(1)) if step.operator == "Upsample" or step.opset < 11 else ()
    scales, sizes = next((one for one in lists if one is not None), None), None
    if not lists:
        scales, sizes = (None if one is None or not np.size(one) else one for one in (step.argument(2), step.argument(3)))
    wanted = sizes if scales is None else scales
    if wanted is None or scales is not None and sizes is not None or isinstance(wanted, SymbolicTensor):
        raise ModelError(f"{step.title}: needs either scales or sizes, which must be constant")
    wanted = np.asarray(wanted, np.float64).reshape(-1).tolist()
    if len(wanted) != len(axes) or len({axis % len(dims) for axis in axes}) < len(axes):
        raise ModelError(f"{step.title}: {len(wanted)} scales or sizes for the axes {list(axes)} of {show(tensor)}")
    factors = [(1, size) for size in tensor.dims]
    for axis, number in zip(axes, wanted):
        axis %= len(dims)
        if axis == batch and sizes is not None and tensor.is_open:
            raise ModelError(
                f"{step.title}: its sizes fix the batch, which is open; give scales, or name the other axes (opset 18)"
            )
        factor = number if sizes is None else number / dims[axis]
        if axis == batch and factor != 1:
            raise ModelError(f"{step.title}: repeats samples of {show(tensor)}")
        size = int(number if scales is None else np.floor(tensor.dims[axis] * np.float32(number)))
        if axis != batch and size < 1:
            raise ModelError(f"{step.title}: leaves nothing of axis {axis} of {show(tensor)}")
        factors[axis] = factors[axis] if axis == batch else (factor, size)
    return factors
