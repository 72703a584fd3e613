"""cocotb bench that starts a core exactly in the cycle after HALT.

Arguments
---------
runs : list of dict
    For each program: `regions`. The bench first executes the program once or more to count its cycles, and then twice in a row.
    The second start arrives in the cycle after HALT, the first cycle in which a start is not ignored.
window : (int, int)
    First and last word of the memory region that is dumped at the end.

Reports for each program the `fault` of its last execution, and the number of executions as `times`. The memory is written to the
file named by the plusarg `dump`.
"""

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge

from ..rtl.bench_side import arguments, report
from .bench_run import dump, prepare


async def _begin(dut, driver):
    """Starts the core. Returns the cycle in which the write to the register `control` began."""
    await driver.write("interrupt", 0b11)
    begun = int(dut.cycle.value)
    await driver.write("control", 1)
    return begun


async def _cycles(dut, driver):
    """Executes the program once. Returns the number of cycles from the write to `control` to the interrupt."""
    begun = await _begin(dut, driver)
    await RisingEdge(dut.irq)
    return int(dut.cycle.value) - begun


async def _twice(dut, driver, cycles):
    """Starts the core, and again `cycles` later. Returns `(taken, fault)`: True if the second start took effect, and cause and pc
    of the resulting fault or None."""
    begun = await _begin(dut, driver)
    await ClockCycles(dut.clk, begun + cycles - int(dut.cycle.value))
    await driver.write("control", 1)
    await ClockCycles(dut.clk, 3)
    status = await driver.status()
    taken = not status["done"]
    while status["running"]:
        status = await driver.status()
    fault = [await driver.read(name) for name in ("fault_cause", "fault_pc")] if status["fault"] else None
    if fault:
        await driver.reset()
    return taken, fault


@cocotb.test()
async def restarts(dut):
    job = arguments()
    driver = await prepare(dut)
    results, early = [], None
    for one in job["runs"]:
        await driver.configure_regions(one["regions"])
        cycles, times = await _cycles(dut, driver), 1
        if early is None:
            early, taken = 0, True
            while taken:
                early += 1
                taken, _ = await _twice(dut, driver, cycles + 2 - early)
                times += 1 + taken
            early -= 1  # the earliest cycle in which a start takes effect
        taken, fault = await _twice(dut, driver, cycles + 2 - early)
        assert taken, f"the start {early} cycles early was ignored"
        results.append({"fault": fault, "times": times + 2})
    await dump(dut, *job["window"])
    report({"runs": results, "protocol_errors": int(dut.errors.value)})
