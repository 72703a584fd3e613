"""cocotb bench of a LiteX SoC with a core: its host port sets registers, runs one program, and reads results in memory."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles

from ..host.driver import Driver
from ..rtl.bench_side import arguments, report
from .axil import AxiLite

PERIOD = 10


class _Window:
    """The registers of a core at a base address of a host's port."""

    def __init__(self, port, base):
        self._port, self._base, self.interrupt = port, base, port.interrupt

    async def read(self, offset):
        return await self._port.read(self._base + offset)

    async def write(self, offset, value):
        await self._port.write(self._base + offset, value)


@cocotb.test()
async def run(dut):
    job = arguments()
    dut.rst_n.value = 0
    port = AxiLite(dut, dut.clk, irq=dut.irq, period=PERIOD)
    Clock(dut.clk, PERIOD, "ns").start()
    await ClockCycles(dut.clk, 20)
    dut.rst_n.value = 1
    await ClockCycles(dut.clk, 100)
    driver = Driver(_Window(port, job["core"]))
    await driver.identify()
    await driver.configure_regions(job["regions"])
    counters, fault = await driver.run_batch(0, job["limit"])
    assert not fault, fault
    base, size = job["regions"]["OUTPUT"]
    report(counters | {"output": [await port.read(base + place) for place in range(0, size, 4)]})
