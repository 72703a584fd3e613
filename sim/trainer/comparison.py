"""Whether steps on a core give the golden model's bits."""

from dataclasses import dataclass, field

import numpy as np

from amaranth_tpu.hw.spec.registers import STALLS

from ..golden.training import images

__all__ = ["CoreSteps", "StepComparison", "differing_bits"]


@dataclass(frozen=True, eq=False)
class CoreSteps:
    """What steps on a core gave.

    Parameters
    ----------
    states : list of sim.golden.training.TrainingState
        After the last of them, as each core has it: the same arrays where the cores have one together, each a part of it.
    images : list of list of bfloat16 array, or None
        What each core has read of parameters in the last of them, where it has that still.
    logits : list of float32 (batch, classes)
        Of each step, of all cores' samples.
    counters : list of dict
        Of each step, as :func:`sim.host.batches.run_batches` has them, of the core that took longest; none of models that know
        no time. With `ring_sent`, words, of each core, where there are several.
    protocol_errors : int or None
        Violations of AXI's rules.
    fault : dict or None
        `cause`, `pc` and `batch` of the fault that ended the steps early.
    """

    states: list
    images: list
    logits: list
    counters: list = field(default_factory=list)
    protocol_errors: int | None = None
    fault: dict | None = None


def _arrays_of(state, number):
    """{name: array} of a parameter's master and what the optimizer keeps of it."""
    return {"value": state.masters[number], **state.slots[number]}


def differing_bits(one, two):
    """Bits in which two arrays of the same type differ; all of the second's, if their shapes do."""
    first, second = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, two))
    return 8 * len(second) if one.shape != two.shape else int(np.bitwise_count(first ^ second).sum())


class StepComparison:
    """Runs steps that the golden model has done on a core too, some at a time, and counts the bits that differ.

    Parameters
    ----------
    network : sim.ir.training.TrainingGraph
    run : function of a TrainingState, a list of :class:`sim.trainer.training.Batch`, and a function or None
        Does these steps from this state on, and returns :class:`CoreSteps`. The function is told how many are done, of how many.
    most : int or None
        How many steps; None: all.
    together : int
        Steps of a run.
    ring_words : int
        Words of 32 bits that each core of a ring sends in a step, by the formula; 0 where there is no ring.

    Members
    -------
    on_run : function of the numbers of the first and the last step, from 1, or None
        Told before each run.
    on_progress : function or None
        Handed to `run`.
    """

    def __init__(self, network, run, most, together=10, *, ring_words=0):
        self._network, self._run, self._most, self._together = network, run, most, together
        self.on_run = self.on_progress = None
        self._ring_words = ring_words
        self._before, self._waiting, self._last, self._after, self._logits = None, [], None, None, []
        self.steps = self.mismatched_bits = self.values = 0
        self.counters, self.protocol_errors, self.fault, self.where = [], None, None, None

    @property
    def complete(self):
        """Whether it takes no more steps."""
        return self.failure is not None or self._most is not None and self.steps + len(self._waiting) >= self._most

    @property
    def failure(self):
        """What did not hold, in one line, or None."""
        if self.fault:
            step = self.steps + self.fault["batch"] + 1
            return f"the core stopped in step {step} with fault {self.fault['cause']} at pc {self.fault['pc']:#x}"
        if self.mismatched_bits:
            return (
                f"{self.mismatched_bits} bits differ from the golden model after {self.steps} steps on the core, the first of "
                f"them in {self.where}"
            )
        if (ring := self.ring_figures) and any(sent != ring["formula"] for sent in ring["words_sent"] or ()):
            return f"the cores sent {ring['words_sent']} words over the ring in {self.steps} steps, not {ring['formula']} each"
        return f"{self.protocol_errors} violations of the AXI protocol" if self.protocol_errors else None

    def add(self, before, batch, after, logits):
        """Takes a step: the states before and after it, and the logits that it gave, by the golden model."""
        if not self._waiting:
            self._before = before
        self._waiting.append(batch)
        self._logits.append(logits)
        self._last, self._after = before, after
        if len(self._waiting) >= self._together or self.complete:
            self.finish()

    def finish(self):
        """Runs and compares the steps that wait for it."""
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
        read = images(self._network, self._last)
        for number, one in enumerate(self._network.parameters):
            wanted, seen = _arrays_of(self._after, number), []
            for core, (state, kept) in enumerate(zip(found.states, found.images, strict=True)):
                where = f" of core {core}" if len(found.states) > 1 else ""
                for name, here in _arrays_of(state, number).items():
                    if not any(here is other for other in seen):
                        self._count(f"{name} of {one.name}{where}", here, wanted[name])
                        seen.append(here)
                if kept[number] is not None:
                    self._count(f"what was read of {one.name}{where}", kept[number], read[number])

    def _count(self, where, here, there):
        bits = differing_bits(here, there)
        if bits and self.where is None:
            self.where = where
        self.mismatched_bits += bits
        self.values += there.size

    @property
    def ring_figures(self):
        """What `--json` has of the ring, or None: words of 32 bits that each core sent in all steps, by its counter (None of
        models that have none), and by the formula."""
        if not self._ring_words:
            return None
        sent = [one["ring_sent"] for one in self.counters]
        return {"words_sent": [sum(core) for core in zip(*sent)] or None, "formula": self._ring_words * self.steps}

    def figures(self, useful_macs, cells):
        """What `--json` has of it.

        Parameters
        ----------
        useful_macs : int
            Multiply-accumulates of a core in a step.
        cells : int
            Of the array.
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
