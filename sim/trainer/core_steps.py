"""Execution of training steps on a core: on the RTL in a simulator, or on the instruction-level model.

The core executes the program of a training step once per step. Parameters and optimizer state stay in region SCRATCH from one
step to the next. Each step has its own INPUT region with its samples, its own OUTPUT region, and a MODEL region that contains its
learning rate; equal MODEL regions are shared. In a ring, each core has its own host memory, all with the same layout. It contains
the core's shard of the samples, and the core's shard of weights that are divided among the cores.
"""

from dataclasses import dataclass, field

import numpy as np

from ..compiler.step_state import pack_state, unpack_states, with_rate
from ..golden.shards import shards_of
from ..host.host_image import HostImage
from .core_comparison import CoreSteps

__all__ = ["StepRunner"]

_CYCLES = 1_000_000  # cycles of one simulation, approximately
_MOST = 50  # most steps in one simulation


class _StepImage(HostImage):
    """The host memory of a sequence of steps.

    Parameters
    ----------
    program : Program
        From :func:`sim.compiler.step.compile_step`.
    state : TrainingState
    batches : list of sim.trainer.golden_training.Batch
    """

    def __init__(self, program, state, batches):
        self.first_step, ranks, runs = state.steps, range(program.cores), []
        for number, batch in enumerate(batches):
            model = with_rate(program, batch.rate, state.steps + number + 1, batch.counted)
            runs.append((model, [self._input(program, batch, part) for part in shards_of(len(batch.x), program.cores)]))
        super().__init__(program, runs, [pack_state(program, state, rank) for rank in ranks])

    @staticmethod
    def _input(program, batch, part):
        masks = {stage: mask[part] for stage, mask in batch.masks.items()}
        counted = None if batch.counted is None else batch.counted[part]
        return program.pack_input(batch.x[part], batch.targets[part], masks or None, counted)

    def found(self, data, **rest):
        """Decodes the results of the steps. `data` has the final memory of each core, starting at SCRATCH; `rest` are further
        fields of :class:`CoreSteps`."""
        program, scratch, runs = self.program, self.read(data, "SCRATCH"), range(len(self.batches))
        logits = [np.concatenate([*map(program.unpack_output, self.read(data, "OUTPUT", run))]) for run in runs]
        states = unpack_states(program, scratch, self.first_step + len(runs))
        return CoreSteps(states, logits, **rest)


def _of_all(counters):
    """Returns the counters of the slowest core, with `ring_sent` replaced by the list of words that each core sent."""
    return max(counters, key=lambda own: own["cycles"]) | {"ring_sent": [own["ring_sent"] for own in counters]}


@dataclass(frozen=True, eq=False)
class StepRunner:
    """Executes training steps on a core, for :class:`sim.trainer.core_comparison.StepComparison`."""

    program: object  # Program. From :func:`sim.compiler.step.compile_step`.
    simulator: str  # execution model: `verilator`, `icarus` or `model`
    memory: dict = field(default_factory=dict)  # plusargs of the RTL's host memory: `latency` (default: `HOST_LATENCY`), stalls
    timeout: float = 24 * 3600  # time limit of a simulation, in seconds
    quick: bool = False  # prefer a fast build; see :class:`sim.rtl.runner.Simulation`
    cells: str = "rtl"  # cells of the RTL, `rtl` or `native`; see :mod:`sim.rtl.native_cells`

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
        options = {"memory": self.memory, "timeout": self.timeout, "quick": self.quick, "cells": self.cells}
        raw = host.simulate(simulator=self.simulator, progress=progress, **options)
        counters = [] if raw["fault"] else raw["batches"]
        if host.cores > 1:
            counters = [_of_all(step) for step in counters]
        return host.found(raw["output"], counters=counters, protocol_errors=raw["protocol_errors"], fault=raw["fault"])

    def _on_model(self, host, progress):
        output, fault = host.execute(progress)
        return host.found(output, fault=fault)
