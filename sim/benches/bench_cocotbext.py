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


def agents_of(dut, image):
    """Starts the clock of a core in reset. Returns the memory with `image`, the AXI4-Lite master, and the arguments with which
    further agents of cocotbext-axi are created."""
    dut.aresetn.value = 0
    Clock(dut.aclk, PERIOD, "ns").start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reset = dict(clock=dut.aclk, reset=dut.aresetn, reset_active_level=False)
        memory = AxiRam(AxiBus.from_prefix(dut, "m_axi"), size=len(image), **reset)
        master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), **reset)
    for interface in (memory.write_if, memory.read_if, master.write_if, master.read_if):
        interface.log.setLevel("WARNING")
    memory.write(0, image)
    return memory, master, reset


async def release(dut, channels, pause):
    """Ends the reset. The channels stall in each cycle with the probability `pause`."""
    rng = random.Random(cocotb.RANDOM_SEED)
    if pause:
        for channel in channels:
            channel.set_pause_generator(iter(lambda: rng.random() < pause, None))
    await ClockCycles(dut.aclk, 4)
    dut.aresetn.value = 1
    await ClockCycles(dut.aclk, 4)


@cocotb.test()
async def network(dut):
    job = arguments()
    image = Path(job["image"]).read_bytes()
    memory, master, _ = agents_of(dut, image)
    channels = [getattr(one.write_if, f"{name}_channel") for one in (memory, master) for name in ("aw", "w", "b")]
    channels += [getattr(one.read_if, f"{name}_channel") for one in (memory, master) for name in ("ar", "r")]
    await release(dut, channels, job["pause"])
    driver = Driver(AxiLiteHost(master, dut.irq))
    identity = await driver.identify()
    await driver.configure_regions(job["regions"])
    await driver.start()
    await driver.wait(200_000)
    counters = await driver.counters()
    Path(job["output"]).write_bytes(bytes(memory.read(0, len(image))))
    report({"identity": identity, "counters": counters})
