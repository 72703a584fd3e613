# amaranth: UnusedElaboratable=no
"""Tests that the ID of bus transactions differs from the ID of the last request after any sequence of resets."""

from amaranth_tpu.hw.bus.transaction_id import TransactionId
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed

#: Cycles after a reset until the ID is settled.
SETTLES = 3


async def resets(ports, rng, *, count):
    """Checks `count` resets of 1 to 9 cycles. A third occur before the ID has settled, and a third before any request."""
    used, ids = None, set()  # ID of the last request
    for number in range(count):
        ports.set(asked=0)
        for _ in range(rng.choice((1, 2, 9))):
            await ports.reset()
        for cycle in range(rng.randrange(SETTLES + 1) if number % 3 == 1 else rng.randrange(SETTLES + 1, 20)):
            await ports.settle()
            assert ports.get("o__settled") == (cycle >= SETTLES)
            first = SETTLES + number % 5 if number % 3 == 0 else None
            asks = first is not None and (cycle == first or (cycle > first and rng.getrandbits(1)))
            ports.set(asked=asks)
            if cycle >= SETTLES:
                ids.add(ports.get("o__id"))
                assert len({used, ports.get("o__id")}) == 2, f"reset {number}: the ID of what was asked before it"
            if asks:
                last = ports.get("o__id")
            await ports.tick()
        # One more request in the last cycle before the reset, or in the same cycle
        if number % 3 == 0 and cycle >= first:
            used = last
    return ids


# promise: old-responses, late-responses
def test_resets():
    assert simulate(TransactionId(), resets, seed=seed(), count=300) == {0, 1}
