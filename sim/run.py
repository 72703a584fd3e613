"""A network and its samples through the RTL: compile, lay out host memory, simulate, compare with the golden model."""

import functools
from dataclasses import dataclass

import numpy as np

from hw.export import to_verilog
from hw.registers import STALLS

from .compiler import compile_network
from .golden import bfloat16, run_network
from .runner import Simulation
from .whole_runs import run_batches

__all__ = ["Result", "HostImage", "core_simulation", "run_samples", "count_batch", "summarize"]

_PAGE = 4096


def _page(size):
    return -(-size // _PAGE) * _PAGE


class HostImage:
    """Host memory for a sequence of runs of one program: its bytes, the regions of each run, and where results appear.

    The samples are cut into batches; the last one is filled up with zeros. Each batch has an INPUT and an OUTPUT region
    of its own, in order; MODEL and SCRATCH are shared.
    """

    def __init__(self, program, samples):
        self.program = program
        self.count = len(samples)
        batches = [samples[first:first + program.batch] for first in range(0, len(samples), program.batch)]
        model, scratch = _page(len(program.model)), _page(program.scratch_bytes)
        input_, output = _page(program.input_bytes), _page(program.output_bytes)
        inputs = model + scratch
        self.outputs = inputs + len(batches) * input_, len(batches) * output
        self.bytes = b"".join([
            program.model.ljust(inputs, b"\0"),
            *(program.pack_input(batch).ljust(input_, b"\0") for batch in batches)])
        self.size = sum(self.outputs)
        self._output_step = output
        self.batches = [{"regions": {
            "MODEL": [0, len(program.model)],
            "SCRATCH": [model, program.scratch_bytes],
            "INPUT": [inputs + index * input_, program.input_bytes],
            "OUTPUT": [self.outputs[0] + index * output, program.output_bytes],
        }} for index in range(len(batches))]

    def results(self, data):
        """float32 (samples, outputs) from the bytes of the output window."""
        size, step = self.program.output_bytes, self._output_step
        parts = [self.program.unpack_output(bytes(data[first:first + size])) for first in range(0, len(data), step)]
        return np.concatenate(parts)[:self.count]


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Parameters
    ----------
    logits, expected : float32 (samples, outputs)
        By the RTL and by the golden model.
    mismatched_bits : int
        Bits in which they differ.
    cycles, busy : int
        Of all batches together; `stalls` maps each reason to cycles, and with `busy` sums to `cycles`.
    utilisation : float
        Useful multiply-accumulates over cycles times cells.
    batches : list of dict
        The counters of each.
    cycles_per_second : float
        Simulated; of a board, its clock.
    seconds : float
        Wall time of the simulated runs; of a board's, with all that goes over its serial line.
    fault : dict or None
        `cause`, `pc` and `batch` of the fault that ended the runs early.
    """

    logits: np.ndarray
    expected: np.ndarray
    mismatched_bits: int
    cycles: int
    busy: int
    stalls: dict
    utilisation: float
    batches: list
    cycles_per_second: float
    seconds: float
    protocol_errors: int
    fault: dict | None
    waves: str | None


_verilog_of = functools.cache(to_verilog)


def core_simulation(config, *, simulator, memory_bytes=1 << 24, waves=False):
    """The simulation of a core; memory is rounded up to a power of two, so that builds are shared."""
    size = 1 << max(24, (memory_bytes - 1).bit_length())
    return Simulation.of_core(_verilog_of(config), config, simulator=simulator, memory_bytes=size, waves=waves)


def run_samples(network, config, samples, *, batch, simulator="verilator", memory=None, waves=False, progress=None,
                program=None, timeout=3600):
    """Runs bfloat16 samples (count, inputs) through the RTL in batches.

    Parameters
    ----------
    memory : dict
        Plusargs of the host memory: `latency`, pauses, faults.
    progress : callable
        Called with `(batches done, batches)`.
    program : Program
        To use instead of compiling.

    Returns
    -------
    Result
    """
    program = program or compile_network(network, config, batch)
    host = HostImage(program, samples)
    simulation = core_simulation(config, simulator=simulator, memory_bytes=host.size, waves=waves)
    expected = run_network(network, samples.astype(bfloat16))
    raw = run_batches(simulation, host.bytes, host.batches, outputs=host.outputs, memory=memory, timeout=timeout,
                      cycle_limit=64 * (program.compute_cycles + program.read_beats) + 1_000_000, progress=progress)
    logits = host.results(raw["output"])
    return summarize(program, config, logits, expected, raw["batches"], cycles_per_second=raw["cycles_per_second"],
                     seconds=raw["seconds"], protocol_errors=raw["protocol_errors"], fault=raw["fault"], waves=raw.get("waves"))


def count_batch(program, config, samples, *, simulator="verilator", memory=None, timeout=3600):
    """The counters of a run of one batch, whatever it gives. Raises RuntimeError if it does not come to its end."""
    host = HostImage(program, samples)
    simulation = core_simulation(config, simulator=simulator, memory_bytes=host.size)
    raw = run_batches(simulation, host.bytes, host.batches, outputs=host.outputs, memory=memory, timeout=timeout,
                      cycle_limit=64 * (program.compute_cycles + program.read_beats) + 1_000_000)
    if raw["fault"]:
        raise RuntimeError(f"the core stopped with fault {raw['fault']['cause']} at pc {raw['fault']['pc']:#x}")
    return raw["batches"][0]


def summarize(program, config, logits, expected, counters, **rest):
    """The :class:`Result` of batches with these `counters`; `rest` are the fields that do not follow from them."""
    differing = logits.view(np.uint32) ^ expected.view(np.uint32)
    cycles = sum(one["cycles"] for one in counters)
    return Result(
        logits=logits, expected=expected, mismatched_bits=int(np.bitwise_count(differing).sum()),
        cycles=cycles, busy=sum(one["busy"] for one in counters),
        stalls={name: sum(one[f"stall_{name}"] for one in counters) for name in STALLS},
        # Padding of the last batch is not useful.
        utilisation=program.useful_macs // program.batch * len(logits) / max(1, cycles * config.n ** 2),
        batches=counters, **rest)
