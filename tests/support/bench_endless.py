"""A cocotb bench that never ends, for the tests of the simulation runner."""

import time

import cocotb
from cocotb.triggers import Timer

from amaranth_tpu.sim.rtl.bench_side import tick


@cocotb.test()
async def endless(dut):
    while True:
        await Timer(1, "us")
        time.sleep(0.01)


@cocotb.test()
async def short(dut):
    await Timer(1, "us")


@cocotb.test()
async def ticking(dut):
    for number in range(1, 6):
        await Timer(1, "us")
        time.sleep(1)
        tick(number, 5)
    while True:
        await Timer(1, "us")
        time.sleep(0.01)
