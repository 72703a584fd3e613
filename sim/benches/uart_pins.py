"""A serial line at the pins of a simulated board, for cocotb benches."""

from collections import deque

import cocotb
from cocotb.triggers import FallingEdge, Timer
from cocotb.utils import get_sim_time

__all__ = ["UartPins"]


class UartPins:
    """A transport for :class:`sim.host.serial_link.SerialLink` that drives and samples the pins bit by bit.

    Parameters
    ----------
    to, back : handle
        Input pin and output pin of the board.
    bit : int
        Duration of a bit, in nanoseconds. Must be even.
    second : int
        Simulated nanoseconds that count as one second. A simulated board may have another clock than the nominal one.

    Attributes
    ----------
    sending, receiving : callables
        Fault models of the line, one per direction: functions from a list of bytes to a list of bytes.
    """

    def __init__(self, to, back, *, bit, second):
        self._to, self._back, self._bit, self._second = to, back, bit, second
        self._got = deque()
        self.sending = self.receiving = list
        to.value = 1
        cocotb.start_soon(self._listen())

    async def _listen(self):
        falling, half, bit = FallingEdge(self._back), Timer(self._bit // 2, "ns"), Timer(self._bit, "ns")
        while True:
            await falling
            await half
            byte = 0
            for position in range(8):
                await bit
                byte |= int(self._back.value) << position
            await bit
            assert self._back.value == 1, "no stop bit"
            self._got.extend(self.receiving([byte]))

    async def send(self, data):
        for byte in self.sending(list(data)):
            # The start bit is 0, the stop bit is 1. Equal consecutive bits are driven in one wait.
            bits, first = byte << 1 | 1 << 9, 0
            for position in range(1, 11):
                if position == 10 or bits >> position & 1 != bits >> first & 1:
                    self._to.value = bits >> first & 1
                    await Timer((position - first) * self._bit, "ns")
                    first = position

    def _after(self, seconds):
        return get_sim_time("ns") + seconds * self._second

    async def receive(self, count, seconds):
        end = self._after(seconds)
        while len(self._got) < count and get_sim_time("ns") < end:
            await Timer(10 * self._bit, "ns")
        return bytes(self._got.popleft() for _ in range(min(count, len(self._got))))

    async def drop(self, seconds):
        for _ in range(100):
            self._got.clear()
            await Timer(round(seconds * self._second), "ns")
            if not self._got:
                return True
        return False
