"""Inference on the core: compile a network, lay out host memory, simulate, compare with the golden model.

>>> import numpy as np
>>> from amaranth_tpu.hw.config import Config
>>> from amaranth_tpu.sim.frontend.load import load_network
>>> from amaranth_tpu.sim.host.inference import run_samples
>>> from amaranth_tpu.sim.models.shipped import SHIPPED
>>> network = load_network(SHIPPED["d"])
>>> images = np.random.default_rng(1).random((3, 1, 28, 28), np.float32)
>>> result = run_samples(network, Config(n=4), images, simulator="model")
>>> result.logits.shape, result.mismatched_bits
((3, 10), 0)
>>> probabilities = network.origin.output.of(result.logits)     # with the Softmax at the end of the model
>>> bool(np.allclose(probabilities.sum(axis=1), 1))
True
"""

import time
from dataclasses import dataclass, field

import numpy as np

from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.hw.spec.registers import STALLS

from ..compiler.compile import compile_network
from ..compiler.timing.model import HOST_LATENCY
from ..data.samples import as_rows, as_samples
from ..golden.arithmetic import bfloat16, round_bfloat16
from ..golden.isa_model import Machine, MachineFault
from ..golden.network import run_network
from ..rtl.runner import Simulation
from ..rtl.simulators import simulator_version
from ..rtl.verilog_cache import verilog_of
from ..rtl.wave_view import WaveView
from .batches import run_batches
from .driver import fault_of

__all__ = [
    "SIMULATORS",
    "RunResult",
    "HostImage",
    "core_simulation",
    "cycle_limit",
    "even_batch",
    "run_samples",
    "count_batch",
    "summarize",
]

#: Execution models of a network: the RTL in a simulator, the instruction-level model, and the golden model alone.
SIMULATORS = ("verilator", "icarus", "model", "golden")

_PAGE = 4096


def _page(size):
    return -(-size // _PAGE) * _PAGE


def even_batch(count, most):
    """Returns the smallest batch for which `count` samples take as many runs as with batches of `most`."""
    return -(-count // -(-count // most))


class HostImage:
    """Host memory for a sequence of runs of one program: its bytes, the regions of each run, and the addresses of the results.

    The samples are split into batches; the last one is padded with zeros. Each batch has its own INPUT and OUTPUT region, in
    order. MODEL and SCRATCH are shared.
    """

    def __init__(self, program, samples):
        self.program = program
        self.count = len(samples)
        batches = [samples[first : first + program.batch] for first in range(0, len(samples), program.batch)]
        model, scratch = _page(len(program.model)), _page(program.scratch_bytes)
        input_, output = _page(program.input_bytes), _page(program.output_bytes)
        inputs = model + scratch
        self.outputs = inputs + len(batches) * input_, len(batches) * output
        self.bytes = b"".join(
            [program.model.ljust(inputs, b"\0"), *(program.pack_input(batch).ljust(input_, b"\0") for batch in batches)]
        )
        self.size = sum(self.outputs)
        self._output_step = output
        self.batches = [
            {
                "regions": {
                    "MODEL": [0, len(program.model)],
                    "SCRATCH": [model, program.scratch_bytes],
                    "INPUT": [inputs + index * input_, program.input_bytes],
                    "OUTPUT": [self.outputs[0] + index * output, program.output_bytes],
                }
            }
            for index in range(len(batches))
        ]

    def results(self, data):
        """Returns float32 (samples, outputs) from the bytes of the output window."""
        size, step = self.program.output_bytes, self._output_step
        parts = [self.program.unpack_output(bytes(data[first : first + size])) for first in range(0, len(data), step)]
        return np.concatenate(parts)[: self.count]


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Parameters
    ----------
    logits, expected : float32 (samples, outputs)
        Results of the run and of the golden model, without a Softmax that was removed from the network.
    mismatched_bits : int or None
        Number of different bits; None if only the golden model ran.
    seconds : float
        Wall time of the simulated runs. For a board, it includes all transfers over its serial line.
    cycles, busy : int or None
        Sums over all batches. `stalls` maps each reason to cycles; `busy` and all stalls add up to `cycles`. None, like all
        figures of time below, for models without timing.
    utilisation : float or None
        Useful multiply-accumulates / (cycles x cells).
    batches : list of dict
        The counters of each batch.
    cycles_per_second : float or None
        Simulation speed; for a board, its clock.
    protocol_errors : int or None
        Violations of AXI's rules.
    fault : dict or None
        `cause`, `pc` and `batch` of the fault that ended the runs early.
    seen : dict or None
        Recordings of probes, from :func:`sim.rtl.probes.read_probes`.
    """

    logits: np.ndarray
    expected: np.ndarray
    mismatched_bits: int | None
    seconds: float
    cycles: int | None = None
    busy: int | None = None
    stalls: dict | None = None
    utilisation: float | None = None
    batches: list = field(default_factory=list)
    cycles_per_second: float | None = None
    protocol_errors: int | None = None
    fault: dict | None = None
    waves: str | None = None
    seen: dict | None = None


def core_simulation(config, *, simulator, memory_bytes=1 << 24, cores=1, waves=False, **options):
    """Returns the simulation of a core, or of several in a ring. The memory's size is rounded up to a power of two, so that
    builds are shared. `options` are the options of :meth:`sim.rtl.runner.Simulation.of_core`, or of `of_pod`."""
    simulator_version(simulator)  # reports a missing simulator before the Verilog is generated
    size, verilog = 1 << max(24, (memory_bytes - 1).bit_length()), verilog_of(config)
    if cores > 1:
        return Simulation.of_pod(verilog, config, cores, simulator=simulator, memory_bytes=size, **options)
    view = WaveView(verilog, config) if waves else None
    return Simulation.of_core(verilog, config, simulator=simulator, memory_bytes=size, waves=waves, view=view, **options)


def cycle_limit(program):
    """Returns the cycles after which a batch of a program is aborted: far more than slow host memory costs."""
    return 64 * (program.compute_cycles + program.read_beats) + 1_000_000


def run_samples(
    network,
    config,
    samples,
    *,
    batch=None,
    simulator="verilator",
    memory=None,
    waves=False,
    progress=None,
    program=None,
    timeout=3600,
    quick=False,
    probes=(),
):
    """Runs samples of a network in batches, and compares every bit with the golden model.

    Parameters
    ----------
    network : Graph
        From :func:`sim.frontend.load.load_network`.
    config : Config
        The core's configuration. The golden model does not need it (None).
    samples : array
        Finite numbers of any type, (count, *shape of a sample) or (count, values of a sample), see
        :func:`sim.data.samples.as_samples`; or any bfloat16 numbers.
    batch : int
        Samples per run. Default: all samples.
    simulator : str
        One of `SIMULATORS`.
    memory : dict
        Plusargs of the host memory of the RTL: `latency` (cycles, default `HOST_LATENCY`), pauses, faults.
    progress : callable
        Called with `(batches done, batches)`.
    program : Program
        Compiled program. Default: compile the network.
    quick : bool
        See :class:`sim.rtl.runner.Simulation`.
    probes : sequence of sim.rtl.probes.Probe
        Signals to record in the RTL: `seen` of the result.

    Returns
    -------
    RunResult

    Raises
    ------
    sim.data.digits.DataError
        If the samples do not fit the network.
    """
    if simulator not in SIMULATORS:
        raise ValueError(f"simulator must be one of {', '.join(SIMULATORS)}, not {simulator!r}")
    samples = np.asarray(samples)
    samples = as_rows(network, samples)[0] if samples.dtype == bfloat16 else round_bfloat16(as_samples(network, samples).rows)
    if simulator == "golden":
        started = time.perf_counter()
        expected = run_network(network, samples)
        return RunResult(expected, expected, None, time.perf_counter() - started)
    program = program or compile_network(network, config, batch or len(samples))
    host = HostImage(program, samples)
    expected = run_network(network, samples)
    if simulator == "model":
        return _run_model(program, host, expected, progress)
    raw = _run_rtl(
        program,
        host,
        simulator=simulator,
        memory=memory,
        timeout=timeout,
        progress=progress,
        waves=waves,
        quick=quick,
        probes=probes,
    )
    return summarize(
        program,
        program.config,
        host.results(raw["output"]),
        expected,
        raw["batches"],
        cycles_per_second=raw["cycles_per_second"],
        seconds=raw["seconds"],
        protocol_errors=raw["protocol_errors"],
        fault=raw["fault"],
        waves=raw.get("waves"),
        seen=raw.get("seen"),
    )


def _run_rtl(program, host, *, simulator, memory, timeout, progress=None, probes=(), **options):
    simulation = core_simulation(program.config, simulator=simulator, memory_bytes=host.size, probes=probes, **options)
    return run_batches(
        simulation,
        host.bytes,
        host.batches,
        outputs=host.outputs,
        timeout=timeout,
        progress=progress,
        memory={"latency": HOST_LATENCY, **(memory or {})},
        cycle_limit=cycle_limit(program),
        probes=probes,
    )


def _run_model(program, host, expected, progress=None):
    """Runs the batches on the instruction-level model, with the RTL's images of host memory."""
    started = time.perf_counter()
    memory, fault = bytearray(host.bytes.ljust(host.size, b"\0")), None
    for index, batch in enumerate(host.batches):
        places = {Region[name]: place for name, place in batch["regions"].items()}
        regions = {region: memory[base : base + size] for region, (base, size) in places.items()}
        try:
            Machine(program.config, regions).run()
        except MachineFault as error:
            fault = fault_of(error, index)
        for region, (base, size) in places.items():
            memory[base : base + size] = regions[region]
        if progress:
            progress(index + 1, len(host.batches))
        if fault:
            break
    logits = host.results(memory[host.outputs[0] :])
    return RunResult(logits, expected, _differing(logits, expected), time.perf_counter() - started, fault=fault)


def count_batch(program, samples, *, simulator="verilator", memory=None, timeout=3600, quick=False):
    """Returns the counters of a run of one batch of bfloat16 samples in the RTL, without checking the results. Raises
    RuntimeError if the run ends with a fault."""
    raw = _run_rtl(program, HostImage(program, samples), simulator=simulator, memory=memory, timeout=timeout, quick=quick)
    if raw["fault"]:
        raise RuntimeError(f"the core stopped with fault {raw['fault']['cause']} at pc {raw['fault']['pc']:#x}")
    return raw["batches"][0]


def _differing(one, two):
    return int(np.bitwise_count(one.view(np.uint32) ^ two.view(np.uint32)).sum())


def summarize(program, config, logits, expected, counters, **rest):
    """Returns the :class:`RunResult` of batches with these `counters`. `rest` are the fields that cannot be derived from them."""
    cycles = sum(one["cycles"] for one in counters)
    return RunResult(
        logits=logits,
        expected=expected,
        mismatched_bits=_differing(logits, expected),
        cycles=cycles,
        busy=sum(one["busy"] for one in counters),
        stalls={name: sum(one[f"stall_{name}"] for one in counters) for name in STALLS},
        # Padding of the last batch is not useful.
        utilisation=program.useful_macs // program.batch * len(logits) / max(1, cycles * config.n**2),
        batches=counters,
        **rest,
    )
