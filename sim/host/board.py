"""Execution of a network on a board, over a serial line, with the same compiler, memory layout and driver as in simulation."""

import asyncio
import time
from dataclasses import fields

import numpy as np

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.cell_stages import STAGES, split_stages
from amaranth_tpu.hw.spec.isa import Region

from ..compiler.compile import compile_network
from ..compiler.errors import CompileError
from ..golden.arithmetic import bfloat16
from ..golden.network import run_network
from ..ir.row_norms import with_row_norms
from .driver import Driver
from .host_image import cycle_limit
from .inference import InferenceImage, even_batch, summarize
from .program_check import checked_program
from .serial_link import SerialLink
from .serial_port import SerialPort

__all__ = ["BoardError", "ConnectedBoard", "connected_config", "run_on_board"]

_BATCHES = (128, 64, 32, 16, 8, 4, 2, 1)


class BoardError(RuntimeError):
    """An error for a board or core that this driver does not support. The message is one line."""


def connected_config(found):
    """Returns the :class:`hw.config.Config` of a core, from the values of its registers: `found` is from
    :meth:`.Driver.identify`."""
    for stages in STAGES:
        if split_stages(stages) == (found["lead"], found["latency"]):
            break
    else:
        raise BoardError(
            f"the core's cells have {found['lead']} lead stages and a latency of {found['latency']}, which this "
            "version does not support"
        )
    sizes = {field.name: found[field.name] for field in fields(Config) if field.name in found}
    sizes["weight_rows"] = max(sizes["weight_rows"], 1)
    sizes["softmax_lanes"] = max(sizes["softmax_lanes"], 1 + sizes["normalize"])  # 0 in older cores
    return Config(**sizes, cell_stages=stages, bus_width=8 * found["bus_bytes"])


class ConnectedBoard:
    """A board with a core, connected by a serial line. :meth:`connect` creates it.

    Attributes
    ----------
    config : Config
        Configuration of the core, read from its registers.
    memory : int
        Size of the board's host memory, in bytes.
    clock : int
        Clock frequency of the core, in Hz.
    """

    def __init__(self, link, config, memory, clock):
        self._link, self._driver = link, Driver(link.registers)
        self.config, self.memory, self.clock = config, memory, clock

    @classmethod
    async def connect(cls, link):
        """Identifies the board and its core, over a :class:`.SerialLink`. Raises BoardError, or LinkError if no board answers."""
        bridge = await link.identify()
        try:
            found = await Driver(link.registers).identify()
        except RuntimeError as error:
            raise BoardError(str(error)) from None
        return cls(link, connected_config(found), bridge["memory"], bridge["clock"])

    def compile(self, network, count, batch=None, effort="best", check=True):
        """Compiles a network for batches of `batch` samples, and checks the program. Default: equal batches for all `count`
        samples, as large as the memory permits, at most 128. Raises CompileError if the core or the memory is too small. Raises
        RunError if the program is wrong; see :func:`.checked_program`. Not without `check`."""
        for size in [batch] if batch else sorted({even_batch(count, size) for size in _BATCHES}, reverse=True):
            least = size * (2 * network.input_size + 4 * network.output_size)
            if least > self.memory and size > 1 and not batch:
                continue
            program = compile_network(network, self.config, size, effort)
            needed = InferenceImage(program, np.zeros((size, network.input_size), bfloat16)).size
            if needed <= self.memory:
                return checked_program(network, program) if check else program
        sizes = program.sizes
        raise CompileError(
            f"the board's memory is too small: batches of {size} need {needed:,} bytes ({len(program.model):,} of program and "
            f"weights, {sizes[Region.INPUT]:,} of inputs, {sizes[Region.OUTPUT]:,} of outputs, {sizes[Region.SCRATCH]:,} between "
            f"layers, in pages of 4,096), it has {self.memory:,}; use "
            + ("smaller batches or a smaller model" if size > 1 else "a smaller model")
        )

    async def run(self, network, program, samples, progress=lambda done, total: None):
        """Runs a compiled network on bfloat16 samples (count, inputs), batch by batch. Returns a
        :class:`sim.host.inference.RunResult`.

        `progress` is called with `(done, total)`: bytes transferred over the serial line.
        """
        hosts = [
            InferenceImage(program, samples[first : first + program.batch]) for first in range(0, len(samples), program.batch)
        ]
        regions = hosts[0].batches[0]["regions"]  # all batches use the same memory
        (inputs, input_bytes), (outputs, output_bytes) = regions["INPUT"], regions["OUTPUT"]
        total = len(program.model) + len(hosts) * (input_bytes + output_bytes)
        done = 0

        def part(bytes_done, size):
            nonlocal done
            progress(done + bytes_done, total)
            if bytes_done == size:
                done += size

        started = time.perf_counter()
        if not await self._driver.reset():
            raise BoardError(
                "the core's bus does not become quiet: memory responses are outstanding; press the board's reset button"
            )
        await self._driver.configure_regions(regions)
        await self._link.write(0, program.model, part)
        logits, counters, fault = [], [], None
        for index, host in enumerate(hosts):
            await self._link.write(inputs, host.bytes[inputs : inputs + input_bytes], part)
            counted, fault = await self._driver.run_batch(index, cycle_limit(program))
            counters.append(counted)
            logits.append(host.results(await self._link.read(outputs, output_bytes, part)))
            if fault:
                await self._driver.reset()
                break
        seconds = time.perf_counter() - started
        logits = np.concatenate(logits)
        expected = run_network(network, samples[: len(logits)].astype(bfloat16))
        return summarize(
            program,
            self.config,
            logits,
            expected,
            counters,
            seconds=seconds,
            cycles_per_second=self.clock,
            protocol_errors=0,
            fault=fault,
            waves=None,
        )


def run_on_board(network, samples, *, port, baud, batch=None, effort="best", check=True, progress=lambda done, total: None):
    """Runs a network on the board at a serial port, for bfloat16 samples (count, inputs). Compares every bit of the results
    with the golden model. Raises BoardError, LinkError or CompileError if the board is missing, not supported or too small.
    Raises RunError if the program is wrong.
    Returns `(Program, RunResult)`.

    Parameters
    ----------
    port : str
        Name of the serial port, such as /dev/ttyUSB0.
    baud : int
        Bits per second on the serial line.
    batch : int or None
        Samples per batch. Default: as many as the board's memory holds.
    effort : str
        Effort of the compiler; see :func:`sim.compiler.compile.compile_network`.
    check : bool
        Check a new program on a model of the core before it is used.
    progress : callable
        Called with `(done, total)`: bytes transferred over the serial line.
    """

    async def session(transport):
        board = await ConnectedBoard.connect(SerialLink(transport, baud=baud))
        graph = with_row_norms(network, board.config)
        program = board.compile(graph, len(samples), batch and min(batch, len(samples)), effort, check)
        return program, await board.run(graph, program, samples, progress)

    with SerialPort(port, baud) as transport:
        return asyncio.run(session(transport))
