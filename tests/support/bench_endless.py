"""A cocotb bench that never ends, for the tests of the simulation runner."""

import cocotb
from cocotb.triggers import Timer


@cocotb.test()
async def endless(dut):
    while True:
        await Timer(1, "us")


@cocotb.test()
async def short(dut):
    await Timer(1, "us")
