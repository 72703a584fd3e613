"""Communication of a bench in the simulator's process with :meth:`sim.rtl.runner.Simulation.run`."""

import json
import os
from pathlib import Path

__all__ = ["arguments", "report", "tick"]


def arguments():
    """Returns, in a bench, the `arguments` of :meth:`sim.rtl.runner.Simulation.run`."""
    return json.loads((Path(os.environ["TPU_RUN"]) / "arguments.json").read_text())


def report(result):
    """Returns `result` (JSON) from a bench to the caller of :meth:`sim.rtl.runner.Simulation.run`."""
    (Path(os.environ["TPU_RUN"]) / "report.json").write_text(json.dumps(result))


def tick(done, total):
    """Reports the progress of a bench to the caller of :meth:`sim.rtl.runner.Simulation.run`."""
    place = Path(os.environ["TPU_RUN"])
    (place / "progress.new").write_text(f"{done} {total}")
    (place / "progress.new").rename(place / "progress")
