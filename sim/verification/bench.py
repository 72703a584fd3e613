"""The bench in C++: verilated cores at work on scripts of register accesses, each with its own host memory."""

import functools
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from amaranth_tpu.hw.spec.registers import REGISTER
from amaranth_tpu.hw.tools.process import build_directory

from ..rtl.cpp_program import cpp_program
from ..rtl.runner import Simulation, SimulationError
from ..rtl.verilog_cache import verilog_of

__all__ = ["CHANNELS", "NEVER", "CoreJob", "CoreResult", "Job", "run_jobs"]

#: Kinds of steps of a script, and channels with backpressure, in the order of the bench.
_KINDS = ("write", "read", "wait", "idle", "reset", "poll", "barrier")
CHANNELS = ("AW", "W", "B", "AR", "R", "ring out", "ring in")
#: The value of a wait without an interrupt within its limit, and of `hang_after` for a memory that always responds.
NEVER = (1 << 32) - 1


@dataclass
class CoreJob:
    """The memory and the script of one core.

    `segments` : list of (address, bytes, reported); the bench returns the final contents of reported ones. All other addresses
    respond with errors, and so do the addresses from `errors[0]` to `errors[1]`. Transactions after the first `hang_after` ones,
    and those that begin at the addresses from `silent[0]` to `silent[1]`, have no response.
    """

    segments: list
    script: list = field(default_factory=list)
    errors: tuple = ((1 << 64) - 1, 0)
    silent: tuple = ((1 << 64) - 1, 0)
    hang_after: int = NEVER

    def write(self, register, value, strobe=15):
        self.script.append(("write", REGISTER[register].offset, value, strobe))

    def read(self, register):
        """Appends a read, which yields one value of the result."""
        self.script.append(("read", REGISTER[register].offset, 0, 0))

    def poll(self, register, mask):
        """Appends reads until a bit of `mask` is set, 20,000 at most. Yields the last value."""
        self.script.append(("poll", REGISTER[register].offset, mask, 0))

    def wait(self, limit, looks=0):
        """Appends a wait for the interrupt. Yields the cycles waited. `looks` of 256 cycles begin a read of a random register."""
        self.script.append(("wait", limit, looks, 0))

    def idle(self, cycles):
        self.script.append(("idle", cycles, 0, 0))

    def reset(self, cycles, alone):
        """Appends a reset by `aresetn`: of the core `alone`, once no write is open, or of its memory and link too."""
        self.script.append(("reset", cycles, int(alone), 0))

    def barrier(self):
        """Appends a step at which all cores wait for each other."""
        self.script.append(("barrier", 0, 0, 0))


@dataclass
class Job:
    """One job for each core. `pause` is the probability of a stall on each channel in each cycle."""

    cores: list
    seed: int
    latency: int = 1
    pause: float = 0.0
    link_latency: int = 0


@dataclass
class CoreResult:
    """The values read by a core's script, the stalled cycles of each channel, and the contents of reported segments."""

    reads: list
    stalls: dict
    contents: list


@functools.cache
def _program(config, cores, coverage, quick):
    source = Path(__file__).with_name("core_bench.cpp").read_text()
    macros = {"CORES": cores, "HAS_RING": int(config.ring), "HAS_COVERAGE": int(coverage)}
    macros |= {"BUS_BYTES": config.bus_bytes, "VECTOR_BYTES": config.vector_bytes}
    text = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    simulation = Simulation(
        simulator="verilator",
        verilog=verilog_of(config),
        top="tpu",
        public=(),
        no_inline=("tpu_cell", "tpu_row"),
        coverage=coverage,
        quick=quick,
    )
    return cpp_program(simulation, text + source)


def _pair(value):
    return [value & NEVER, value >> 32]


def _encoded(job):
    parts = [np.array([job.seed & NEVER, job.latency, round(256 * job.pause), job.link_latency], "<u4").tobytes()]
    for core in job.cores:
        ranges = [word for address in (*core.errors, *core.silent) for word in _pair(address)]
        head = [*ranges, core.hang_after, len(core.segments)]
        parts.append(np.array(head, "<u4").tobytes())
        for address, contents, reported in core.segments:
            parts += [np.array([*_pair(address), len(contents), reported], "<u4").tobytes(), bytes(contents)]
        steps = [(_KINDS.index(kind) | strobe << 8, a, b) for kind, a, b, strobe in core.script]
        parts += [np.array([len(steps)], "<u4").tobytes(), np.array(steps, "<u4").tobytes()]
    return b"".join(parts)


def run_jobs(config, jobs, *, coverage=None, quick=False, timeout=3600):
    """Runs jobs one after the other on the same cores. Returns for each job a list of :class:`CoreResult`.

    Parameters
    ----------
    config : Config
    jobs : sequence of Job
        All with the same number of cores. More than one core needs `ring`.
    coverage : Path or None
        File for Verilator's coverage. None: a build without counters, which is faster.
    quick : bool
        True for a fast build with a slow model, for a few hundred jobs.

    Raises
    ------
    SimulationError
        If a rule of the bus was broken, or the bench did not end within `timeout` seconds.
    """
    program = _program(config, len(jobs[0].cores), coverage is not None, quick)
    place = build_directory() / "runs"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as name:
        folder = Path(name)
        with open(folder / "jobs", "wb") as file:
            file.writelines(map(_encoded, jobs))
        command = [program, folder / "jobs", folder / "results", str(coverage or "")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise SimulationError(f"the bench of cores did not end within {timeout} s") from None
        if done.returncode:
            raise SimulationError(f"bench of cores: {done.stderr.strip().splitlines()[0] if done.stderr else done.returncode}")
        data, position, results = (folder / "results").read_bytes(), 0, []

    def words(count):
        nonlocal position
        position += 4 * count
        return np.frombuffer(data, "<u4", count, position - 4 * count).tolist()

    for job in jobs:
        results.append([])
        for core in job.cores:
            reads, stalls, contents = words(words(1)[0]), words(len(CHANNELS)), []
            for _, segment, reported in core.segments:
                if reported:
                    contents.append(data[position : position + len(segment)])
                    position += len(segment)
            results[-1].append(CoreResult(reads, dict(zip(CHANNELS, stalls)), contents))
    return results
