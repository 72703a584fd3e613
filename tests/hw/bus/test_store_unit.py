# amaranth: UnusedElaboratable=no
"""Tests that the store unit writes rows to their addresses under any stalls, and ends an operation when the memory has
responded."""

import pytest

from amaranth_tpu.hw.bus.burst_splitter import burst_request
from amaranth_tpu.hw.bus.store_unit import StoreUnit
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.operations import transfer_layout
from amaranth_tpu.sim.rtl.ports import pack, simulate, unpack
from seeds import seed
from suites import all_but

LAYOUT, PARTS = (transfer_layout(Config(n=4, training=lanes > 0, update_lanes=lanes), Unit.STORE) for lanes in (0, 2))


async def traffic(ports, rng, *, ratio, latency, count, grants, takes, answers, layout=LAYOUT):
    """Stores rows of the unified buffer and, if the layout has parts, of the update memory, which are always granted."""

    def entry(number):
        return {
            "tag": {"slot": number % Config().in_flight},
            "address": rng.randrange(1 << 16) * 8,
            "vectors": rng.choice((1, rng.randrange(2, 6), rng.randrange(1, 40))),
            "row": rng.randrange((1 << layout["row"].width) - 40),
            **({"part": rng.choice((0, 1, 2, 3))} if layout is PARTS else {}),
        }

    todo = [entry(number) for number in range(count)]
    rows = [(e.get("part", 0), row) for e in todo for row in range(e["row"], e["row"] + e["vectors"])]
    contents = {row: rng.getrandbits(64 * ratio) for row in rows}
    beats = [contents[row] >> 64 * i & (1 << 64) - 1 for row in rows for i in range(ratio)]
    addresses = [e["address"] + 8 * i for e in todo for i in range(e["vectors"] * ratio)]
    owners = [number for number, e in enumerate(todo) for i in range(e["vectors"] * ratio)]
    bursts = []  # [owner, ends its transfer, beats that still lack data, cycle in which it was taken]
    given, vectors = 0, [0, 0]  # of the unified buffer, and of the update memory
    coming = [None] * latency  # the rows that were granted in the last cycles
    early = 0  # beats that were sent before the address of their burst
    most = 0  # bursts in flight
    while rows or beats or addresses or bursts:
        grant, ready, accepts = rng.random() < grants, rng.random() < takes, rng.random() < takes
        # A response passes the manager's registers and the memory.
        answer = bool(bursts) and bursts[0][2] == 0 and ports.cycle > bursts[0][3] + 1 and rng.random() < answers
        fails = answer and rng.random() < 0.2
        arrives = coming.pop(0)
        if arrives is not None:
            vectors[bool(arrives[0])] = contents[arrives]  # the vector stays valid until the next read
        ports.set(
            port__op__valid=given < count,
            port__op__payload=pack(layout, **todo[given]) if given < count else 0,
            buffer__grant=grant,
            buffer__operand=vectors[0],
            **({"updates__vector": vectors[1]} if layout is PARTS else {}),
            host__burst__ready=accepts,
            host__data__ready=ready,
            host__answered=answer,
            host__error=fails,
        )
        await ports.settle()
        coming.append(None)
        reads = [ports.get("buffer__read"), layout is PARTS and ports.get("updates__read")]
        assert sum(reads) < 2, f"cycle {ports.cycle}: two reads"
        if any(reads):
            assert rows, "a read too many"
            found = (ports.get("updates__part"), ports.get("updates__row")) if reads[1] else (0, ports.get("buffer__row"))
            assert found == rows[0], f"cycle {ports.cycle}: row {found}, not {rows[0]}"
            if grant or reads[1]:
                coming[-1] = rows.pop(0)
        assert ports.get("port__done") == (answer and bursts[0][1]), f"cycle {ports.cycle}: done"
        assert ports.get("fault__valid") == fails
        if answer:
            owner = todo[bursts.pop(0)[0]]["tag"]
            assert not ports.get("port__done") or ports.get("port__done_slot") == owner["slot"]
            assert not fails or ports.get("fault__slot") == owner["slot"]
        if ports.get("host__data__valid") and ready:
            assert ports.get("host__data__payload") == beats.pop(0), f"cycle {ports.cycle}: wrong data"
            waiting = [burst for burst in bursts if burst[2]]
            if waiting:
                waiting[0][2] -= 1
            else:
                early += 1
        if ports.get("host__burst__valid") and accepts:
            burst = unpack(burst_request(32), ports.get("host__burst__payload"))
            for i in range(burst["beats"]):
                assert burst["address"] + 8 * i == addresses.pop(0)
                owner = owners.pop(0)
            covered = min(early, burst["beats"])
            early -= covered
            bursts.append([owner, burst["last"], burst["beats"] - covered, ports.cycle])
            assert burst["last"] == (not owners or owners[0] != owner)
        most = max(most, len(bursts))
        given += ports.get("port__op__ready") and given < count
        await ports.tick()
    return most


BRISK = dict(grants=1, takes=1, answers=1)
PAUSED = dict(grants=0.3, takes=0.8, answers=0.5)
SLUGGISH = dict(grants=0.9, takes=0.2, answers=0.1)


def store_unit(ratio, latency, layout=LAYOUT):
    return StoreUnit(transfer=layout, bus_width=64, vector_width=64 * ratio, outstanding=4, latency=latency)


# promise: store-ends
@pytest.mark.parametrize(
    "ratio, rates, latency",
    all_but(
        [(1, BRISK, 2), (1, PAUSED, 1), (2, SLUGGISH, 1), (8, PAUSED, 2), (8, BRISK, 1)],
        (1, 2, 8),
        (BRISK, PAUSED, SLUGGISH),
        (1, 2),
    ),
    ids=str,
)
def test_random(ratio, rates, latency):
    layout = PARTS if rates is PAUSED and latency == 1 else LAYOUT
    rates = {"layout": layout, **rates}
    most = simulate(store_unit(ratio, latency, layout), traffic, seed=seed(), ratio=ratio, latency=latency, count=25, **rates)
    assert most == 4 or ratio == 1 and most < 4, f"{most} bursts in flight"


async def one_store(ports, rng, vectors):
    """Returns the cycles in which the beats of an operation are sent, on a bus that always takes them."""
    sent, op = [], pack(LAYOUT, tag={"slot": 0}, address=0, vectors=vectors, row=0)
    ports.set(port__op__payload=op, buffer__grant=1, host__burst__ready=1, host__data__ready=1)
    for cycle in range(vectors + 20):
        ports.set(port__op__valid=cycle == 0)
        await ports.settle()
        sent += [cycle] * ports.get("host__data__valid")
        await ports.tick()
    return sent


# promise: transfer-rate
@pytest.mark.parametrize("latency", [1, 2])
def test_throughput(latency):
    """A vector as wide as the bus is sent in every cycle."""
    sent = simulate(store_unit(1, latency), one_store, seed=seed(), vectors=40)
    assert sent == [*range(sent[0], sent[0] + 40)]
