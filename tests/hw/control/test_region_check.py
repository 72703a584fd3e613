# amaranth: UnusedElaboratable=no
"""Tests that the region check keeps the size of a region that is completely within the bus addresses, and sets other sizes to
0."""

import pytest

from amaranth_tpu.hw.control.region_check import RegionCheck
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


async def regions(ports, rng, *, width):
    """Checks 300 random regions of a bus of `width` address bits, many near the end of the address space."""
    end, inside = 1 << width, 0
    for _ in range(300):
        size = rng.choice((0, 1, 32, rng.getrandbits(32), (1 << 32) - 1))
        base = rng.choice((end - size, end - size + 1, end - size - 1, rng.getrandbits(width), rng.getrandbits(64), 0))
        base = max(0, min(base, (1 << 64) - 1))
        ports.set(region__base_low=base & 0xFFFFFFFF, region__base_high=base >> 32, region__size=size)
        await ports.settle()
        assert ports.get("o__base") == base % end
        await ports.tick()
        await ports.tick()
        fits = base < end and base + size <= end
        assert ports.get("o__size") == (size if fits else 0), f"{size} bytes from 0x{base:x} on, of {width} bits"
        inside += fits and size > 0
    assert 50 < inside < 250


@pytest.mark.parametrize("width", [32, 40, 64])
def test_region_beyond_the_addresses_has_size_0(width):
    simulate(RegionCheck(address_width=width), regions, seed=seed(), width=width)
