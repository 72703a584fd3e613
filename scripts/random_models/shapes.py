"""Reordering, reshaping, cutting and padding."""

import numpy as np
from onnx import TensorProto

from .drawing import Value, block

__all__ = []


def _indices(*numbers):
    return [np.array([number], np.int64) for number in numbers]


@block(2, 3)
def transpose(g, x):
    return g.transposed(x, *g.rng.permutation(len(x.shape)).tolist())


@block(1, 2, 3)
def reshape(g, x):
    """Reshape to one to three axes."""
    size = int(np.prod(x.shape))
    first = g.divisor(size)
    second = g.divisor(size // first)
    shape = g.choose((size,), (first, size // first), (first, second, size // first // second))
    if g.chance(0.2):
        target = g.node("Concat", _first_size(g, x), np.array(shape, np.int64), axis=0)
        return g.value("Reshape", shape, x, target)
    return g.reshaped(x, *shape)


def _first_size(g, x):
    return g.node("Gather", g.node("Shape", x), np.array([0]), axis=0)


@block(2, 3, share=0.7)
def flatten(g, x):
    return g.value("Flatten", (int(np.prod(x.shape)),), x, axis=1)


@block(1, 2, 3)
def sliced(g, x):
    """Slice of one axis, also backwards and with steps."""
    axis = g.integer(0, len(x.shape) - 1)
    size, step = x.shape[axis], g.choose(1, 1, 2, -1, -2)
    first = g.integer(0, size - 1)
    count = g.integer(1, (size - 1 - first) // step + 1 if step > 0 else first // -step + 1)
    end = first + step * count
    end = end if end >= 0 else -(1 << 31)
    shape = [count if one == axis else have for one, have in enumerate(x.shape)]
    return g.value("Slice", shape, x, *_indices(first, end, g.choose(axis + 1, axis - len(x.shape)), step))


@block(1, 2, 3)
def permuted_parts(g, x):
    """Split into two parts, exchanged by Concat."""
    axis = g.integer(0, len(x.shape) - 1)
    size = x.shape[axis]
    if size < 2:
        return None
    cut = g.integer(1, size - 1)
    one, two = g.nodes_of("Split", [x, np.array([cut, size - cut])], 2, axis=axis + 1)
    if g.chance(0.3):
        return Value(one, tuple(cut if place == axis else have for place, have in enumerate(x.shape)))
    return g.value("Concat", x.shape, two, one, axis=axis + 1)


@block(1, 2, 3)
def gathered(g, x):
    """Gather with constant indices: some positions, all in another order, or one that removes the axis."""
    axis = g.integer(0, len(x.shape) - 1)
    size = x.shape[axis]
    if len(x.shape) > 1 and g.chance(0.2):
        shape = [have for one, have in enumerate(x.shape) if one != axis]
        return g.value("Gather", shape, x, np.array(g.integer(-size, size - 1)), axis=axis + 1)
    numbers = g.rng.permutation(size) if g.chance(0.5) else g.rng.integers(-size, size, g.integer(1, 4))
    shape = [len(numbers) if one == axis else have for one, have in enumerate(x.shape)]
    return g.value("Gather", shape, x, numbers, axis=g.choose(axis + 1, axis - len(x.shape)))


@block(1, 2, 3)
def padded(g, x):
    """Pad with zeros, the edge, or the reflection."""
    mode = g.choose("constant", "constant", "edge", "reflect")
    before, after = ([g.integer(0, min(2, size - 1)) if g.chance(0.5) else 0 for size in x.shape] for _ in range(2))
    shape = [first + size + last for first, size, last in zip(before, x.shape, after)]
    return g.value("Pad", shape, x, np.array([0, *before, 0, *after]), mode=mode)


@block(1, 2)
def unsqueezed(g, x):
    """Unsqueeze, and Squeeze or Expand of the new axis."""
    axis = g.integer(0, len(x.shape))
    shape = [*x.shape[:axis], 1, *x.shape[axis:]]
    made = g.value("Unsqueeze", shape, x, *_indices(axis + 1))
    if g.chance(0.5):
        count = g.integer(1, 3)
        target = [1, *(count if one == axis else 1 for one in range(len(shape)))]
        return g.value("Expand", [*x.shape[:axis], count, *x.shape[axis:]], made, np.array(target))
    return made


@block(2, 3, share=0.5)
def squeezed(g, x):
    axes = [axis for axis, size in enumerate(x.shape) if size == 1]
    if not axes:
        return None
    axis = g.choose(*axes)
    return g.value("Squeeze", [size for one, size in enumerate(x.shape) if one != axis], x, *_indices(axis + 1))


@block(3, share=1.5)
def blocks_of_pixels(g, x):
    """DepthToSpace or SpaceToDepth."""
    channels, height, width = x.shape
    if channels % 4 == 0 and g.chance(0.7):
        mode = g.choose("DCR", "CRD")
        return g.value("DepthToSpace", (channels // 4, 2 * height, 2 * width), x, blocksize=2, mode=mode)
    if height % 2 or width % 2:
        return None
    return g.value("SpaceToDepth", (4 * channels, height // 2, width // 2), x, blocksize=2)


@block(1, 2, 3, share=0.3)
def unchanged(g, x):
    """Operators without effect on values."""
    operator = g.choose("Identity", "Dropout", "Cast", "CastLike" if g.opset >= 15 else "Identity")
    if operator == "CastLike":
        return g.value(operator, x.shape, x, g.choose(*g.values, x))
    return g.value(operator, x.shape, x, **({"to": TensorProto.FLOAT} if operator == "Cast" else {}))


@block(2, share=0.5)
def picked(g, x):
    """GatherND of positions of a sample."""
    count = g.integer(1, 4)
    places = np.stack([g.rng.integers(0, size, count) for size in x.shape], axis=-1)
    if g.batch != 1:
        return None
    return g.value("GatherND", (count,), x, np.concatenate([np.zeros((1, count, 1), int), places[None]], axis=2))


@block(1, 2, 3)
def cut_or_repeated(g, x):
    """Tile, Compress, ReverseSequence, or CenterCropPad of one axis."""
    axis = g.integer(0, len(x.shape) - 1)
    size, kind = x.shape[axis], g.choose("Tile", "Compress", "ReverseSequence", "CenterCropPad" if g.opset >= 18 else "Tile")
    if kind == "ReverseSequence":
        if g.batch is None or axis:  # onnxruntime reverses axis 1 at most
            return None
        lengths = np.full(g.batch, g.integer(1, size))
        return g.value(kind, x.shape, x, lengths, batch_axis=0, time_axis=axis + 1)
    if kind == "Compress":
        flags = g.rng.random(size) < 0.7
        flags[g.integer(0, size - 1)] = True
        count, made = int(flags.sum()), g.node(kind, x, flags, axis=axis + 1)
    elif kind == "Tile":
        count = size * 2
        made = g.node(kind, x, np.array([1, *(2 if one == axis else 1 for one in range(len(x.shape)))]))
    else:
        count = g.integer(max(1, size - 3), size + 3)
        made = g.node(kind, x, np.array([count]), axes=[axis + 1])
    return Value(made, tuple(count if one == axis else have for one, have in enumerate(x.shape)))


@block(1, 2, share=0.7)
def elements(g, x):
    """GatherElements, ScatterElements or ScatterND at places of a sample."""
    if g.batch != 1:
        return None
    size, kind = x.shape[-1], g.choose("GatherElements", "ScatterElements", "ScatterND")
    count, lead = g.integer(1, size), (1, *x.shape[:-1])
    places = g.rng.permuted(np.broadcast_to(np.arange(size), (*lead, size)), axis=-1)[..., :count]
    if kind == "GatherElements":
        return g.value(kind, (*x.shape[:-1], count), x, places, axis=-1)
    reduction = {"reduction": "add"} if g.opset >= 16 and g.chance(0.3) else {}
    updates = g.normal(*lead, count)
    if g.chance(0.5):
        updates = g.node("GatherElements", x, places[..., ::-1], axis=-1)
    if kind == "ScatterElements":
        return g.value(kind, x.shape, x, places, updates, axis=-1, **reduction)
    grid = np.stack([*np.indices(places.shape)[:-1], places], axis=-1)
    return g.value(kind, x.shape, x, grid, updates, **reduction)
