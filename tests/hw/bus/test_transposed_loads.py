# amaranth: UnusedElaboratable=no
"""Tests that transposed loads write each vector to its row, transpose tiles, and end an operation when all its vectors are
written."""

import pytest

from amaranth_tpu.hw.bus.transposed_loads import TransposedLoads
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.operations import transfer_layout
from amaranth_tpu.sim.rtl.ports import pack, simulate
from seeds import seed

SLOTS = Config().in_flight


def unit(n):
    return TransposedLoads(n=n, transfer=transfer_layout(Config(n=n, transpose=True), Unit.LOAD))


def written(operation, vectors, n):
    if operation["transpose"]:
        tiles = [vectors[first : first + n] for first in range(0, len(vectors), n)]
        vectors = [sum((word >> 16 * r & 0xFFFF) << 16 * v for v, word in enumerate(tile)) for tile in tiles for r in range(n)]
    return [(operation["row"] + index, vector) for index, vector in enumerate(vectors)]


async def traffic(ports, rng, *, n, count, arrives):
    """Runs `count` random operations with a read unit that delivers the vectors later, and checks order and ends. Returns the
    maximum number of transposing operations in flight."""
    layout = transfer_layout(Config(n=n, transpose=True), Unit.LOAD)
    todo, begun, coming, most = [], 0, [], 0
    for slot in range(count):
        turns = rng.getrandbits(1)
        vectors = n * rng.randrange(1, 4) if turns else rng.randrange(1, 2 * n)
        bias = int(not turns and rng.random() < 0.3)
        todo.append({"slot": slot % SLOTS, "vectors": vectors, "row": rng.randrange(1 << 11), "transpose": turns, "bias": bias})
        todo[-1]["data"] = [rng.getrandbits(16 * n) for _ in range(vectors)]
    found, expected, ends, wanted = [], [], [], []
    for one in todo:
        expected += [(*place, one["bias"]) for place in written(one, one["data"], n)]
        wanted.append((len(expected), one["slot"]))
    while len(ends) < count:
        offered = begun < count and rng.random() < 0.8
        if offered:
            values = {name: todo[begun][name] for name in ("vectors", "row", "bias", "transpose")}
            ports.set(port__op__payload=pack(layout, tag={"slot": todo[begun]["slot"]}, address=0, **values))
        write, left = bool(coming) and rng.random() < arrives, 0
        one = coming[0] if write else {"bias": rng.getrandbits(1), "transpose": rng.getrandbits(1), "slot": rng.randrange(SLOTS)}
        if write:
            left = len(one["data"])
            ports.set(i__row=one["row"] + one["vectors"] - left, i__vector=one["data"].pop(0))
        ports.set(i__write=write, i__bias=one["bias"], i__transpose=one["transpose"])
        ports.set(load__done=left == 1, load__done_slot=one["slot"])
        ports.set(port__op__valid=offered, load__op__ready=len(coming) < 8 and rng.random() < 0.9)
        await ports.settle()
        if ports.get("o__write"):
            found.append(tuple(map(ports.get, ("o__row", "o__vector", "o__bias"))))
        if ports.get("port__done"):
            ends.append((len(found), ports.get("port__done_slot")))
        if left == 1:
            coming.pop(0)
        assert ports.get("load__op__valid") <= offered and ports.get("port__op__ready") <= ports.get("load__op__ready")
        if offered and ports.get("port__op__ready"):
            coming.append(todo[begun])
            begun += 1
        most = max(most, sum(other["transpose"] for other in coming))
        await ports.tick()
    assert found == expected and ends == wanted
    return most


@pytest.mark.parametrize("n, arrives", [(2, 1), (4, 1), (4, 0.5), (8, 0.9)])
def test_random(n, arrives):
    assert simulate(unit(n), traffic, seed=seed(), n=n, count=40, arrives=arrives) > 1, "none waits behind another"
