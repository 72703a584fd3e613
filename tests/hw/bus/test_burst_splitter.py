# amaranth: UnusedElaboratable=no
"""Tests that the burst splitter covers each transfer with bursts that do not cross block boundaries and follow each other without
a gap."""

import pytest

from amaranth_tpu.hw.bus.burst_splitter import MAX_BURST, BurstSplitter, burst_request, transfer_request
from amaranth_tpu.sim.rtl.ports import pack, simulate, unpack
from seeds import seed
from suites import slow


def bursts(address, beats, size, longest):
    """Yields the expected bursts of a transfer of `beats` beats of `size` bytes, aligned to blocks of `longest` beats."""
    while beats:
        count = min(beats, longest - address // size % longest)
        yield {"address": address, "beats": count, "last": int(count == beats)}
        address, beats = address + count * size, beats - count


async def traffic(ports, rng, *, size, longest, offers, takes, transfers):
    expected, offered, held, pace, ends = [], None, None, [], 0
    while transfers or expected or offered:
        if offered is None and transfers and rng.random() < offers:
            offered = {
                "beats": rng.choice((1, longest, rng.randrange(1, 200))),
                "address": rng.randrange(1 << 20) * 4096 - size * rng.randrange(40) & 0xFFFFFFFF,
            }
            transfers -= 1
        ready = rng.random() < takes
        ports.set(
            i__valid=offered is not None,
            o__ready=ready,
            i__payload=pack(transfer_request(32, 12), **offered) if offered else rng.getrandbits(64),
        )
        await ports.settle()
        assert ports.get("o__valid") == bool(expected), f"cycle {ports.cycle}: valid with {len(expected)} bursts due"
        found = unpack(burst_request(32), ports.get("o__payload"))
        if expected:
            assert found == expected[0]
            assert held is None or held == found, "a burst changed before it was taken"
            held = None if ready else found
            if ready:
                pace.append(ports.cycle - ends)
                ends += expected.pop(0)["last"]
        if offered and ports.get("i__ready"):
            expected += bursts(offered["address"], offered["beats"], size, longest)
            offered = None
        await ports.tick()
    return pace


# promise: burst-length
@pytest.mark.parametrize("size, longest", [(8, MAX_BURST), *slow((4, MAX_BURST), (32, 4), (128, MAX_BURST))])
@pytest.mark.parametrize("offers, takes", [(1, 1), (0.3, 0.5)])
def test_random(size, longest, offers, takes):
    splitter = BurstSplitter(address_width=32, bus_bytes=size, beats_width=12, longest=longest)
    sizes = {"size": size, "longest": longest, "transfers": 150}
    pace = simulate(splitter, traffic, seed=seed(), offers=offers, takes=takes, **sizes)
    if offers == takes == 1:
        assert pace[-1] - pace[0] == len(pace) - 1, "a cycle without a burst within a transfer"
