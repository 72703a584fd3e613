"""The comparison of training steps on a core with the golden model, bit for bit."""

from dataclasses import dataclass, field

import numpy as np

from amaranth_tpu.hw.spec.registers import STALLS

__all__ = ["CoreSteps", "StepComparison", "differing_bits"]


@dataclass(frozen=True, eq=False)
class CoreSteps:
    """The results of consecutive training steps on a core, or on the cores of a ring."""

    #: List of sim.golden.training.TrainingState. State in each core after the last step. Arrays whose shards are spread over the
    #: cores are one array, which all states share.
    states: list
    logits: list  # List of float32 (batch, classes). Logits of each step, for the samples of all cores together.
    #: List of dict. For each step, the counters of the slowest core, from :func:`sim.host.rtl_run.run_batches`. With several
    #: cores, `ring_sent` lists the words that each core sent. Empty for models without cycles.
    counters: list = field(default_factory=list)
    protocol_errors: int | None = None  # number of violations of AXI rules
    fault: dict | None = None  # `cause`, `pc` and `batch` of the fault that stopped the core


def _arrays_of(state, number):
    """Returns the master weights and the optimizer state of parameter `number`, as `{name: array}`."""
    return {"value": state.masters[number], **state.slots[number]}


def differing_bits(one, two):
    """Counts the bits in which two arrays of the same type differ. If the shapes differ, all bits of the second array count."""
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, two))
    return 8 * len(second) if one.shape != two.shape else int(np.bitwise_count(first ^ second).sum())


class StepComparison:
    """Repeats training steps of the golden model on a core, several at a time, and counts the bits that differ.

    Parameters
    ----------
    network : sim.ir.graph.Graph
    run : callable
        `run(state, batches, progress)` executes these steps from a TrainingState and returns :class:`CoreSteps`. `batches` is a
        list of :class:`sim.trainer.golden_training.Batch`. `progress` is None, or called with (steps done, steps).
    most : int or None
        Number of steps to compare. None: all.
    together : int
        Number of steps per simulation.
    ring_words : int
        Number of 32-bit words that each core of a ring sends per step, by the formula of :mod:`sim.golden.ring`. 0 without a
        ring.

    Members
    -------
    on_run : callable or None
        Called before each simulation with the numbers of its first and last step, counted from 1.
    on_progress : callable or None
        Passed to `run`.
    """

    def __init__(self, network, run, most, together=10, *, ring_words=0):
        self._network, self._run, self._most, self._together = network, run, most, together
        self.on_run = self.on_progress = None
        self._ring_words = ring_words
        self._before, self._waiting, self._after, self._logits = None, [], None, []
        self.steps = self.mismatched_bits = self.values = 0
        self.counters, self.protocol_errors, self.fault, self.where = [], None, None, None

    @property
    def complete(self):
        """Returns True if all steps to compare have been compared."""
        return self.failure is not None or self._most is not None and self.steps + len(self._waiting) >= self._most

    @property
    def failure(self):
        """Returns a message of one line about the first check that failed, or None."""
        if self.fault:
            step = self.steps + self.fault["batch"] + 1
            return f"the core stopped in step {step} with fault {self.fault['cause']} at pc {self.fault['pc']:#x}"
        if self.mismatched_bits:
            return (
                f"{self.mismatched_bits} bits differ from the golden model after {self.steps} steps on the core, the first "
                f"mismatch is in {self.where}"
            )
        if (ring := self.ring_figures) and any(sent != ring["formula"] for sent in ring["words_sent"] or ()):
            return f"the cores sent {ring['words_sent']} words over the ring in {self.steps} steps, not {ring['formula']} each"
        return f"{self.protocol_errors} violations of the AXI protocol" if self.protocol_errors else None

    def add(self, before, batch, after, logits):
        """Adds one step of the golden model: the states before and after the step, its :class:`.Batch`, and its logits."""
        if not self._waiting:
            self._before = before
        self._waiting.append(batch)
        self._logits.append(logits)
        self._after = after
        if len(self._waiting) >= self._together or self.complete:
            self.finish()

    def finish(self):
        """Executes and compares the steps that have been added but not compared yet."""
        if not self._waiting:
            return
        if self.on_run:
            self.on_run(self.steps + 1, self.steps + len(self._waiting))
        found = self._run(self._before, self._waiting, self.on_progress)
        self.counters += found.counters
        if found.protocol_errors is not None:
            self.protocol_errors = (self.protocol_errors or 0) + found.protocol_errors
        self.fault = found.fault
        if not self.fault:
            self._compare(found)
            self.steps += len(self._waiting)
        self._waiting, self._logits = [], []

    def _compare(self, found):
        for number, (here, there) in enumerate(zip(found.logits, self._logits, strict=True)):
            self._count(f"the logits of step {self.steps + number + 1}", here, there)
        for number, parameter in enumerate(self._network.parameters):
            wanted, seen = _arrays_of(self._after, number), []
            for core, state in enumerate(found.states):
                where = f" of core {core}" if len(found.states) > 1 else ""
                for name, here in _arrays_of(state, number).items():
                    if not any(here is other for other in seen):
                        self._count(f"{name} of {parameter}{where}", here, wanted[name])
                        seen.append(here)

    def _count(self, where, here, there):
        bits = differing_bits(here, there)
        if bits and self.where is None:
            self.where = where
        self.mismatched_bits += bits
        self.values += there.size

    @property
    def ring_figures(self):
        """Returns the entry `ring` of the option `--json`, or None without a ring. It has the 32-bit words that each core sent in
        all steps: by the core's counter (None for models without it), and by the formula."""
        if not self._ring_words:
            return None
        sent = [one["ring_sent"] for one in self.counters]
        return {"words_sent": [sum(core) for core in zip(*sent)] or None, "formula": self._ring_words * self.steps}

    def figures(self, useful_macs, cells):
        """Returns the entries of the option `--json` about the comparison.

        Parameters
        ----------
        useful_macs : int
            Multiply-accumulates per core and step that contribute to the result.
        cells : int
            Number of cells of the array.
        """
        cycles = sum(one["cycles"] for one in self.counters)
        timed = bool(self.counters)
        return {
            "rtl_steps": self.steps,
            "mismatched_bits": self.mismatched_bits,
            "compared_values": self.values,
            "protocol_errors": self.protocol_errors,
            "fault": self.fault,
            "cycles": cycles if timed else None,
            "cycles_per_step": cycles / len(self.counters) if timed else None,
            "utilisation": useful_macs * len(self.counters) / (cycles * cells) if timed else None,
            "busy": sum(one["busy"] for one in self.counters) if timed else None,
            "stalls": {name: sum(one[f"stall_{name}"] for one in self.counters) for name in STALLS} if timed else None,
        }
