"""cocotb bench that passes, in a simulator that then ends with a status of its own, for the runner's tests."""

import atexit
import os

import cocotb
from cocotb.triggers import Timer


@cocotb.test()
async def passes(dut):
    await Timer(1, "us")
    atexit.register(os._exit, 3)
