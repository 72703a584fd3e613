"""cocotb bench of a core without the project's own host models: memory and AXI4-Lite master are from the independent package
cocotbext-axi.

Arguments: `regions`; the files `image` and `output`, with the memory before and after; `pause`, the probability of a stall per
cycle on each channel.
"""

import random
import warnings
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam

from ..host.driver import Driver
from ..rtl.bench_side import arguments, report

PERIOD = 10


class AxiLiteHost:
    """A register port for :class:`sim.host.driver.Driver`, implemented with cocotbext-axi."""

    def __init__(self, master, irq):
        self._master, self._irq = master, irq

    async def read(self, offset):
        return await self._master.read_dword(offset)

    async def write(self, offset, value):
        await self._master.write_dword(offset, value)

    async def interrupt(self, cycles):
        if int(self._irq.value) == 0:
            await with_timeout(RisingEdge(self._irq), cycles * PERIOD, "ns")
        return True


@cocotb.test()
async def network(dut):
    job = arguments()
    rng = random.Random(cocotb.RANDOM_SEED)
    image = Path(job["image"]).read_bytes()
    dut.aresetn.value = 0
    Clock(dut.aclk, PERIOD, "ns").start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reset = dict(clock=dut.aclk, reset=dut.aresetn, reset_active_level=False)
        memory = AxiRam(AxiBus.from_prefix(dut, "m_axi"), size=len(image), **reset)
        master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), **reset)
    channels = [
        memory.write_if.aw_channel,
        memory.write_if.w_channel,
        memory.write_if.b_channel,
        memory.read_if.ar_channel,
        memory.read_if.r_channel,
        master.write_if.aw_channel,
        master.write_if.w_channel,
        master.write_if.b_channel,
        master.read_if.ar_channel,
        master.read_if.r_channel,
    ]
    for interface in (memory.write_if, memory.read_if, master.write_if, master.read_if):
        interface.log.setLevel("WARNING")
    if job["pause"]:
        for channel in channels:
            channel.set_pause_generator(iter(lambda: rng.random() < job["pause"], None))
    memory.write(0, image)
    await ClockCycles(dut.aclk, 4)
    dut.aresetn.value = 1
    await ClockCycles(dut.aclk, 4)

    driver = Driver(AxiLiteHost(master, dut.irq))
    identity = await driver.identify()
    await driver.configure_regions(job["regions"])
    await driver.start()
    await driver.wait(200_000)
    counters = await driver.counters()
    Path(job["output"]).write_bytes(bytes(memory.read(0, len(image))))
    report({"identity": identity, "counters": counters})
