"""Training steps on a core: the RTL in a simulator, or the instruction-level model.

One step is one run of the core. Parameters and optimizer stay in region SCRATCH from step to step; each step has samples and
results of its own, and its rate in an image of region MODEL.
"""

from dataclasses import dataclass, field

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.timing import HOST_LATENCY
from ..golden.isa_model import Machine, MachineFault
from ..host.batches import run_batches
from ..host.driver import fault_of
from ..host.inference import core_simulation
from .comparison import CoreSteps

__all__ = ["StepRunner"]

_PAGE = 4096
_CYCLES = 1_000_000  # about as many are simulated at a time
_MOST = 50  # steps at a time


class _HostImage:
    """Host memory of steps: images of MODEL, then INPUT of each step, then SCRATCH and what comes out.

    Parameters
    ----------
    program : sim.backward.step_program.StepProgram
    state : TrainingState
    batches : list of sim.trainer.training.Batch
    """

    def __init__(self, program, state, batches):
        self.program, self.first_step = program, state.steps
        self._parts, self.size = [], 0
        models, self.runs = {}, []
        for number, batch in enumerate(batches):
            model = program.with_rate(batch.rate, state.steps + number + 1)
            if model not in models:
                models[model] = self._add(model)
            self.runs.append({"MODEL": models[model]})
        for run, batch in zip(self.runs, batches):
            run["INPUT"] = self._add(bytes(program.pack_input(batch.x, batch.targets, batch.masks or None)))
        self.first_output = self.size
        scratch = self._add(bytes(program.pack_state(state)).ljust(program.sizes[Region.SCRATCH], b"\0"))
        self.bytes = b"".join(self._parts)
        for run in self.runs:
            run |= {"SCRATCH": scratch, "OUTPUT": [self.size, program.sizes[Region.OUTPUT]]}
            self.size += _pages(program.sizes[Region.OUTPUT])

    def _add(self, content):
        """`[base, size]` of bytes that are put behind the others."""
        place = [self.size, len(content)]
        self._parts.append(content.ljust(_pages(len(content)), b"\0"))
        self.size += len(self._parts[-1])
        return place

    def found(self, data, **rest):
        """:class:`CoreSteps` from the bytes from SCRATCH on."""

        def region(place):
            return bytes(data[place[0] - self.first_output :][: place[1]])

        logits = [self.program.unpack_logits(region(run["OUTPUT"])) for run in self.runs]
        state = self.program.unpack_state(region(self.runs[0]["SCRATCH"]), self.first_step + len(self.runs))
        return CoreSteps(state, logits, **rest)


def _pages(size):
    return -(-size // _PAGE) * _PAGE


@dataclass(frozen=True, eq=False)
class StepRunner:
    """Runs steps; for :class:`sim.trainer.comparison.Comparison`.

    Parameters
    ----------
    program : sim.backward.step_program.StepProgram
    simulator : str
        `verilator`, `icarus` or `model`.
    memory : dict
        Plusargs of the RTL's host memory: `latency` (without it `HOST_LATENCY`), pauses.
    timeout : number
        Seconds for what is simulated at a time.
    """

    program: object
    simulator: str
    memory: dict = field(default_factory=dict)
    timeout: float = 24 * 3600

    @property
    def together(self):
        """Steps of one simulation."""
        return max(1, min(_MOST, _CYCLES // (self.program.predicted_cycles or _CYCLES)))

    def __call__(self, state, batches, progress=None):
        """:class:`CoreSteps` of steps from a state on; `progress` is told how many are done, of how many."""
        host = _HostImage(self.program, state, batches)
        return (self._on_model if self.simulator == "model" else self._on_rtl)(host, progress)

    def _on_rtl(self, host, progress):
        simulation = core_simulation(self.program.config, simulator=self.simulator, memory_bytes=host.size)
        raw = run_batches(
            simulation,
            host.bytes,
            [{"regions": run} for run in host.runs],
            outputs=(host.first_output, host.size - host.first_output),
            timeout=self.timeout,
            progress=progress,
            memory={"latency": HOST_LATENCY, **self.memory},
            cycle_limit=64 * (self.program.predicted_cycles or 0) + 1_000_000,
        )
        counters = [] if raw["fault"] else raw["batches"]
        return host.found(raw["output"], counters=counters, protocol_errors=raw["protocol_errors"], fault=raw["fault"])

    def _on_model(self, host, progress):
        memory, fault = bytearray(host.bytes.ljust(host.size, b"\0")), None
        for number, run in enumerate(host.runs):
            regions = {Region[name]: memory[base : base + size] for name, (base, size) in run.items()}
            try:
                Machine(self.program.config, regions).run()
            except MachineFault as error:
                fault = fault_of(error, number)
            for name, (base, size) in run.items():
                memory[base : base + size] = regions[Region[name]]
            if fault:
                break
            if progress:
                progress(number + 1, len(host.runs))
        return host.found(memory[host.first_output :], fault=fault)
