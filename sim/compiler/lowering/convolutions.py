"""Products of convolutions: terms whose sums read windows of the source, and gradients of their weights.

The gradient of weights needs the operands of each kernel position as weight tiles. If no copy of the source has them
(:mod:`sim.compiler.lowering.copies`), the windows of the source are stored as a matrix of their own, with a block of channels for
each kernel position.

The gradient of a dense layer's source has the positions of a sample as channels, because each position has its own weights. A
copy then has a row for each position.
"""

from dataclasses import replace
from math import prod

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..memory.matrices import matrix_of
from ..memory.windows import Window
from .forms import NotMatrices
from .lane_copies import VectorCopies
from .sums import MatrixSum, Phase, Product, Result

__all__ = ["band_product", "is_window", "patches_of", "scattered", "window_product"]


def is_window(step, term, size):
    """Returns True if a term's sums, of height and width `size`, read windows of the source."""
    plain = term.kernel == term.stride == term.dilation == term.apart == (1, 1) and term.padding == (0, 0)
    source = step.tensors[term.source]
    return not plain or source.samples and (source.height, source.width) != size


def _window(step, term, size):
    source = step.tensors[term.source]
    sizes = (term.kernel, term.stride, term.dilation, term.padding, term.apart)
    return Window(*sizes, (source.height, source.width), size)


def window_product(lowered, stage, term):
    """Returns the :class:`Product` of a term that reads windows. Raises NotMatrices if it has constant weights of groups of
    several channels, or a product of two tensors."""
    step = lowered.step
    source, weights, output = (step.tensors[name] for name in (term.source, term.weights, stage.output))
    if weights.samples or term.transposed or not source.samples:
        raise NotMatrices(f"{stage.output}: windows of a product of two tensors can't be compiled as matrix products")
    window, groups = _window(step, term, stage.size), term.groups > 1
    if groups and (term.weights not in step.constants or not term.groups == source.channels == output.channels):
        raise NotMatrices(f"{stage.output}: a convolution with {term.groups} groups of constant weights can't be compiled")
    if groups and _is_repeated(step, term, window):
        window = replace(window, kernel=(1, 1), stride=(0, 0), dilation=(1, 1), padding=(0, 0))
    if step.state and not groups and _is_whole(term, window):
        return Product("matrix", patches_of(lowered, term, stage.size), lowered.matrix(term.weights, "turned"))
    matrix = lowered.matrix(term.weights, "diagonal" if groups else "turned")
    return Product("window", lowered.matrix(term.source).padded, matrix, by_rows=term.swapped, window=window)


def band_product(lowered, stage, term):
    """Returns the :class:`Product` of a term that reads a transposed tensor: vectors of positions, or positions again."""
    source, weights = lowered.matrix(term.source), lowered.matrix(term.weights, "turned")
    if term.groups == 1:
        return Product("matrix", source, weights, lanes=term.lanes)
    lines = -(-source.geometry.positions // term.lanes), 1
    window = Window(term.kernel, term.stride, term.dilation, term.padding, term.apart, lines, (stage.size[0], 1))
    return Product("bands", source, weights, window=window, lanes=term.lanes, blocks=term.blocks)


def _is_whole(term, window):
    """Returns True if a dense layer reads all positions of its source. In a step, its gradient of weights reads them, too."""
    plain = term.dilation == term.apart == (1, 1) and term.padding == (0, 0) and not term.swapped
    return plain and window.size == (1, 1) and window.kernel == window.source


def _is_repeated(step, term, window):
    alone = window.source == (1, 1) and window.size == window.kernel and window.dilation == (1, 1)
    values = step.constants[term.weights].astype(np.float32)
    return alone and window.padding == tuple(size - 1 for size in window.kernel) and bool((values == values[:1]).all())


def patches_of(lowered, term, size):
    """Returns the matrix of the windows of a term's source, with a row for each window of `size`. Adds the sum that makes it at
    the first call."""
    _step, window = lowered.step, _window(lowered.step, term, size)
    key = f"windows of {term.source}, {window}", "samples"
    if key not in lowered.matrices:
        source, geometry = lowered.matrix(term.source), lowered.geometries[size]
        made = matrix_of(*key, geometry.rows, source.channels, geometry, blocks=window.positions)
        made = lowered.matrices[key] = replace(made, vector=lowered.take(Region.SCRATCH, made.size))
        places = np.stack([window.operands(one, 0, size[0]).reshape(-1) for one in range(window.positions)], axis=1)
        row, position, tile = np.nonzero(np.repeat(places[..., None] >= 0, source.each, axis=2))
        entries = np.stack([row, position * source.each + tile, places[row, position], tile, 0 * tile], axis=1)
        product = Product("copied", source, lowered.one, copies=VectorCopies(entries))
        lowered.sums.append(MatrixSum(made.name, [Phase((product,), [Result(made)])], made))
    return lowered.matrices[key]


def scattered(lowered, stage):
    """Returns the :class:`Product` that copies the gradient of a dense layer's source from a matrix with a row for each sample.
    Adds the sum that makes this matrix. Returns None if a stage has other sums."""
    step, output = lowered.step, lowered.step.tensors[stage.output]
    if len(stage.terms) != 1 or stage.start or not output.samples:
        return None
    (term,) = stage.terms
    source, weights = step.tensors[term.source], step.tensors[term.weights]
    plain = term.stride == term.dilation == term.apart == (1, 1) and term.groups == 1 and not (term.transposed or weights.samples)
    whole = term.kernel == stage.size and term.padding == tuple(size - 1 for size in term.kernel)
    if not (term.swapped and plain and whole and source.samples) or source.shape[:2] != (1, 1) or term.kernel == (1, 1):
        return None
    rows = lowered.matrix(term.source)
    if rows.geometry.period > 1:
        return None
    key = f"{stage.output}, by samples", "samples"
    made = matrix_of(*key, rows.rows, output.channels, rows.geometry, blocks=prod(term.kernel))
    made = lowered.matrices[key] = replace(made, vector=lowered.take(Region.SCRATCH, made.size))
    product = Product("matrix", rows, lowered.matrix(term.weights, "turned"), by_rows=True)
    lowered.sums.append(MatrixSum(made.name, [Phase((product,), [Result(made)])], made))
    number = np.arange(made.tiles)
    position, tile = np.divmod(number, made.each)
    copies = VectorCopies(np.stack([position, tile, 0 * tile, number, 0 * tile], axis=1))
    return Product("copied", made, lowered.one, copies=copies)
