# amaranth: UnusedElaboratable=no
"""Tests of the unpacker of weights: tiles of all formats arrive in order and decoded, also if the FIFO has no room."""

import numpy as np
import pytest

from amaranth_tpu.hw.array.weight_unpacker import WeightUnpacker
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.codes import WeightFormat
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.operations import transfer_layout
from amaranth_tpu.sim.golden.weight_formats import decode, packed
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed
from suites import slow


def operations(rng, n, count, transposes, formats=tuple(WeightFormat)):
    """Returns the vectors of some LOAD_WEIGHTS, as (vector, format, transpose, last), and the columns of all tiles in order."""
    vectors, columns = [], []
    for _ in range(count):
        format_, tiles, transpose = rng.choice(formats), rng.randrange(1, 4), int(transposes and rng.random() < 0.5)
        codes = np.array(rng.choices(range(1 << min(8, format_.bits)), k=tiles * n * n), np.uint8).reshape(tiles, n, n)
        if format_ is WeightFormat.BFLOAT16:
            words = codes.swapaxes(1, 2).astype(np.uint16)  # by tile, column and row
            sent = (words.swapaxes(1, 2) if transpose else words).reshape(-1, n)
        else:
            scales = np.array(rng.choices(range(256), k=tiles * n), np.uint8).reshape(tiles, n)
            words = decode(format_, codes, scales[:, None]).swapaxes(1, 2)
            sent = packed(format_, codes, scales)
        vectors += [(vector.tolist(), format_.value, transpose, number == len(sent) - 1) for number, vector in enumerate(sent)]
        columns += words.reshape(-1, n).tolist()
    return vectors, columns


async def bench(ports, rng, *, n, weight_rows, transposes, tiles, count, pauses, formats=tuple(WeightFormat)):
    """Sends random operations, and compares the columns. Returns the cycles of the last columns of tiles."""
    sent, expected = operations(rng, n, count, transposes, formats)
    total, found, outstanding, freed, ends, stored = len(expected), [], 0, 0, [], []
    while len(found) < total:
        write = bool(sent) and outstanding < WeightUnpacker.depth and rng.random() >= pauses
        vector, code, transpose, last = sent.pop(0) if write else ([rng.getrandbits(16) for _ in range(n)], 1, 1, 1)
        # No tile leaves the FIFO before it is full: the unpacker must use all of its room.
        free = freed < len(found) // n and (freed or len(found) >= min(total, tiles * n)) and rng.random() >= pauses
        ports.set(load__write=write, load__vector=vector, load__weight_format=code, load__last=last, freed=free)
        if transposes:
            ports.set(load__transpose=transpose)
        await ports.settle()
        outstanding, freed = outstanding + write - ports.get("taken"), freed + free
        stored.append(-(-len(found) // n) - freed)
        if len(stored) > 8 and len({*stored[-8:]}) == 1:  # a tile in the decoder counts as stored
            assert ports.get("few") or stored[-1] + 1 >= min(tiles // 2, 64 * weight_rows // n)
            assert not ports.get("few") or stored[-1] < min(tiles // 2, 64 * weight_rows // n)
        lanes, writes = ports.lanes("vectors__vector", n * weight_rows), ports.get("vectors__write")
        for half in range(weight_rows):
            if writes >> half & 1:
                assert half == len(found) % weight_rows
                found.append(lanes[half * n :][:n])
                assert found[-1] == expected[len(found) - 1], f"column {len(found) - 1} of {total}"
                ends += [ports.cycle] * (len(found) % n == 0)
        assert len(found) <= (freed + tiles) * n, "the FIFO overflows"
        await ports.tick()
        assert ports.cycle < 100 * total
    assert outstanding == len(sent) == 0
    return ends


def run(n=8, weight_rows=2, transposes=True, **sizes):
    layout = transfer_layout(Config(n=n, attention=transposes, weight_formats=True), Unit.WEIGHTS)
    tiles = sizes.get("tiles", 2)
    unpacker = WeightUnpacker(n=n, tiles=tiles, transfer=layout, transposes=transposes, weight_rows=weight_rows)
    return simulate(unpacker, bench, seed=seed(), n=n, weight_rows=weight_rows, transposes=transposes, **{"tiles": 2, **sizes})


# promise: odd-tile
@pytest.mark.parametrize(
    "sizes",
    [
        dict(weight_rows=2, transposes=True, pauses=0.3),
        dict(weight_rows=1, transposes=False, pauses=0),
        *slow(dict(weight_rows=1, transposes=True, pauses=0.6), dict(n=16, weight_rows=2, transposes=False, pauses=0.1)),
    ],
    ids=str,
)
def test_tiles_of_all_formats(sizes):
    run(count=16, **sizes)


@pytest.mark.parametrize("weight_rows", [1, 2])
@pytest.mark.parametrize("format_, extra", [(WeightFormat.MXFP8, 0), *slow((WeightFormat.MXFP4, 0)), (WeightFormat.MXFP6, 1)])
def test_cycles_per_tile(format_, extra, weight_rows):
    """A tile takes n / weight_rows cycles, a vector of scales one cycle, and MXFP6 a cycle for each eight columns."""
    ends = run(n=8, weight_rows=weight_rows, tiles=64, count=8, pauses=0, formats=(format_,))
    distances = [after - before for before, after in zip(ends, ends[1:])]
    assert set(distances) == {8 // weight_rows + extra, 8 // weight_rows + extra + 1}
