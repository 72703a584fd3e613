"""Which plans are worth trying for a network: chunks of the batch, places in the buffers, groups of column tiles."""

from .memory_map import tiles_of
from .residency import Plan
from .timing import turnaround

__all__ = ["plans", "refinements"]


def plans(network, config, batch):
    """`[(plan, passes)]`, the most promising first. Empty if nothing fits."""
    widths = [network.input_size, *(layer.weights.shape[1] for layer in network.layers)]
    tiles = [tiles_of(width, config.n) for width in widths]
    found = []
    for rows in _chunk_sizes(config, batch):
        count = -(-batch // rows)
        chunks = tuple(batch // count + (c < batch % count) for c in range(count))
        for plan in _fitting(config, tiles, chunks):
            passes = count * sum(a * b for a, b in zip(tiles, tiles[1:]))
            found.append((_cost(config, tiles, plan), len(found), plan, passes))
    return [(plan, passes) for _, _, plan, passes in sorted(found, key=lambda entry: entry[:2])]


def refinements(config, plan):
    """Lists of changes to a plan, each a choice of its own, that matter at the beginning and the end of a run."""
    rows = plan.chunks[-1]
    return [
        [{"first": first, "eager": eager} for first in ((1, 2, 4, 8, 16, 24), (1, 1, 2, 4, 8), (1, 2, 3, 4, 6, 8))
         for eager in (0, 1, 2)],
        [{"tail": tail} for tail in (1, 2, 4) if rows // tail >= 4 and tail != plan.tail],
    ]


def _chunk_sizes(config, batch):
    """Rows of a chunk: the whole batch, and equal parts of it of about these sizes."""
    most = min(batch, config.accumulator_depth)
    wanted = [size for power in range(16) for size in (1 << power, 3 << power >> 1)] + [most]
    counts = sorted({-(-batch // size) for size in wanted if size <= most})
    return [-(-batch // count) for count in counts]


def _fitting(config, tiles, chunks):
    """Plans for these chunks that fit the buffers."""
    rows, layers = chunks[0], len(tiles) - 1
    space = config.unified_buffer_depth
    for copies, resident in _residences(tiles, rows, len(chunks)):
        areas = copies * tiles[0] * rows if resident[0] else 0
        for parity in (0, 1):
            areas += max((tiles[level] * rows for level in range(1, layers)
                          if level % 2 == parity and resident[level]), default=0)
        streams = not all(resident)
        left = space - areas
        most = left - rows if streams else left
        if most < 2 * rows:
            continue
        staging = max(2 * rows, min(2 * rows * max(2, min(4, tiles[-1])), most // 2))
        slots = block = 0
        if streams:
            room = (left - staging) // rows
            slots = min(3, room)
            block = min(room // slots, 32, max(tiles))
        for groups in _groupings(config, tiles, rows, resident):
            yield Plan(chunks=chunks, groups=groups, resident=resident, copies=copies, block=block, slots=slots,
                       staging=staging, tail=min(4, max(1, rows // 8)))
        return


def _residences(tiles, rows, chunks):
    """`(copies of the input, resident?)`, the fastest first."""
    layers = len(tiles) - 1
    resident = [True] * layers
    if chunks > 1:
        yield 2, tuple(resident)
    yield 1, tuple(resident)
    for level in sorted(range(layers), key=lambda level: (level != 0, -tiles[level])):
        resident[level] = False
        yield 1, tuple(resident)


def _groupings(config, tiles, rows, resident):
    """Sizes of the groups of column tiles of every layer."""
    slots = config.accumulator_depth // rows
    most = max(1, min(slots // 2 if slots > 1 else 1, config.bias_depth // 2, 65535))
    least = min(most, -(-turnaround(config) // max(rows, config.n)))
    seen = set()
    for cap, share in ((8, 0.75), (4, 0.5), (8, 0.5), (2, 0.5)):
        cap = max(least, min(cap, most))
        groups = tuple(_taper(columns, cap, least, share) if resident[layer] else _taper(columns, most, most, 1)
                       for layer, columns in enumerate(tiles[1:]))
        if groups not in seen:
            seen.add(groups)
            yield groups


def _taper(columns, cap, least, share):
    """Groups of at most `cap` and this share of what is left: they get smaller towards the end, where what follows waits
    for the last one. Groups of `least` hide the turnaround."""
    groups = []
    while columns:
        size = min(columns, cap, max(least, -int(-columns * share // 1)))
        if 0 < columns - size < least and columns <= cap:
            size = columns
        groups.append(size)
        columns -= size
    return tuple(groups)


def _cost(config, tiles, plan):
    """Cycles, roughly: the array or the bus, whichever takes longer, and a part of the other."""
    compute = bus = 0
    beats, n, settle = config.beats_per_vector, config.n, turnaround(config)
    for rows in plan.chunks:
        for layer, groups in enumerate(plan.groups):
            for count in groups:
                passes = tiles[layer] * count
                compute += tiles[layer] * max(count * max(rows, n), settle)
                bus += passes * n * beats
                if not plan.resident[layer]:
                    bus += tiles[layer] * rows * beats
                    compute += -(-tiles[layer] // plan.block) * 8
                compute += 10
        if plan.resident[0]:
            bus += tiles[0] * rows * beats
    overlap = 1 if plan.copies > 1 or len(plan.chunks) == 1 else 1.1
    return (max(compute, bus) + min(compute, bus) / 8) * overlap + 100 * len(plan.chunks)
