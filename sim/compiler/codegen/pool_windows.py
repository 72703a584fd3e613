"""Ranges of pooling windows that one instruction computes."""

__all__ = ["runs_of_windows"]


def runs_of_windows(pool, have, axis, first, end):
    """Divides the results `first` to `end` along an axis into ranges whose pooling windows, clipped at the edges of `have` sums,
    have the same size and the same distance. Returns `[first result, results, first sum, distance, window positions]` for each
    range. The distance of windows larger than the sums can be 0."""
    runs = []
    for index in range(first, end):
        start = index * pool.stride[axis] - pool.padding[axis]
        inside = [at for w in range(pool.window[axis]) if 0 <= (at := start + w * pool.dilation[axis]) < have]
        if runs and _continues(runs[-1], inside):
            runs[-1][1] += 1
            runs[-1][3] = (inside[0] - runs[-1][2]) // (runs[-1][1] - 1)
        else:
            runs.append([index, 1, inside[0], pool.stride[axis], len(inside)])
    return runs


def _continues(run, inside):
    _, count, first, distance, size = run
    after = inside[0] - first
    return len(inside) == size and (after >= 0 if count == 1 else after == count * distance)
