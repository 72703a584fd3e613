"""A bit-level serial line to a component in Amaranth's simulator, with faults."""

from collections import deque


class Line:
    """Transport for :class:`sim.host.serial_link.SerialLink` over the members `rx` and `tx` of a component.

    Parameters
    ----------
    ports : of :mod:`sim.rtl.ports`.
    period : int
        Cycles per bit.
    clock : int
        Cycles per second.
    every : callable
        Called in each cycle, before its end.

    Attributes
    ----------
    sending, receiving : callables
        Faults of each direction, as functions from the list of sent bytes to the list of arriving bytes.
    """

    def __init__(self, ports, *, period, clock, every=lambda: None):
        self.ports, self.period, self.clock, self.every = ports, period, clock, every
        self.sending = self.receiving = list
        self.got = deque()
        self._phase = self._byte = None
        ports.set(rx=1)

    async def tick(self):
        """Simulates one clock cycle, and samples a bit of `tx` if it is due."""
        await self.ports.settle()
        level = self.ports.get("tx")
        if self._phase is None and not level:
            self._phase, self._byte = 0, []
        if self._phase is not None:
            self._phase += 1
            if self._phase % self.period == self.period // 2:
                self._byte.append(level)
            if self._phase == 10 * self.period - self.period // 4:
                assert (self._byte[0], self._byte[9]) == (0, 1), "no start or no stop bit"
                self.got.extend(self.receiving([sum(bit << i for i, bit in enumerate(self._byte[1:9]))]))
                self._phase = None
        self.every()
        await self.ports.tick()

    async def bit(self, level):
        self.ports.set(rx=level)
        for _ in range(self.period):
            await self.tick()

    async def send(self, data):
        for byte in self.sending(list(data)):
            if byte is None:  # a damaged byte has no stop bit
                for level in (0, *[1] * 8, 0, 1, 1):
                    await self.bit(level)
            else:
                for level in (0, *(byte >> i & 1 for i in range(8)), 1):
                    await self.bit(level)

    async def receive(self, count, seconds):
        end = self.ports.cycle + seconds * self.clock
        while len(self.got) < count and self.ports.cycle < end:
            await self.tick()
        return bytes(self.got.popleft() for _ in range(min(count, len(self.got))))

    async def drop(self, seconds):
        for _ in range(100):
            self.got.clear()
            end = self.ports.cycle + seconds * self.clock
            while not self.got and self.ports.cycle < end:
                await self.tick()
            if not self.got:
                return True
        return False
