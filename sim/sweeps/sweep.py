"""The points of a sweep and their measurements. A point is a model on a core with a batch size. Finished points are saved and not
repeated."""

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

#: Names of the measures of a core's area.
AREAS = ("cells", "memory_bits", *RESOURCES)


@dataclass(frozen=True)
class Point:
    """A point of a sweep, and the measurements at this point."""

    model: str  # path of an ONNX file, or name of a shipped network
    core: Config
    batch: int
    figures: dict = field(default_factory=dict, compare=False)

    @property
    def row(self):
        """Returns the point as a flat dict, in the order of the table's columns."""
        core = {f"core_{name}": value for name, value in asdict(self.core).items()}
        return {"model": self.model, "batch": self.batch, **core, **self.figures}


def grid(models, cores, batches):
    """Returns the points for all combinations of models, cores and batch sizes."""
    return [Point(*one) for one in itertools.product(models, cores, batches)]


def run_sweep(
    points,
    *,
    simulator=None,
    cells="rtl",
    effort="best",
    memory="32",
    shapes=(),
    target=None,
    folder=None,
    spread=in_turn,
    progress=None,
):
    """Measures all points. Returns the points with their measurements, in the same order. Raises CheckpointError if a saved job
    is damaged. Raises ToolError if another process uses the folder, or a tool fails.

    Parameters
    ----------
    simulator : str or None
        `verilator` or `icarus` to simulate the RTL. Default: the compiler's timing model estimates the cycles.
    cells : str
        Cells of the RTL, `rtl` or `native`; see :mod:`sim.rtl.native_cells`.
    effort : str
        Effort of the compiler; see :func:`sim.compiler.compile.compile_network`.
    shapes : sequence of str
        Shapes of inputs of every model, as :func:`sim.frontend.fixed_shapes.parse_shapes` takes them.
    target : str or None
        FPGA for which each core is synthesized. Default: no synthesis; `cells` and `memory_bits` then measure the area.
    folder : path or None
        Folder in which finished jobs are saved. Jobs saved by earlier sweeps, with the same models and the same version of this
        package, are not repeated.
    spread : callable
        Executes the jobs: :func:`sim.host.spread.in_turn`, or a :class:`sim.host.spread.Cluster`.
    progress : callable
        Called with `(jobs done, jobs)`. There is one job per point, and one per synthesized core.
    """
    digests = {model: digest_of(model) for model in dict.fromkeys(point.model for point in points)}
    cycles = [
        CyclesJob(
            _place(point.model), digests[point.model], point.core, point.batch, simulator, effort, tuple(shapes), memory, cells
        )
        for point in points
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
    """Returns the absolute path of a model's file, which is valid in every folder. The name of a shipped network is returned
    unchanged."""
    return model if model in SHIPPED else str(Path(model).resolve())


def _do(jobs, folder, spread, progress):
    """Executes the jobs that are not saved. Returns `{job: measurements}` for all jobs."""
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
    """Returns the Pareto front of each model: the points that no other point beats both in area, one of `AREAS`, and in cycles
    per sample. The smallest area is first.

    Points without measurements, and cores that do not fit the FPGA, are excluded.
    """
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
