"""Points of a sweep, each a model on a core with a batch, and their figures: kept as they come, so that only the rest is done."""

import contextlib
import hashlib
import itertools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.fpga.targets import RESOURCES
from amaranth_tpu.hw.tools.process import lock

from ..data.checkpoints import Checkpoint
from ..host.spread import in_turn
from ..models.shipped import SHIPPED
from .jobs import AreaJob, CyclesJob, digest_of, memory_bits

__all__ = ["AREAS", "Point", "front", "grid", "run_sweep"]

#: What the area of a point can be measured by.
AREAS = ("cells", "memory_bits", *RESOURCES)


@dataclass(frozen=True)
class Point:
    """
    Parameters
    ----------
    model : str
        A path, or the name of a shipped network.
    core : Config
    batch : int
    """

    model: str
    core: Config
    batch: int
    figures: dict = field(default_factory=dict, compare=False)

    @property
    def row(self):
        """All of it as one flat dict, in the order of a table's columns."""
        core = {f"core_{name}": value for name, value in asdict(self.core).items()}
        return {"model": self.model, "batch": self.batch, **core, **self.figures}


def grid(models, cores, batches):
    """The points of all models on all cores with all batches."""
    return [Point(*one) for one in itertools.product(models, cores, batches)]


def run_sweep(points, *, simulator=None, effort="best", target=None, folder=None, spread=in_turn, progress=None):
    """The points, in their order, with `figures`.

    Parameters
    ----------
    simulator : str or None
        `verilator` or `icarus` for cycles of the RTL; without it the compiler's timing model.
    effort : str
        Of the compiler, as of :func:`sim.compiler.compile.compile_network`.
    target : str or None
        The part that each core is synthesized for; without it, `cells` and `memory_bits` say how large a core is.
    folder : path or None
        Where what is done is kept; what is there already, of the same models and the same version of this package, is not done
        again, whatever points the sweep had then.
    spread : callable
        :func:`sim.host.spread.in_turn`, or a :class:`sim.host.spread.Cluster`.
    progress : callable
        Called with `(jobs done, jobs)`: one a point, and one a core that is synthesized.

    Raises
    ------
    sim.data.checkpoints.CheckpointError
        If what is kept is damaged.
    hw.tools.process.ToolError
        If another process is at it, or a tool fails.
    """
    digests = {model: digest_of(model) for model in dict.fromkeys(point.model for point in points)}
    cycles = [
        CyclesJob(_place(point.model), digests[point.model], point.core, point.batch, simulator, effort) for point in points
    ]
    areas = [AreaJob(core, target) for core in dict.fromkeys(point.core for point in points)] if target else []
    done = _do([*dict.fromkeys(cycles), *areas], folder, spread, progress or (lambda *_: None))
    found = []
    for point, job in zip(points, cycles):
        area = done[AreaJob(point.core, target)] if target else {}
        figures = {"error": None, "cells": point.core.n**2, "memory_bits": memory_bits(point.core)} | area | done[job]
        if figures.get("cycles") is not None:
            figures["cycles_per_sample"] = figures["cycles"] / point.batch
        found.append(Point(point.model, point.core, point.batch, figures))
    return found


def _place(model):
    """The same for processes in other folders."""
    return model if model in SHIPPED else str(Path(model).resolve())


def _do(jobs, folder, spread, progress):
    """{job: its figures}."""
    with contextlib.ExitStack() as stack:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock(Path(folder) / "sweep.lock", timeout=1))
        files = {job: _file(folder, job) if folder else None for job in jobs}
        done = {job: file.read(job.facts, {})[0] for job, file in files.items() if file and file.exists()}
        rest = [job for job in jobs if job not in done]
        progress(len(done), len(jobs))
        for index, figures in spread(_run, rest):
            job = rest[index]
            if files[job]:
                files[job].write(job.facts, figures, {})
            done[job] = figures
            progress(len(done), len(jobs))
    return done


def _run(job):
    return job.run()


def _file(folder, job):
    digest = hashlib.sha256(json.dumps(job.facts, sort_keys=True).encode()).hexdigest()[:24]
    return Checkpoint(Path(folder) / f"{digest}.safetensors", "tpu sweep")


def front(points, area):
    """Returns the points of each model that no other one beats: in area, of `AREAS`, and in cycles a sample. The smallest comes
    first. Points without figures, and cores that do not fit the part, are left out."""
    found = []
    for model in dict.fromkeys(point.model for point in points):
        best = None
        able = [point for point in points if point.model == model and {area, "cycles_per_sample"} <= {*point.figures}]
        able = [point for point in able if point.figures.get("fits", True)]
        for point in sorted(able, key=lambda one: (one.figures[area], one.figures["cycles_per_sample"])):
            if best is None or point.figures["cycles_per_sample"] < best:
                best = point.figures["cycles_per_sample"]
                found.append(point)
    return found
