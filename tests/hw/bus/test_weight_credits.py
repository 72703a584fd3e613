# amaranth: UnusedElaboratable=no
"""Tests that the weight credits send a burst exactly if the FIFO has room for all of it, and set `urgent` while few weights are
stored."""

import pytest

from amaranth_tpu.hw.bus.burst_splitter import MAX_BURST, burst_request
from amaranth_tpu.hw.bus.weight_credits import WeightCredits
from amaranth_tpu.sim.rtl.ports import pack, simulate
from seeds import seed
from suites import slow


async def traffic(ports, rng, *, tiles, tile_beats, vector_beats, takes, frees):
    """Fills and empties the FIFO with random bursts for 1,500 cycles; a requested tile is freed with probability `frees`."""
    capacity, layout = tiles * tile_beats, burst_request(32)
    asked = freed = passed = waited = before = 0
    burst, found, ample = None, False, False  # room for this burst, and room for any three bursts, as seen a cycle before
    uncounted = 0  # beats that passed in the previous cycle
    urgent = []
    for cycle in range(1500):
        if burst is None and rng.random() < 0.8:
            burst = {
                "address": rng.getrandbits(32),
                "beats": rng.choice((1, MAX_BURST, rng.randrange(1, MAX_BURST + 1))),
                "last": rng.getrandbits(1),
            }
        eager = rng.random() < (1 if cycle % 300 > 270 else frees)
        free = int(asked - freed >= tile_beats and eager)
        ready = int(rng.random() < takes)
        ports.set(
            i__valid=burst is not None,
            i__payload=pack(layout, **burst) if burst else rng.getrandbits(32),
            o__ready=ready,
            freed=free,
        )
        await ports.settle()
        stored = asked - freed
        fits, found = (
            burst is not None and (found or ample),
            (burst is not None and not uncounted and burst["beats"] <= capacity - stored),
        )
        ample = capacity - stored + uncounted >= 3 * MAX_BURST
        urgent.append((before, ports.get("urgent")))
        before, uncounted = stored - uncounted, 0
        assert ports.get("o__valid") == fits, f"cycle {cycle}: {stored} of {capacity} beats, {burst}"
        if burst is not None:
            assert ports.get("i__ready") == (fits and ready), f"cycle {cycle}"
        waited += burst is not None and not fits
        if fits:
            assert ports.get("o__payload") == pack(layout, **burst), f"cycle {cycle}"
            if ready:
                found, uncounted = False, burst["beats"]
                asked, burst, passed = asked + burst["beats"], None, passed + 1
        freed += tile_beats * free
        await ports.tick()
    assert passed > 30 and waited > 30
    return urgent


@pytest.mark.parametrize("tiles, tile_beats, vector_beats", [(16, 16, 1), *slow((2, 16, 1), (4, 16, 4), (8, 8, 2), (64, 4, 1))])
@pytest.mark.parametrize("takes, frees", [(1, 0.05), (0.5, 0.05), (0.9, 0.02)])
def test_random(tiles, tile_beats, vector_beats, takes, frees):
    sizes = {"tiles": tiles, "tile_beats": tile_beats, "vector_beats": vector_beats}
    urgent = simulate(WeightCredits(address_width=32, **sizes), traffic, seed=seed(), **sizes, takes=takes, frees=frees)
    cushion, capacity = WeightCredits.cushion * vector_beats, tiles * tile_beats
    for stored, value in urgent:
        if stored >= cushion or stored == capacity:
            assert not value, f"urgent with {stored} of {capacity} beats"
        elif stored < min(cushion, capacity // 2):
            assert value, f"not urgent with {stored} of {capacity} beats"
