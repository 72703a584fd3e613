"""cocotb bench that executes all batches on all cores of a ring. A batch starts on all cores, and ends when all cores have ended.

No Python is executed between the start of a batch and its interrupts. :func:`sim.host.rtl_run.run_batches` defines arguments and
results.
"""

import cocotb
import numpy

from ..host.driver import Driver, flush_ring
from ..rtl.bench_side import arguments, report
from ..rtl.memory_images import read_dump
from .bench_run import Ticker, dump, prepare_port


class _Selected:
    """The register port of one core. Its interrupt is the common interrupt of all cores."""

    def __init__(self, port, select, number):
        self._port, self._select, self._number = port, select, number
        self.interrupt = port.interrupt

    async def read(self, offset):
        self._select.value = self._number
        return await self._port.read(offset)

    async def write(self, offset, value):
        self._select.value = self._number
        await self._port.write(offset, value)


async def _batch(drivers, index, batch, cycles):
    """Executes one batch. Returns `(counters of each core, fault)` as :meth:`sim.host.driver.Driver.run_batch` does.

    The fault is the first fault that does not come from waiting for another core.
    """
    for driver in drivers:
        await driver.configure_regions(batch.get("regions", {}))
    for driver in drivers:
        await driver.start(batch.get("pc", 0))
    counters, faults = [], []
    for driver in drivers:
        counted, fault = await driver.end_batch(index, cycles)
        counters.append(counted | await driver.ring_words())
        faults += [fault] if fault else []
    return counters, min(faults, key=lambda fault: fault["cause"] in ("TIMEOUT", "CYCLE_LIMIT"), default=None)


@cocotb.test()
async def run(dut):
    job = arguments()
    dut.select.value = 0
    port = await prepare_port(dut)
    drivers = [Driver(_Selected(port, dut.select, number)) for number in range(job["cores"])]
    for rank, driver in enumerate(drivers):
        await driver.join_ring(rank, len(drivers))
    await flush_ring(drivers, looks=1)  # the links are empty: all cores and links were reset together
    result = {"identity": await drivers[0].identify(), "batches": [], "fault": None}
    batches = job["batches"]
    ticker = Ticker(dut, port, len(batches))
    for index, batch in enumerate(batches):
        counters, result["fault"] = await _batch(drivers, index, batch, job["cycle_limit"])
        result["batches"].append(counters)
        ticker(index + 1)
        if result["fault"]:
            break
    result |= ticker.figures
    await dump(dut, *job["window"])
    dumps = [read_dump(f"{job['dump']}.{number}", job["beat_bytes"])[: job["outputs"]] for number in range(job["cores"])]
    numpy.save(job["npy"], numpy.stack([numpy.frombuffer(one, numpy.uint8) for one in dumps]))
    result["protocol_errors"] = int(dut.errors.value)
    report(result)
