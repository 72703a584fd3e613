"""cocotb bench of a board. The driver communicates through the pins of the serial line."""

import itertools
import random
from pathlib import Path

import cocotb
import numpy
from cocotb.clock import Clock
from cocotb.triggers import Timer
from cocotb.utils import get_sim_time

from amaranth_tpu.hw.spec.registers import IDENTIFIER

from ..frontend.load import load_network
from ..golden.arithmetic import bfloat16
from ..host.board import ConnectedBoard
from ..host.serial_link import LinkError, SerialLink
from ..rtl.bench_side import arguments, report, tick
from .uart_pins import UartPins

PERIOD = 10

#: Kinds of damage to a byte: functions of the byte and of its index in the frame.
_DAMAGES = {
    "corrupted": lambda byte, k: [byte ^ 0x20 if k == 6 else byte],
    "corrupted length": lambda byte, k: [byte ^ 0x02 if k == 3 else byte],
    "lost byte": lambda byte, k: [] if k == 7 else [byte],
    "lost first byte": lambda byte, k: [] if k == 0 else [byte],
    "silent": lambda byte, k: [],
}


async def prepare(dut, *, clock, baud, timeout, silence):
    """Starts the oscillator, which replaces the output of the PLL. Returns the serial line and the link to the board."""
    dut.button.value = 0
    second = clock * PERIOD
    line = UartPins(dut.uart_rx, dut.uart_tx, bit=second // baud, second=second)
    Clock(dut.clk25, PERIOD, "ns").start()
    await Timer(100 * PERIOD, "ns")
    return line, SerialLink(line, baud=baud, timeout=timeout, silence=silence)


class _Preloaded(SerialLink):
    """A link to a board whose memory already holds the program, which is compared at both ends instead of written."""

    async def write(self, address, data, progress=None, again=True):
        if address or len(data) <= 4096:
            return await super().write(address, data, progress, again)
        for place in (0, len(data) - 256):
            assert await self.read(place, 256) == data[place : place + 256], "the memory holds another program"
        progress(len(data), len(data))


@cocotb.test()
async def run(dut):
    """Executes a network on samples; both come from files. The program may be in the memory, to save time."""
    job = arguments()
    line, link = await prepare(dut, **job["line"])
    if job.get("preloaded"):
        link = _Preloaded(line, **{name: job["line"][name] for name in ("baud", "timeout", "silence")})
    board = await ConnectedBoard.connect(link)
    network = load_network(Path(job["network"]))
    samples = numpy.load(job["samples"]).astype(bfloat16)
    program = board.compile(network, len(samples), job["batch"])
    result = await board.run(network, program, samples, tick)
    report(
        {
            "n": board.config.n,
            "memory": board.memory,
            "mismatched_bits": result.mismatched_bits,
            "cycles": result.cycles,
            "logits": result.logits.tolist(),
            "batches": result.batches,
            "fault": result.fault,
            "violations": int(dut.errors.value) if hasattr(dut, "errors") else 0,  # of the rules of an SDRAM chip
        }
    )


def _damaging(damage, size):
    """Returns a fault model of the line, which applies `damage(byte, index in the transfer)` to transfers of `size` bytes."""
    places = itertools.count()
    return lambda data: [one for byte in data for one in damage(byte, next(places) % size)]


@cocotb.test()
async def faults(dut):
    """Damages transfers in both directions. Each time an error must be raised within the time limit, and the next transfer must
    work."""
    job = arguments()
    line, link = await prepare(dut, **job["line"])
    board = await ConnectedBoard.connect(link)
    timeout, silence = job["line"]["timeout"], job["line"]["silence"]
    limit = 3 * (timeout + 11 * silence + 10 * 2 * 60 / job["line"]["baud"])
    ended = {}
    for direction, size in (("sending", 53), ("receiving", 9)):  # number of bytes of the request, and of the response
        for name, damage in _DAMAGES.items():
            started = get_sim_time("ns")
            setattr(line, direction, _damaging(damage, size))
            try:
                await link.write(64, bytes(range(40)))
                raise AssertionError(f"{direction}, {name}: no error")
            except LinkError as error:
                ended[f"{direction} {name}"] = str(error)
            setattr(line, direction, list)
            seconds = (get_sim_time("ns") - started) / (job["line"]["clock"] * PERIOD)
            assert seconds < limit, f"{direction}, {name}: {seconds} s, more than {limit}"
            data = bytes(random.randbytes(40))
            await link.write(64, data)
            assert await link.read(64, 40) == data, f"after {direction}, {name}"
            assert (await link.registers.read(0)) == IDENTIFIER
    # An access beyond the memory is refused at once; it does not count as a damaged transfer.
    try:
        await link.read(board.memory, 4)
        raise AssertionError("a read beyond the memory")
    except LinkError as error:
        ended["beyond"] = str(error)
    report(ended)
