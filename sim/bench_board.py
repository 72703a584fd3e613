"""cocotb bench of a board: its driver, at the pins of the serial line."""

from pathlib import Path

import cocotb
import numpy
from cocotb.clock import Clock
from cocotb.triggers import Timer

from sim.board import Board
from sim.golden import bfloat16
from sim.network import load_network
from sim.runner import arguments, report, tick
from sim.serial_link import SerialLink
from sim.uart_pins import UartPins

PERIOD = 10


async def prepare(dut, *, clock, baud, timeout, silence):
    """Starts the oscillator, which stands in for the PLL's output, and returns the line and the link."""
    dut.button.value = 0
    second = clock * PERIOD
    line = UartPins(dut.uart_rx, dut.uart_tx, bit=second // baud, second=second)
    Clock(dut.clk25, PERIOD, "ns").start()
    await Timer(100 * PERIOD, "ns")
    return line, SerialLink(line, baud=baud, timeout=timeout, silence=silence)


@cocotb.test()
async def run(dut):
    """A network and samples, from files."""
    job = arguments()
    _, link = await prepare(dut, **job["line"])
    board = await Board.connect(link)
    network = load_network(Path(job["network"]))
    samples = numpy.load(job["samples"]).astype(bfloat16)
    program = board.compile(network, len(samples), job["batch"])
    result = await board.run(network, program, samples, tick)
    report({"n": board.config.n, "memory": board.memory, "mismatched_bits": result.mismatched_bits, "cycles": result.cycles,
            "logits": result.logits.tolist(), "batches": result.batches, "fault": result.fault})
