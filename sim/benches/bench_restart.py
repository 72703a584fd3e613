"""cocotb bench for starts exactly in the cycle after HALT.

Arguments
---------
runs : list of dict
    `regions` of each program. The program runs once or more to count its cycles. Then it runs twice: the second start arrives in
    the first cycle in which it is not ignored, the cycle after HALT.
window : (int, int)
    First and last word of the memory that is dumped at the end.

Reports, for each program, the `fault` of its last run and how many `times` it ran, and the memory in the file that the plusarg
`dump` names.
"""

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge

from ..rtl.bench_side import arguments, report
from .bench_run import dump, prepare


async def _begin(dut, driver):
    """Starts a run; returns the cycle in which the write to `control` began."""
    await driver.write("interrupt", 0b11)
    begun = int(dut.cycle.value)
    await driver.write("control", 1)
    return begun


async def _cycles(dut, driver):
    """Returns the cycles of a run, from the write to `control` to the interrupt."""
    begun = await _begin(dut, driver)
    await RisingEdge(dut.irq)
    return int(dut.cycle.value) - begun


async def _twice(dut, driver, cycles):
    """Starts a run, and again `cycles` later; returns whether the second start took effect, and the result of that run."""
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
            early -= 1  # the earliest start that takes effect
        taken, fault = await _twice(dut, driver, cycles + 2 - early)
        assert taken, f"the start {early} cycles early was ignored"
        results.append({"fault": fault, "times": times + 2})
    await dump(dut, *job["window"])
    report({"runs": results, "protocol_errors": int(dut.errors.value)})
