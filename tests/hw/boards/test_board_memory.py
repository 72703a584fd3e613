# amaranth: UnusedElaboratable=no
"""Tests of the board's block RAM behind two ports against a bytearray, covering random traffic with stalls, order, throughput and
latency."""

import pytest

from amaranth_tpu.hw.boards.board_memory import BoardMemory
from amaranth_tpu.sim.rtl.ports import simulate
from bench_board_memory import start, stream, traffic
from seeds import seed
from suites import slow


@pytest.mark.parametrize("size, width", [(4096, 32), *slow((8192, 64)), (8192, 256)])
@pytest.mark.parametrize(
    "asks, takes, always_ready", [*slow((1, 1, False), (0.3, 1, True), (1, 0.3, False), (0.7, 0.5, True)), (0.5, 0.5, False)]
)
def test_random(size, width, asks, takes, always_ready):
    memory = BoardMemory(size=size, address_width=32, data_width=width, always_ready=always_ready)
    least = {"read": 200, "write": 100, "lite_read": 20, "lite_write": 20}
    paces = {"asks": asks, "takes": takes, "always_ready": always_ready}
    simulate(memory, traffic, seed=seed(), size=size, beat=width // 8, least=least, **paces)


@pytest.mark.parametrize("size", [1 << 16, 1 << 17])
def test_read_throughput_is_one_beat_per_cycle(size):
    """Bursts of two or more beats are read at one beat a cycle after a latency of 7 cycles."""
    for beats in (2, 3, 16):
        memory = BoardMemory(size=size, address_width=32, data_width=32, always_ready=True)
        assert simulate(memory, stream, seed=seed(), beats=beats, bursts=20) == (7, 20 * beats)


async def write_burst(ports, rng, *, beats):
    """Writes a burst whose data are always valid. Returns the cycles in which its beats are accepted."""
    start(ports)
    ports.set(write__awvalid=1, write__awlen=beats - 1, write__bready=1)
    await ports.until("write__awready", 5)
    await ports.tick()
    ports.set(write__awvalid=0, write__wvalid=1)
    accepted = []
    while len(accepted) < beats:
        ports.set(write__wlast=len(accepted) == beats - 1)
        accepted += [ports.cycle] * ports.get("write__wready")
        await ports.tick()
    return accepted


def test_write_throughput_is_one_beat_per_cycle():
    memory = BoardMemory(size=1 << 16, address_width=32, data_width=32)
    accepted = simulate(memory, write_burst, seed=seed(), beats=16)
    assert accepted == [*range(accepted[0], accepted[0] + 16)]


async def across_banks(ports, rng, *, banks):
    """Writes two words to each bank, then reads them with one burst per bank, and checks that no cycle is idle between beats."""
    start(ports)
    ports.set(lite__bready=1, lite__wstrb=15)
    for word in range(2 * banks):
        ports.set(lite__awvalid=1, lite__wvalid=1, lite__awaddr=(word >> 1) << 16 | (word & 1) << 2, lite__wdata=0x1000 + word)
        await ports.until("lite__awready", 20)
        await ports.tick()
        ports.set(lite__awvalid=0, lite__wvalid=0)
        await ports.tick()
    found, asked = [], 0
    ports.set(read__arvalid=1, read__arlen=1, read__araddr=0, read__rready=1)
    while len(found) < 2 * banks:
        if ports.get("read__rvalid"):
            found.append(ports.get("read__rdata"))
        taken = ports.get("read__arvalid") and ports.get("read__arready")
        await ports.tick()
        if taken:
            asked += 1
            ports.set(read__arvalid=asked < banks, read__araddr=asked << 16)
    return found


def test_banks():
    memory = BoardMemory(size=1 << 18, address_width=32, data_width=32)
    assert simulate(memory, across_banks, seed=seed(), banks=4) == [0x1000 + word for word in range(8)]


@pytest.mark.parametrize("size", [0, 2048, 5000, 12288])
def test_impossible(size):
    with pytest.raises(ValueError, match=f"size must be a power of two and at least 4096, not {size}"):
        BoardMemory(size=size, address_width=32, data_width=64)
