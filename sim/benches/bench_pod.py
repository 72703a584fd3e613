"""cocotb bench of cores in a ring. Each core has its own memory and AXI4-Lite master from the independent package cocotbext-axi.

Arguments
---------
images, outputs : list of files
    Memory of every core before and after the runs.
runs : list of lists of dict
    For every core: `regions`, and optional settings. `timeout` is the value of the register, `delay` the number of cycles until
    the start of the core. `rank` and `size` are the position in the ring and the number of cores (default: the pod's). `aresetn`
    is the number of cycles from the start until a reset of this core alone, which ends its run.
recover : list of str
    Recovery before every run that is the first or follows a fault. `flush` resets all cores and flushes their links; `reset` only
    resets the cores.
pause : float
    Probability of a stall per cycle on each channel.

Reports for each run and core `fault` (cause and pc), `counters`, `ring_sent`, `ring_received`, and `ring_state` after all cores
have ended.
"""

import random
import warnings
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.handle import Force, Release
from cocotb.triggers import ClockCycles

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam

from ..host.driver import CoreFault, Driver, flush_ring
from ..rtl.bench_side import arguments, report
from .bench_cocotbext import PERIOD, AxiLiteHost


def _agents(dut, rank, image, rng, pause):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reset = dict(clock=dut.aclk, reset=dut.aresetn, reset_active_level=False)
        memory = AxiRam(AxiBus.from_prefix(dut, f"core{rank}_m_axi"), size=len(image), **reset)
        master = AxiLiteMaster(AxiLiteBus.from_prefix(dut, f"core{rank}_s_axil"), **reset)
    for interface in (memory.write_if, memory.read_if, master.write_if, master.read_if):
        interface.log.setLevel("WARNING")
    if pause:
        for interface in (memory.write_if, memory.read_if):
            for channel in (getattr(interface, f"{name}_channel", None) for name in ("aw", "w", "b", "ar", "r")):
                if channel is not None:
                    channel.set_pause_generator(iter(lambda: rng.random() < pause, None))
    memory.write(0, image)
    return memory, Driver(AxiLiteHost(master, getattr(dut, f"core{rank}_irq")))


async def _reset(dut, core):
    """Resets one core. In the pod all cores share `aresetn`, so this forces the wire that each core derives from it."""
    core.bus_rst.value = Force(1)
    await ClockCycles(dut.aclk, 2)
    core.bus_rst.value = Release()
    await ClockCycles(dut.aclk, 1)


async def _one(dut, driver, rank, size, job):
    await driver.configure_regions(job["regions"])
    await driver.join_ring(job.get("rank", rank), job.get("size", size))
    await driver.write("timeout", job.get("timeout", 3000))
    await ClockCycles(dut.aclk, job.get("delay", 0) + 1)
    await driver.start()
    if "aresetn" in job:
        await ClockCycles(dut.aclk, job["aresetn"])
        await _reset(dut, getattr(dut, f"core{rank}"))
        return {"fault": None}
    fault = None
    try:
        await driver.wait(100_000)
    except CoreFault as error:
        fault = [error.cause.name, error.pc]
    counters = await driver.counters()
    assert counters["cycles"] == sum(count for name, count in counters.items() if name == "busy" or name.startswith("stall_"))
    return {"fault": fault, "counters": counters, **{name: await driver.read(name) for name in ("ring_sent", "ring_received")}}


@cocotb.test()
async def runs(dut):
    job = arguments()
    rng = random.Random(cocotb.RANDOM_SEED)
    dut.aresetn.value = 0
    Clock(dut.aclk, PERIOD, "ns").start()
    agents = [_agents(dut, rank, Path(image).read_bytes(), rng, job["pause"]) for rank, image in enumerate(job["images"])]
    drivers = [driver for _, driver in agents]
    await ClockCycles(dut.aclk, 4)
    dut.aresetn.value = 1
    await ClockCycles(dut.aclk, 4)
    results, recover = [], True
    for number, cores in enumerate(job["runs"]):
        if recover:
            for driver in drivers:
                await driver.reset()
            if job["recover"][number] == "flush":
                await flush_ring(drivers, looks=10)
        tasks = [cocotb.start_soon(_one(dut, drivers[rank], rank, len(cores), core)) for rank, core in enumerate(cores)]
        results.append([await task for task in tasks])
        for driver, result in zip(drivers, results[number]):
            result["ring_state"] = await driver.ring_state()
        recover = any(result["fault"] for result in results[number])
    for (memory, _), image, output in zip(agents, job["images"], job["outputs"]):
        Path(output).write_bytes(bytes(memory.read(0, Path(image).stat().st_size)))
    report({"runs": results})
