"""Long simulations in parts. Groups of batches are simulated separately and saved when complete; the statistics equal those of
one simulation.

A batch starts on an empty core, and its regions have the same offsets within a page. The cycles of a batch therefore do not
depend on earlier batches. The exception is stalls of the bus: they are drawn for the simulation as a whole.
"""

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from amaranth_tpu.hw.tools.process import lock
from amaranth_tpu.hw.verilog.header import command

from ..data.checkpoints import Checkpoint
from ..data.samples import as_samples
from ..golden.network import core_input
from ..rtl.host_memory import HOST_LATENCY
from ..rtl.verilog_cache import verilog_of
from .inference import run_samples, summarize
from .spread import in_turn

__all__ = ["BatchGroup", "part_batches", "run_in_parts"]

_CYCLES = 1 << 19  # approximate cycles per group: about ten seconds of simulation


@dataclass(frozen=True)
class BatchGroup:
    """A group of whole batches, samples first to last - 1, and the inputs of its simulation."""

    first: int
    last: int
    program: object
    network: object
    rows: np.ndarray
    options: dict  # options of :func:`sim.host.inference.run_samples`

    def run(self):
        """Simulates the group. Returns its :class:`sim.host.inference.RunResult`."""
        return run_samples(self.network, self.program.config, self.rows, program=self.program, **self.options)


def part_batches(program):
    """Returns the number of batches in one group, for a compiled program."""
    return max(1, _CYCLES // program.predicted_cycles)


def run_in_parts(network, program, samples, *, simulator, folder, memory=None, cells="rtl", spread=in_turn, progress=None):
    """Simulates samples like :func:`sim.host.inference.run_samples`, in groups. Each completed group is saved in `folder`, and
    only missing groups are simulated. Raises CheckpointError if a saved group is damaged, or belongs to other inputs. Raises
    ToolError if another process uses the folder.

    Parameters
    ----------
    samples : float32 (count, values of a sample)
    folder : path
        Folder for the results. Created if missing.
    spread : callable
        Executes the groups: :func:`sim.host.spread.in_turn`, or a :class:`sim.host.spread.Cluster`.
    progress : callable
        Called with `(batches done, batches)`, first for the batches found in `folder`.

    Returns
    -------
    RunResult
        Equal to the result of one simulation; `seconds` is the sum over the groups. If a group ends with a fault, the result
        covers the groups up to and including that group.
    """
    rows, folder = core_input(network, as_samples(network, samples).rows), Path(folder)
    memory, size = {"latency": HOST_LATENCY, **(memory or {})}, part_batches(program) * program.batch
    facts = _facts(program, rows, simulator, memory, cells)
    places = [(first, min(first + size, len(rows))) for first in range(0, len(rows), size)]
    options = {"simulator": simulator, "memory": memory, "cells": cells}
    files = [Checkpoint(folder / f"samples-{first:07}.safetensors", "tpu run") for first, _ in places]
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / "run.lock", timeout=1):
        results = {
            index: _read(file, facts, last - first, program)
            for index, (file, (first, last)) in enumerate(zip(files, places))
            if file.exists()
        }
        rest = [index for index in range(len(places)) if index not in results]
        show = _counted(progress, program.batch, places)
        show(results)
        parts = [BatchGroup(*places[index], program, network, rows[slice(*places[index])], options) for index in rest]
        for number, result in spread(BatchGroup.run, parts):
            index = rest[number]
            results[index] = result
            if not result.fault:
                _write(files[index], facts, result)
                show(results)
            if any(one.fault for one in _without_gap(results)):
                break
    return _joined(program, [*_without_gap(results)])


def _facts(program, rows, simulator, memory, cells):
    """Returns all inputs that determine the results of a simulation: `{name: text or number}`."""
    facts = {
        "simulator": simulator,
        "core": command(program.config),
        "batch": program.batch,
        "samples": len(rows),
        **{name: memory[name] for name in sorted(memory)},
        "data": _digest(rows.tobytes()),
        "network": _digest(program.model),
    }
    return facts if simulator == "model" else facts | {"source": _digest(verilog_of(program.config).encode()), "cells": cells}


def _digest(content):
    return hashlib.sha256(content).hexdigest()[:32]


def _counted(progress, batch, places):
    batches = [-(-(last - first) // batch) for first, last in places]
    return lambda results: progress and progress(sum(batches[index] for index in results), sum(batches))


_KEPT = ("batches", "seconds", "cycles_per_second", "protocol_errors")


def _write(file, facts, result):
    figures = asdict(replace(result, logits=None, expected=None, seen=None))
    kept = {name: figures[name] for name in _KEPT}
    file.write(facts, kept, {"logits": result.logits, "expected": result.expected})


def _read(file, facts, count, program):
    kind = (count, program.memory.network.output_size), np.dtype(np.float32)
    kept, tensors = file.read(facts, {"logits": kind, "expected": kind}, finite=False)
    if set(kept) != {*_KEPT}:
        raise file.damaged()
    return _result(program, tensors["logits"], tensors["expected"], kept.pop("batches"), **kept)


def _result(program, logits, expected, batches, **rest):
    """Returns the :class:`RunResult` of a simulation. For the instruction-level model, which has no counters, the result has no
    cycles."""
    result = summarize(program, program.config, logits, expected, batches, **rest)
    return result if batches else replace(result, cycles=None, busy=None, stalls=None, utilisation=None)


def _without_gap(results):
    """Yields the consecutive results, starting at the first group. Stops after a result with a fault, or before a missing
    result."""
    index = 0
    while index in results:
        yield results[index]
        if results[index].fault:
            return
        index += 1


def _joined(program, results):
    """Merges the results of consecutive groups into one :class:`RunResult`."""
    seconds = sum(one.seconds for one in results)
    batches, fault = [], None
    for one in results:
        if one.fault:
            fault = one.fault | {"batch": one.fault["batch"] + part_batches(program) * (len(results) - 1)}
        batches += one.batches
    joined = _result(
        program,
        np.concatenate([one.logits for one in results]),
        np.concatenate([one.expected for one in results]),
        batches,
        seconds=seconds,
        fault=fault,
    )
    if not batches:
        return joined
    cycles = sum(one.cycles_per_second * one.seconds for one in results)
    errors = sum(one.protocol_errors for one in results)
    return replace(joined, cycles_per_second=cycles / max(seconds, 1e-9), protocol_errors=errors)
