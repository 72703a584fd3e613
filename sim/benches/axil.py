"""An AXI4-Lite master for cocotb benches. It makes one access at a time; an access takes a few clock cycles."""

import contextlib
import time

from cocotb.triggers import RisingEdge, SimTimeoutError, with_timeout

__all__ = ["AxiLite"]

_FIRST_PART = 1024  # cycles of the first wait for an interrupt; later ones are twice as long until one takes `_SECONDS`
_SECONDS = 0.25


class AxiLite:
    """A register port for :class:`sim.host.driver.Driver`, which accesses the pins of a simulated core.

    Parameters
    ----------
    dut : handle
        Handle of the design, with the signals `{prefix}_awaddr` and so on.
    clock : handle
    irq : handle
        Interrupt of the core. Default: none; the object then has no method `interrupt`.
    period : int
        Clock period, in nanoseconds.
    limit : int
        Number of cycles without a response after which an access raises TimeoutError.

    Members
    -------
    on_wait : callable or None
        Called a few times a second while :meth:`interrupt` waits.
    """

    def __init__(self, dut, clock, *, prefix="s_axil", irq=None, period=10, limit=1000):
        self._edge = RisingEdge(clock)
        self._irq, self._period, self._limit, self.on_wait = irq, period, limit, None
        for name in (
            "awaddr",
            "awvalid",
            "awready",
            "wdata",
            "wstrb",
            "wvalid",
            "wready",
            "bresp",
            "bvalid",
            "bready",
            "araddr",
            "arvalid",
            "arready",
            "rdata",
            "rresp",
            "rvalid",
            "rready",
        ):
            setattr(self, "_" + name, getattr(dut, f"{prefix}_{name}"))
        for handle in (
            self._awvalid,
            self._wvalid,
            self._bready,
            self._arvalid,
            self._rready,
            self._awaddr,
            self._wdata,
            self._wstrb,
            self._araddr,
        ):
            handle.value = 0

    async def _taken(self, *pairs):
        """Holds each valid signal high up to the clock edge at which its ready signal is high."""
        for _ in range(self._limit):
            await self._edge
            for pair in [pair for pair in pairs if pair[1].value == 1]:
                pair[0].value = 0
                pairs = tuple(other for other in pairs if other is not pair)
            if not pairs:
                return
        raise TimeoutError(f"AXI4-Lite: no answer in {self._limit} cycles")

    async def _answer(self, valid, ready, response):
        for _ in range(self._limit):
            await self._edge
            if valid.value == 1:
                ready.value = 0
                return int(response.value)
        raise TimeoutError(f"AXI4-Lite: no response in {self._limit} cycles")

    async def write(self, offset, value, strobe=0xF):
        """Writes 32 bits to a register. Raises OSError if the core responds with an error."""
        self._awaddr.value, self._wdata.value, self._wstrb.value = offset, value, strobe
        self._awvalid.value = self._wvalid.value = self._bready.value = 1
        await self._taken((self._awvalid, self._awready), (self._wvalid, self._wready))
        if await self._answer(self._bvalid, self._bready, self._bresp):
            raise OSError(f"AXI4-Lite: error response to a write to {offset:#x}")

    async def read(self, offset):
        """Reads 32 bits from a register. Raises OSError if the core responds with an error."""
        self._araddr.value = offset
        self._arvalid.value = self._rready.value = 1
        await self._taken((self._arvalid, self._arready))
        if await self._answer(self._rvalid, self._rready, self._rresp):
            raise OSError(f"AXI4-Lite: error response to a read of {offset:#x}")
        return int(self._rdata.value)

    async def interrupt(self, cycles):
        """Waits for the interrupt, and executes Python only a few times a second in the meantime. Returns True if it arrives
        within `cycles`."""
        part = _FIRST_PART
        while self._irq.value != 1:
            if cycles <= 0:
                return False
            started = time.monotonic()
            with contextlib.suppress(SimTimeoutError):
                await with_timeout(RisingEdge(self._irq), min(part, cycles) * self._period, "ns")
                return True
            cycles -= part
            if self.on_wait:
                self.on_wait()
            part *= 2 if time.monotonic() - started < _SECONDS else 1
        return True
