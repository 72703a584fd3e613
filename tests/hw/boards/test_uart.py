# amaranth: UnusedElaboratable=no
"""Tests of the serial line, covering back-to-back bytes, senders off by 3 %, damaged bytes, glitches, and a line that stays
low."""

import pytest

from amaranth_tpu.hw.boards.uart import UartReceiver, UartTransmitter, bit_step
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed
from suites import slow


def frame(byte, stop=1):
    return [0, *(byte >> i & 1 for i in range(8)), stop]


async def receive(ports, rng, *, levels, period):
    """Feeds bit `levels` of `period` (fractional) cycles each to the receiver. Returns the received bytes, with None for an
    error, and the idle flag."""
    got = []
    for cycle in range(round(len(levels) * period) + 20):
        ports.set(line=levels[int(cycle / period)] if cycle / period < len(levels) else levels[-1])
        await ports.settle()
        assert not (ports.get("valid") and ports.get("error")), "a byte without a stop bit is handed on"
        if ports.get("valid") or ports.get("error"):
            got.append(None if ports.get("error") else ports.get("data"))
        await ports.tick()
    return got, ports.get("idle")


@pytest.mark.parametrize(
    "clock, baud, off", [(4, 1, 0), (8, 1, 0.03), (8, 1, -0.03), (100, 12, 0), *slow((110, 3, 0.03), (110, 3, -0.03))]
)
def test_receive(clock, baud, off):
    data = [0x00, 0xFF, 0xA5, 0x01, 0x80, *range(0, 256, 7)]
    levels = [1, 1, *(level for byte in data for level in frame(byte)), 1]
    period = clock * 1_000_000 / (baud * 1_000_000 * (1 + off))
    receiver = UartReceiver(step=bit_step(clock * 1_000_000, baud * 1_000_000))
    assert simulate(receiver, receive, seed=seed(), levels=levels, period=period) == (data, 1)


def test_damage():
    levels = [1, *frame(0x12), *frame(0x34, stop=0), 0, 0, 0, 1]
    levels += [*frame(0x56), *frame(0x78, stop=0), *[0] * 40, 1, *frame(0x9A), 1]
    receiver = UartReceiver(step=bit_step(8, 1))
    got, idle = simulate(receiver, receive, seed=seed(), levels=levels, period=8)
    assert got == [0x12, None, 0x56, None, 0x9A] and idle
    # A line that stays low is not idle, and counts as one error.
    assert simulate(receiver, receive, seed=seed(), levels=[1, *[0] * 50], period=8) == ([None], 0)


def test_glitch():
    """A low pulse of a quarter of a bit does not start a byte."""
    levels = [*[1] * 8, *[0] * 2, *[1] * 30, *(level for bit in frame(0xC3) for level in [bit] * 8), *[1] * 8]
    assert simulate(UartReceiver(step=bit_step(8, 1)), receive, seed=seed(), levels=levels, period=1) == ([0xC3], 1)


async def transmit(ports, rng, *, data, pace, period):
    """Sends `data`. Returns the bytes on the line, sampled in the middle of each bit, and the number of cycles."""
    got, waiting, phase, bits = [], list(data), None, []
    ports.set(i__valid=0)
    first = None
    while len(got) < len(data):
        ports.set(i__valid=bool(waiting) and (pace == 1 or rng.random() < pace), i__payload=waiting[0] if waiting else 0)
        await ports.settle()
        if ports.get("i__valid") and ports.get("i__ready"):
            waiting.pop(0)
        line = ports.get("line")
        if phase is None and not line:
            phase, bits = 0.0, []
            first = ports.cycle if first is None else first
        if phase is not None:
            phase += 1
            if phase > (len(bits) + 0.5) * period:
                bits.append(line)
            if len(bits) == 10:
                assert (bits[0], bits[9]) == (0, 1), bits
                got.append(sum(bit << i for i, bit in enumerate(bits[1:9])))
                phase = None
        await ports.tick()
    return got, ports.cycle - first


@pytest.mark.parametrize("clock, baud", [(4, 1), (110, 3), (100, 12)])
@pytest.mark.parametrize("pace", [1, *slow(0.02)])
def test_transmit(clock, baud, pace):
    data = [0x00, 0xFF, 0x5A, *range(0, 256, 9)]
    transmitter = UartTransmitter(step=bit_step(clock * 1_000_000, baud * 1_000_000))
    got, cycles = simulate(transmitter, transmit, seed=seed(), data=data, pace=pace, period=clock / baud)
    assert got == data
    if pace == 1:
        assert abs(cycles / (10 * len(data) * clock / baud) - 1) < 0.01, "gaps between bytes"


@pytest.mark.parametrize("clock, baud", [(95_000_000, 24_000_000), (95_000_000, 100), (95_000_000, 0), (95_000_000, -9600)])
def test_impossible(clock, baud):
    with pytest.raises(ValueError, match=f"{clock} Hz makes no {baud} baud"):
        bit_step(clock, baud)
