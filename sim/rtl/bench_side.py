"""For benches, inside the simulator's process: what :meth:`sim.rtl.runner.Simulation.run` gave them, and what they give back."""

import json
import os
from pathlib import Path

__all__ = ["arguments", "report", "tick"]


def arguments():
    """In a bench: what :meth:`sim.rtl.runner.Simulation.run` was given as `arguments`."""
    return json.loads((Path(os.environ["TPU_RUN"]) / "arguments.json").read_text())


def report(result):
    """In a bench: hands `result` (JSON) back to :meth:`sim.rtl.runner.Simulation.run`."""
    (Path(os.environ["TPU_RUN"]) / "report.json").write_text(json.dumps(result))


def tick(done, total):
    """In a bench: tells the caller of :meth:`sim.rtl.runner.Simulation.run` how far it is."""
    place = Path(os.environ["TPU_RUN"])
    (place / "progress.new").write_text(f"{done} {total}")
    (place / "progress.new").rename(place / "progress")
