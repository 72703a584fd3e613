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

from amaranth_tpu.hw.spec.registers import STALLS

from ..compiler.compile import compile_network
from ..data.progress_lines import show
from ..data.samples import as_samples
from ..golden.arithmetic import bfloat16
from ..golden.network import core_input, run_network, samples_for
from .host_image import HostImage

__all__ = ["SIMULATORS", "RunError", "RunResult", "InferenceImage", "even_batch", "run_samples", "count_batch", "summarize"]

#: Ways to execute a network: the RTL in a simulator, the instruction-level model, or only the golden model.
SIMULATORS = ("verilator", "icarus", "model", "golden")


class RunError(RuntimeError):
    """An error for results that failed a check, such as bit mismatches with the golden model. The message is one line with the
    cause."""


def even_batch(count, most):
    """Returns the smallest batch size with which `count` samples need as few batches as with the batch size `most`."""
    return -(-count // -(-count // most))


class InferenceImage(HostImage):
    """The host memory for the batches of one program.

    The samples are split into batches, and the last batch is padded with zeros."""

    def __init__(self, program, samples):
        self.count = len(samples)
        batches = [samples[first : first + program.batch] for first in range(0, len(samples), program.batch)]
        super().__init__(program, [(program.model, [program.pack_input(batch)]) for batch in batches])

    def results(self, data):
        """Converts the bytes that were read back to float32 results (samples, outputs)."""
        outputs = (self.read([data], "OUTPUT", run)[0] for run in range(len(self.batches)))
        return np.concatenate([*map(self.program.unpack_output, outputs)])[: self.count]


@dataclass(frozen=True)
class RunResult:
    """The result of executing a network on samples, in batches."""

    #: logits, expected: Float32 (samples, outputs). Results of the execution and of the golden model, without a final Softmax
    #: that the host computes.
    logits: np.ndarray
    expected: np.ndarray
    mismatched_bits: int | None  # Number of bits in which they differ. None if only the golden model computed the results.
    seconds: float  # Wall time of the execution. For a board, it includes all transfers over the serial line.
    #: cycles, busy: Sums over all batches. `stalls` maps each stall reason to cycles; `busy` and all stalls add up to `cycles`.
    #: For models without timing, these and the following figures of time are None.
    cycles: int | None = None
    busy: int | None = None
    stalls: dict | None = None
    utilisation: float | None = None  # useful multiply-accumulates / (cycles x cells), 0 to 1
    batches: list = field(default_factory=list)  # List of dict. Counters of each batch.
    cycles_per_second: float | None = None  # Simulation speed. For a board: its clock frequency.
    protocol_errors: int | None = None  # number of violations of AXI rules
    fault: dict | None = None  # `cause`, `pc` and `batch` of the fault that ended the execution early, else None
    waves: str | None = None
    seen: dict | None = None  # recordings of probes, from :func:`sim.rtl.probes.read_probes`, else None


def run_samples(
    network,
    config,
    samples,
    *,
    batch=None,
    simulator="verilator",
    cells="rtl",
    memory=None,
    waves=False,
    progress=None,
    program=None,
    timeout=3600,
    quick=False,
    probes=(),
):
    """Runs a network on samples, in batches, and compares every bit of the results with the golden model. Raises DataError if
    the samples do not fit the network.
    Returns a :class:`RunResult`.

    Parameters
    ----------
    network : Graph
        Network from :func:`sim.frontend.load.load_network`.
    config : Config
        Configuration of the core. None is sufficient for the golden model.
    samples : array
        Samples: finite numbers of any type, or any bfloat16 numbers. Shape (count, *shape of a sample) or (count, values of a
        sample); see :func:`sim.data.samples.as_samples`.
    batch : int
        Samples per batch. Default: all samples.
    simulator : str
        One of `SIMULATORS`.
    cells : str
        Cells of the RTL, `rtl` or `native`; see :mod:`sim.rtl.native_cells`.
    memory : dict
        Plusargs of the simulated host memory: `latency` (cycles, default `HOST_LATENCY`), stalls, bus errors.
    progress : callable
        Called with `(batches done, batches)`.
    program : Program
        Compiled program. Default: the network is compiled.
    quick : bool
        Prefer a fast build; see :class:`sim.rtl.runner.Simulation`.
    probes : sequence of sim.rtl.probes.Probe
        Probes of signals to record in the RTL. The recordings are in `seen` of the result.
    """
    if simulator not in SIMULATORS:
        raise ValueError(f"simulator must be one of {', '.join(SIMULATORS)}, not {simulator!r}")
    samples = np.asarray(samples)
    checked = samples_for(network, samples) if samples.dtype == bfloat16 else as_samples(network, samples).rows
    samples = core_input(network, checked)
    if simulator == "golden":
        started = time.perf_counter()
        expected = run_network(network, samples)
        return RunResult(expected, expected, None, time.perf_counter() - started)
    program = program or compile_network(network, config, batch or len(samples))
    host = InferenceImage(program, samples)
    show("computing the expected results")
    expected = run_network(network, samples)
    show(None)
    if simulator == "model":
        return _run_model(host, expected, progress)
    raw = host.simulate(
        simulator=simulator,
        cells=cells,
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
        host.results(*raw["output"]),
        expected,
        raw["batches"],
        cycles_per_second=raw["cycles_per_second"],
        seconds=raw["seconds"],
        protocol_errors=raw["protocol_errors"],
        fault=raw["fault"],
        waves=raw.get("waves"),
        seen=raw.get("seen"),
    )


def _run_model(host, expected, progress=None):
    started = time.perf_counter()
    (output,), fault = host.execute(progress)
    logits = host.results(output)
    return RunResult(logits, expected, _differing(logits, expected), time.perf_counter() - started, fault=fault)


def count_batch(program, samples, *, simulator="verilator", memory=None, timeout=3600, **options):
    """Simulates one batch of bfloat16 samples in the RTL, and returns its counters without checking the results. `options` are
    those of :func:`.core_simulation`. Raises RuntimeError if a fault occurs."""
    raw = InferenceImage(program, samples).simulate(simulator=simulator, memory=memory, timeout=timeout, **options)
    if raw["fault"]:
        raise RuntimeError(f"the core stopped with fault {raw['fault']['cause']} at pc {raw['fault']['pc']:#x}")
    return raw["batches"][0]


def _differing(one, two):
    return int(np.bitwise_count(one.view(np.uint32) ^ two.view(np.uint32)).sum())


def summarize(program, config, logits, expected, counters, **rest):
    """Returns the :class:`RunResult` of batches, from their results and `counters`. `rest` are the fields of the result that
    cannot be derived."""
    cycles = sum(one["cycles"] for one in counters)
    return RunResult(
        logits=logits,
        expected=expected,
        mismatched_bits=_differing(logits, expected),
        cycles=cycles,
        busy=sum(one["busy"] for one in counters),
        stalls={name: sum(one[f"stall_{name}"] for one in counters) for name in STALLS},
        # the padding of the last batch does not count as useful
        utilisation=program.useful_macs // program.batch * len(logits) / max(1, cycles * config.n**2),
        batches=counters,
        **rest,
    )
