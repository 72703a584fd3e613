"""The loss of a network in binary64, computed independently without rounding, and its finite differences."""

import numpy as np

__all__ = ["loss", "differences"]


def _term(values, weights, term, size):
    """Returns a term's sums (batch, *size, outputs) of `values` (batch, height, width, channels), by loops over kernel
    positions."""
    batch, height, width, _ = values.shape
    down, across, inputs, outputs = weights.shape
    total = np.zeros((batch, *size, outputs))
    part = outputs // term.groups
    for ky in range(down):
        for kx in range(across):
            for y in range(size[0]):
                for x in range(size[1]):
                    at = y * term.stride[0] + ky * term.dilation[0] - term.padding[0]
                    to = x * term.stride[1] + kx * term.dilation[1] - term.padding[1]
                    if not (0 <= at < height and 0 <= to < width):
                        continue
                    for g in range(term.groups):
                        seen = values[:, at, to, g * inputs : (g + 1) * inputs]
                        columns = slice(g * part, (g + 1) * part)
                        total[:, y, x, columns] += seen @ weights[ky, kx, :, columns]
    return total


def loss(graph, parameters, x, targets, choices, masks):
    """Returns the cross-entropy, summed over the batch, in binary64.

    Parameters
    ----------
    graph : sim.ir.training.TrainingGraph
    parameters : list of float64 array
    choices : dict
        Positions of the maxima of windows and signs of ReLU's operands. The first call stores them and later calls reuse them,
        so that maxima and ReLU are linear around the first call's parameters.
    masks : dict of int to array
        Dropout masks, {index of the stage: mask}.
    """
    tensors = {graph.graph.input: x.astype(float).reshape(len(x), *graph.graph.tensors[graph.graph.input].shape)}
    values = {(one.stage, one.term): array for one, array in zip(graph.parameters, parameters)}
    for number, stage in enumerate(graph.graph.stages):
        result = np.zeros((len(x), *stage.size, stage.channels))
        bias = values.get((number, None), stage.bias)
        result += 0 if bias is None else np.asarray(bias, float)
        for place, term in enumerate(stage.terms):
            weights = values.get((number, place))
            weights = term.weights.astype(float) if weights is None else weights
            result += _term(tensors[term.source], weights, term, stage.size)
        if stage.pool:
            (height, width), (down, across) = stage.pool.size, stage.pool.window
            windows = np.empty((len(x), height, width, down * across, stage.channels))
            for y in range(height):
                for column in range(width):
                    part = result[:, y * down : (y + 1) * down, column * across : (column + 1) * across]
                    windows[:, y, column] = part.reshape(len(x), down * across, stage.channels)
            largest = choices.setdefault((number, "largest"), windows.argmax(axis=3))
            result = np.take_along_axis(windows, largest[:, :, :, None], 3)[:, :, :, 0]
        if stage.function.name == "relu":
            result = result * choices.setdefault((number, "above"), result > 0)
        elif stage.function.is_table:
            result = stage.function.exact(result)
        if number in masks:
            result = result * masks[number].astype(float)
        tensors[stage.output] = result
    logits = result.reshape(len(x), -1)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return float((np.log(np.exp(shifted).sum(axis=1)) * targets.sum(axis=1) - (targets * shifted).sum(axis=1)).sum())


def differences(graph, parameters, x, targets, masks, places, step=1e-4):
    """Returns central differences of :func:`loss` with respect to selected elements of each parameter.

    Parameters
    ----------
    places : list of int array
        For each parameter, the flat indices of the elements to differentiate.

    Returns
    -------
    list of float64 array
    """
    choices, found = {}, []
    loss(graph, parameters, x, targets, choices, masks)
    for number, chosen in enumerate(places):
        column = []
        for place in chosen:
            ends = []
            for move in (step, -step):
                moved = [array.copy() for array in parameters]
                moved[number].reshape(-1)[place] += move
                ends.append(loss(graph, moved, x, targets, choices, masks))
            column.append((ends[0] - ends[1]) / (2 * step))
        found.append(np.array(column))
    return found
