# amaranth: UnusedElaboratable=no
"""The arbiter of the vector port: who gets it, and what the memory is asked for."""

from amaranth_tpu.hw.array.buffer_port import BufferPort
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def requests(ports, rng):
    """Random requests against a list of who comes first."""
    seen = set()
    for _ in range(500):
        asks = {
            name: rng.getrandbits(1) for name in ("load__write", "load__bias", "results__write", "results__read", "store__read")
        }
        asks["results__read"] &= ~asks["results__write"]
        rows = {who: rng.getrandbits(6) for who in ("load", "results", "store")}
        vectors = {who: rng.getrandbits(64) for who in ("load", "results")}
        ports.set(
            **asks,
            **{f"{who}__row": row for who, row in rows.items()},
            **{f"{who}__vector": vector for who, vector in vectors.items()},
        )
        await ports.settle()
        wants = {
            "load": asks["load__write"] and not asks["load__bias"],
            "results": asks["results__write"] or asks["results__read"],
            "store": asks["store__read"],
        }
        winner = next((who for who, asked in wants.items() if asked), None)
        assert not wants["results"] or ports.get("results__grant") == (winner == "results")
        assert not wants["store"] or ports.get("store__grant") == (winner == "store")
        writes = winner == "load" or (winner == "results" and asks["results__write"])
        assert (ports.get("write"), ports.get("read")) == (writes, winner is not None and not writes)
        if winner:
            assert ports.get("address") == rows[winner]
        if writes:
            assert ports.get("vector") == vectors[winner]
        seen.add((winner, bool(writes)))
    assert len(seen) == 5


def test_random():
    simulate(BufferPort(n=4, depth=64), requests, seed=seed())
