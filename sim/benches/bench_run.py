"""cocotb bench that executes all batches of a network. The simulator loads the memory image, and the bench dumps the results.

No Python is executed between the start of a batch and its interrupt. :func:`sim.host.rtl_run.run_batches` defines arguments and
results.
"""

import time

import cocotb
import numpy
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from ..host.driver import Driver
from ..rtl.bench_side import arguments, report, tick
from ..rtl.memory_images import read_dump
from .axil import AxiLite

PERIOD = 10


async def prepare(dut):
    """Starts the clock, resets the core, and returns a :class:`sim.host.driver.Driver`."""
    return Driver(await prepare_port(dut))


class Ticker:
    """The progress of a bench: batches, cycles and seconds since the object was made. It is sent at most every tenth of a
    second.

    Parameters
    ----------
    dut : handle
    port : AxiLite
        Port whose waits for an interrupt send progress, too.
    batches : int
    """

    def __init__(self, dut, port, batches):
        self._cycle, self._batches, self._done, self._ticked = dut.cycle, batches, 0, 0
        self._first, self._started = int(dut.cycle.value), time.perf_counter()
        port.on_wait = self

    @property
    def figures(self):
        """Returns the entries of the report: `simulated_cycles`, `seconds` and `cycles_per_second`."""
        cycles, seconds = int(self._cycle.value) - self._first, time.perf_counter() - self._started
        return {"simulated_cycles": cycles, "seconds": seconds, "cycles_per_second": cycles / max(seconds, 1e-9)}

    def __call__(self, done=None):
        """Sends progress. `done` is the number of batches that have ended, by default as before."""
        self._done = self._done if done is None else done
        if (now := time.monotonic()) > self._ticked + 0.1 or self._done == self._batches:
            self._ticked, figures = now, self.figures
            tick(self._done, self._batches, figures["simulated_cycles"], figures["seconds"])


async def prepare_port(dut):
    """Starts the clock, resets the core, and returns the register port of the core."""
    for name in ("address", "last", "wdata", "write", "read", "dump"):
        getattr(dut, f"bd_{name}").value = 0
    dut.rst_n.value = 0
    port = AxiLite(dut, dut.clk, irq=dut.irq, period=PERIOD)
    Clock(dut.clk, PERIOD, "ns").start()
    await ClockCycles(dut.clk, 3)  # the clock edge at time 0, and the two edges that the datasheet requires
    dut.rst_n.value = 1
    await ClockCycles(dut.clk, 2)
    return port


async def dump(dut, first, last):
    """Makes the memory model write its words `first` to `last` to the file named by the plusarg `dump`."""
    dut.bd_address.value, dut.bd_last.value, dut.bd_dump.value = first, last, 1
    await RisingEdge(dut.clk)
    dut.bd_dump.value = 0
    await ClockCycles(dut.clk, 2)


@cocotb.test()
async def run(dut):
    job = arguments()
    port = await prepare_port(dut)
    driver = Driver(port)
    result = {"identity": await driver.identify(), "batches": [], "fault": None}
    batches = job["batches"]
    ticker = Ticker(dut, port, len(batches))
    for index, batch in enumerate(batches):
        await driver.configure_regions(batch.get("regions", {}))
        counters, result["fault"] = await driver.run_batch(index, job["cycle_limit"], batch.get("pc", 0))
        result["batches"].append(counters)
        if result["fault"]:
            break
        ticker(index + 1)
    result |= ticker.figures
    ticker(len(batches))
    await dump(dut, *job["window"])
    output = numpy.frombuffer(read_dump(job["dump"], job["beat_bytes"])[: job["outputs"]], numpy.uint8)
    numpy.save(job["npy"], output)
    result["protocol_errors"] = int(dut.errors.value)
    report(result)
