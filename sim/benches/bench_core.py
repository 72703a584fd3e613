"""cocotb bench that starts a core many times in one simulation. Runs may be successful, end with a fault, or be aborted.

Arguments
---------
runs : list of dict
    For each run: `regions`, `pc`, and optional settings:
    - `timeout`: value of the timeout register.
    - `ring`: rank and ring size of a core that is its own neighbour.
    - `limit`: number of cycles to wait for the end of the run.
    - `abort`: number of cycles after which the run is ended through the control register.
    - `cut`, `cut_cycles`, `cut_answers`: after `cut` cycles, the core alone is reset for `cut_cycles`. The reset waits until read
      responses are outstanding, and also write responses if `cut_answers`. It never starts while write data is outstanding.
    - `flip`: cycles, register and bit. After these cycles the bit of the register, such as `dispatcher.idle`, is inverted.
      Counters are not checked.
    - `until_quiet`: number of cycles to wait for the bus after the run.
    - `polls`: number of status reads to wait for the bus after a fault (default 0).
    - `reuse`: first and last word of memory to clear when the driver reports a fault.
window : (int, int)
    First and last word of the memory region that is dumped at the end.

Reports for each run `fault`, `counters`, `waited` (cycles from start to end) and `owed` (read bursts outstanding at a `cut`). The
memory is written to the file named by the plusarg `dump`. Assertions check for every run that the counters add up, and that the
interrupt is set. They also check that a fault is sticky until a reset: a start must not clear it, and the reset must clear it
completely.
"""

from functools import reduce

import cocotb
from cocotb.triggers import ClockCycles, FallingEdge, ReadOnly, RisingEdge

from amaranth_tpu.hw.spec.registers import REGISTER

from ..host.driver import CoreFault, CoreTimeout, flush_ring
from ..rtl.bench_side import arguments, report, tick
from .bench_run import dump, prepare

CLEAR = {"running": 0, "done": 0, "fault": 0}


async def _state(driver):
    status = await driver.status()
    return {name: status[name] for name in CLEAR}


async def _reset(driver):
    await driver.write("control", 0b10)
    await driver.write("interrupt", 0b10)


async def _check_sticky(dut, driver, cause, pc):
    assert int(dut.irq.value) == 1, "no interrupt after a fault"
    await driver.write("control", 1)
    await ClockCycles(dut.clk, 5)
    assert await _state(driver) == {**CLEAR, "fault": 1}, "a start after a fault is not ignored"
    assert await driver.read("fault_cause") == cause.value and await driver.read("fault_pc") == pc, "fault is not sticky"
    await _reset(driver)
    assert await _state(driver) == CLEAR, "a reset does not clear the status"
    assert await driver.read("fault_cause") == 0 and int(dut.irq.value) == 0


async def _check_counters(driver):
    counters = await driver.counters()
    parts = counters["busy"] + sum(value for name, value in counters.items() if name.startswith("stall_"))
    assert parts == counters["cycles"], f"{parts} cycles are accounted for, of {counters['cycles']}"
    return counters


async def _cut(dut, job):
    """Resets the core alone, without the memory. Returns the number of read bursts outstanding at the reset. Returns 0 if the
    run ends before any burst is outstanding."""
    memory, core, owed = dut.memory, dut.core, 0
    await ClockCycles(dut.clk, job["cut"])
    while not owed and not int(dut.irq.value):
        await RisingEdge(dut.clk)
        await ReadOnly()
        half_written = any(int(signal.value) for signal in (memory.write_open, core.m_axi_awvalid, core.m_axi_wvalid))
        if not half_written and (int(memory.write_count.value) or not job["cut_answers"]):
            owed = int(memory.read_count.value)
    await FallingEdge(dut.clk)
    dut.bd_reset.value = 1
    await ClockCycles(dut.clk, job["cut_cycles"])
    await FallingEdge(dut.clk)
    dut.bd_reset.value = 0
    await RisingEdge(dut.clk)
    return owed


async def _flip(dut, cycles, register, bit):
    await ClockCycles(dut.clk, cycles)
    await FallingEdge(dut.clk)
    signal = reduce(getattr, register.split("."), dut.core)
    if signal.value.is_resolvable:  # else its bits are unknown anyway
        signal.value = int(signal.value) ^ 1 << bit


async def _reuse(dut, first, last):
    for word in range(first, last + 1):
        dut.bd_address.value, dut.bd_wdata.value, dut.bd_write.value = word, 0, 1
        await RisingEdge(dut.clk)
    dut.bd_write.value = 0


async def _one(dut, driver, job):
    await driver.configure_regions(job.get("regions", {}))
    if "ring" in job:
        await driver.join_ring(*job["ring"])
        await flush_ring([driver], looks=1)
    if "timeout" in job:
        await driver.write("timeout", job["timeout"])
    assert int(dut.irq.value) == 0 or not (await driver.status())["running"]
    await driver.start(job.get("pc", 0))
    started = int(dut.cycle.value)
    result = {"fault": None}
    if "cut" in job:
        result["owed"] = await _cut(dut, job)
        assert await _state(driver) == CLEAR, "the status is not clear after a reset of the core"
        assert not any((await driver.counters()).values()), "a counter is not 0 after a reset of the core"
        return result
    if "flip" in job:
        await _flip(dut, *job["flip"])
    if "abort" in job:
        await ClockCycles(dut.clk, job["abort"])
        result["state"] = await driver.status()
        await _reset(driver)
        assert await _state(driver) == CLEAR, "a reset does not end a run"
    else:
        try:
            await driver.wait(job.get("limit", 1_000_000), job.get("polls", 0))
            assert int(dut.irq.value) == 1, "no interrupt after HALT"
        except CoreFault as fault:
            result["fault"] = [fault.cause.name, fault.pc]
            await _reuse(dut, *job.get("reuse", (0, -1)))
            await _check_sticky(dut, driver, fault.cause, fault.pc)
        except CoreTimeout:
            result["fault"] = ["LIMIT", 0]
            await _reset(driver)
    result["waited"] = int(dut.cycle.value) - started
    if "flip" not in job:
        result["counters"] = await _check_counters(driver)
    for _ in range(job.get("until_quiet", 0) // 10):
        if (await driver.status())["quiet"]:
            break
        await ClockCycles(dut.clk, 10)
    result["quiet"] = (await driver.status())["quiet"]
    return result


@cocotb.test()
async def runs(dut):
    job = arguments()
    driver = await prepare(dut)
    for name in REGISTER:
        await driver.read(name)  # an unknown bit is an error
    results = []
    for number, one in enumerate(job["runs"]):
        try:
            results.append(await _one(dut, driver, one))
        except Exception as error:
            raise AssertionError(f"run {number}: {error}") from error
        tick(number + 1, len(job["runs"]))
    await dump(dut, *job["window"])
    report({"runs": results, "protocol_errors": int(dut.errors.value)})
