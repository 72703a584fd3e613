"""The bench's side of the communication with :meth:`sim.rtl.runner.Simulation.run`. A bench runs in the process of the
simulator."""

import json
import os
from pathlib import Path

__all__ = ["arguments", "report", "tick"]


def arguments():
    """Returns the `arguments` that the caller gave to :meth:`sim.rtl.runner.Simulation.run`. To be called in a bench."""
    return json.loads((Path(os.environ["TPU_RUN"]) / "arguments.json").read_text())


def report(result):
    """Sends `result`, a JSON value, to the caller of :meth:`sim.rtl.runner.Simulation.run`. To be called in a bench."""
    (Path(os.environ["TPU_RUN"]) / "report.json").write_text(json.dumps(result))


def tick(done, total, cycles=0, seconds=0):
    """Sends progress to the caller of :meth:`sim.rtl.runner.Simulation.run`: `done` of `total` units of work, and the cycles
    simulated in `seconds` seconds. To be called in a bench."""
    place = Path(os.environ["TPU_RUN"])
    (place / "progress.new").write_text(f"{done} {total} {cycles} {seconds:.3f}")
    (place / "progress.new").rename(place / "progress")
