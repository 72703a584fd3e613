"""Execution of training steps on a core: on the RTL in a simulator, or on the instruction-level model.

The core executes the program of a training step once per step. Parameters and optimizer state stay in region SCRATCH from one
step to the next. Each step has its own INPUT region with its samples, its own OUTPUT region, and a MODEL region that contains its
learning rate; equal MODEL regions are shared. In a ring, each core has its own host memory, all with the same layout. It contains
the core's shard of the samples, and the core's shard of weights that are divided among the cores.
"""

from dataclasses import dataclass, field

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.timing.model import HOST_LATENCY
from ..golden.shards import shards_of
from ..host.batches import run_batches
from ..host.host_image import HostImage
from ..host.inference import core_simulation
from .comparison import CoreSteps

__all__ = ["StepRunner"]

_CYCLES = 1_000_000  # cycles of one simulation, approximately
_MOST = 50  # most steps in one simulation


class _StepImage(HostImage):
    """The host memory of a sequence of steps. The order is: MODEL regions, INPUT of each step, SCRATCH, OUTPUT of each step.

    Parameters
    ----------
    program : sim.backward.step_program.StepProgram
    state : TrainingState
    batches : list of sim.trainer.training.Batch
    """

    def __init__(self, program, state, batches):
        super().__init__(program.cores)
        self.program, self.first_step, ranks, models = program, state.steps, range(program.cores), {}
        runs = []
        for number, batch in enumerate(batches):
            model = program.with_rate(batch.rate, state.steps + number + 1, **_counted(batch, slice(None)))
            if model not in models:
                models[model] = self.add(*[model] * program.cores)
            runs.append({"MODEL": models[model]})
        for run, batch in zip(runs, batches):
            run["INPUT"] = self.add(*(self._input(batch, rank) for rank in ranks))
        self.first_output = self.size
        scratch = self.add(*(program.pack_state(state, rank) for rank in ranks))
        for run in runs:
            run |= {"SCRATCH": scratch, "OUTPUT": self.reserve(program.sizes[Region.OUTPUT])}
        self.batches = [{"regions": run} for run in runs]

    def _input(self, batch, rank):
        """Returns the contents of region INPUT: the shard of a batch that core `rank` processes."""
        part = shards_of(len(batch.x), self.program.cores)[rank]
        masks = {stage: mask[part] for stage, mask in batch.masks.items()}
        return bytes(self.program.pack_input(batch.x[part], batch.targets[part], masks or None, **_counted(batch, part)))

    def found(self, data, **rest):
        """Decodes the results of the steps. `data` has the final memory of each core, starting at SCRATCH; `rest` are further
        fields of :class:`CoreSteps`."""

        def regions(place):
            return [bytes(memory[place[0] - self.first_output :][: place[1]]) for memory in data]

        runs = [batch["regions"] for batch in self.batches]
        program, scratch = self.program, regions(runs[0]["SCRATCH"])
        logits = [np.concatenate([program.unpack_logits(own) for own in regions(run["OUTPUT"])]) for run in runs]
        states = program.unpack_states(scratch, self.first_step + len(runs))
        return CoreSteps(states, [program.unpack_images(own) for own in scratch], logits, **rest)


def _counted(batch, part):
    """Returns the argument `counted` of the program's methods, for some samples of a batch."""
    return {} if batch.counted is None else {"counted": batch.counted[part]}


def _of_all(counters):
    """Returns the counters of the slowest core, with `ring_sent` replaced by the list of words that each core sent."""
    return max(counters, key=lambda own: own["cycles"]) | {"ring_sent": [own["ring_sent"] for own in counters]}


@dataclass(frozen=True, eq=False)
class StepRunner:
    """Executes training steps on a core, for :class:`sim.trainer.comparison.StepComparison`.

    Parameters
    ----------
    program : sim.backward.step_program.StepProgram
    simulator : str
        Execution model: `verilator`, `icarus` or `model`.
    memory : dict
        Plusargs of the RTL's host memory: `latency` (default: `HOST_LATENCY`), stalls.
    timeout : number
        Time limit of a simulation, in seconds.
    quick : bool
        Prefer a fast build; see :class:`sim.rtl.runner.Simulation`.
    cells : str
        Cells of the RTL, `rtl` or `native`; see :mod:`sim.rtl.native_cells`.
    """

    program: object
    simulator: str
    memory: dict = field(default_factory=dict)
    timeout: float = 24 * 3600
    quick: bool = False
    cells: str = "rtl"

    @property
    def together(self):
        """Returns the number of steps per simulation."""
        return max(1, min(_MOST, _CYCLES // self.program.predicted_cycles))

    def __call__(self, state, batches, progress=None):
        """Executes the steps of a list of batches from a TrainingState. Returns :class:`CoreSteps`. Calls `progress` with (steps
        done, steps)."""
        host = _StepImage(self.program, state, batches)
        return (self._on_model if self.simulator == "model" else self._on_rtl)(host, progress)

    def _on_rtl(self, host, progress):
        cores = self.program.cores
        size = {"memory_bytes": host.size, "quick": self.quick, "cells": self.cells}
        simulation = core_simulation(self.program.config, simulator=self.simulator, cores=cores, **size)
        raw = run_batches(
            simulation,
            host.bytes,
            host.batches,
            outputs=host.outputs,
            timeout=self.timeout,
            progress=progress,
            memory={"latency": HOST_LATENCY, **self.memory},
            cycle_limit=64 * self.program.predicted_cycles + 1_000_000,
        )
        counters = [] if raw["fault"] else raw["batches"]
        if cores > 1:
            counters = [_of_all(step) for step in counters]
        output = raw["output"] if cores > 1 else [raw["output"]]
        return host.found(output, counters=counters, protocol_errors=raw["protocol_errors"], fault=raw["fault"])

    def _on_model(self, host, progress):
        output, fault = host.execute(self.program.config, progress)
        return host.found(output, fault=fault)
