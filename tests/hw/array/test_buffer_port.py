# amaranth: UnusedElaboratable=no
"""Tests that the arbiter of the buffer's vector port grants the requester of highest priority, and that the granted access
reaches the memory."""

import pytest

from amaranth_tpu.hw.array.buffer_port import BufferPort
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.operations import transfer_layout
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def requests(ports, rng, ring, latency):
    """Checks 500 cycles of random requests against a Python list of the priorities. A load asks one cycle after its write. With a
    `latency` of 2 the memory sees each access one cycle after its grant."""
    seen, load = set(), (0, 0, 0)  # load: request, row and vector of the previous cycle
    earlier = [(False, False, None, None)] * (latency - 1)  # accesses that the memory has yet to see
    for _ in range(500):
        asks = {name: rng.getrandbits(1) for name in ("load__write", "load__bias", "store__read")}
        both = ("results", "ring") if ring else ("results",)
        for who in both:
            asks |= {f"{who}__write": rng.getrandbits(1), f"{who}__read": rng.getrandbits(1)}
        asks["results__read"] &= ~asks["results__write"]  # the ring reads where it asks for both
        rows = {who: rng.getrandbits(6) for who in ("load", *both, "store")}
        vectors = {who: rng.getrandbits(64) for who in ("load", *both)}
        operand = rng.getrandbits(64)
        ports.set(
            buffer__operand=operand,
            **asks,
            **{f"{who}__row": row for who, row in rows.items()},
            **{f"{who}__vector": vector for who, vector in vectors.items()},
        )
        await ports.settle()
        wants = {
            "load": load[0],
            **{who: asks[f"{who}__write"] or asks[f"{who}__read"] for who in both},
            "store": asks["store__read"],
        }
        coming = asks["load__write"] and not asks["load__bias"], rows["load"], vectors["load"]
        rows["load"], vectors["load"], load = *load[1:], coming
        winner = next((who for who, asked in wants.items() if asked), None)
        for who in (*both, "store"):
            assert not wants[who] or ports.get(f"{who}__grant") == (winner == who)
        assert all(ports.get(f"{who}__operand") == operand for who in (*both, "store"))
        writes = winner == "load" or (winner in both and asks[f"{winner}__write"] and not asks[f"{winner}__read"])
        earlier.append((writes, winner is not None and not writes, rows.get(winner), vectors[winner] if writes else None))
        *access, row, vector = earlier.pop(0)
        assert [ports.get("buffer__write"), ports.get("buffer__read")] == access
        assert row is None or ports.get("buffer__address") == row
        assert vector is None or ports.get("buffer__vector") == vector
        seen.add((winner, bool(writes)))
        await ports.tick()
    assert len(seen) == (7 if ring else 5)


@pytest.mark.parametrize("ring, latency", [(False, 1), (False, 2), (True, 1)])
def test_random(ring, latency):
    port = BufferPort(n=4, depth=64, transfer=transfer_layout(Config(n=4)), ring=ring, latency=latency)
    simulate(port, requests, seed=seed(), ring=ring, latency=latency)
