"""The jobs of a sweep. They determine the cycles of a model on a core, by the timing model or the RTL, or the FPGA resources of a
core.

A job contains only texts and numbers, so that it can be sent to another process. Its result is a JSON object. If a core cannot be
generated, does not fit, or cannot execute a model, the result says so.
"""

import functools
import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.fpga.implement import implement
from amaranth_tpu.hw.fpga.synthesis import SynthesisError
from amaranth_tpu.hw.fpga.targets import RESOURCES, find_target
from amaranth_tpu.hw.tools.process import ToolError, build_directory
from amaranth_tpu.hw.verilog.header import command

from ..compiler.errors import CompileError
from ..data.printable import printable
from ..data.samples import random_samples
from ..data.source_digest import source_digest
from ..frontend.fixed_shapes import parse_shapes
from ..models.shipped import SHIPPED
from ..rtl.host_memory import parse_memory
from ..tpu.inference_run import checked
from ..tpu.load import load
from ..tpu.places import Simulator

__all__ = ["AreaJob", "CyclesJob", "digest_of", "memory_bits"]


@functools.lru_cache(maxsize=4)
def _load(model, digest, effort, shapes):
    """Reads the network in a model's file. Raises ToolError if the file's contents do not have this digest."""
    if digest_of(model) != digest:
        raise ToolError(f"{printable(model)}: a worker's file differs from the sweep's; give all workers the same file and rerun")
    network = load(model, effort=effort, shapes=parse_shapes(shapes), strict=True)
    network.check_programs = False  # the golden model checks the results of each simulation
    return network


def memory_bits(core):
    """Returns the number of bits in the large memories of a core: unified buffer, weight FIFO, accumulators and biases."""
    vectors = core.unified_buffer_depth + core.n * core.weight_fifo_depth
    return core.n * (16 * vectors + 32 * (core.accumulator_depth + core.bias_depth))


def digest_of(model):
    """Returns the digest of a model's file, which is given by its path or by the name of a shipped network."""
    return hashlib.sha256(Path(SHIPPED.get(model, model)).read_bytes()).hexdigest()[:32]


@dataclass(frozen=True)
class CyclesJob:
    """A job that determines the cycles of one batch."""

    model: str  # path that is valid for every worker, or name of a shipped network
    digest: str  # digest of the model's file, from :func:`digest_of`
    core: Config
    batch: int
    #: `verilator` or `icarus` to simulate the RTL. None: the compiler's timing model estimates the cycles.
    simulator: str | None = None
    effort: str = "best"  # effort of the compiler
    shapes: tuple[str, ...] = ()  # shapes of the model's inputs, as :func:`sim.frontend.fixed_shapes.parse_shapes` takes them
    memory: str = "32"  # host memory, as :func:`sim.rtl.host_memory.parse_memory` takes it
    cells: str = "rtl"  # cells of the RTL, `rtl` or `native`

    @property
    def facts(self):
        """Returns all settings that determine the result, as `{name: text or number}`."""
        return {
            "source": source_digest(),
            "core": command(self.core),
            "batch": self.batch,
            "effort": self.effort,
            "memory": self.memory,
            "simulator": self.simulator or "timing model",
            **({"cells": self.cells} if self.simulator else {}),
            "network": self.digest,
            "shapes": list(self.shapes),
        }

    def run(self):
        """Executes the job. Returns `cycles`, `bound`, `macs`, `utilisation`, `read_words` and `write_words`; or `error`, one
        line."""
        network = _load(self.model, self.digest, self.effort, self.shapes)
        try:
            estimate = network.estimate(self.core, self.batch, self.memory)
        except CompileError as error:
            return {"error": str(error)}
        names = ("cycles", "bound", "macs", "utilisation", "read_words", "write_words")
        figures = {name: getattr(estimate, name) for name in names}
        if self.simulator:
            rows = random_samples(network.network, self.batch, 1).rows
            place = Simulator(self.simulator, parse_memory(self.memory).plusargs(self.core), cells=self.cells)
            result = checked(network.run(rows, place, core=self.core, batch=self.batch).result)
            words = {f"{way}_words": result.batches[0][f"{way}_beats"] for way in ("read", "write")}
            figures |= {"cycles": result.cycles, "utilisation": result.utilisation, **words}
        return figures


@dataclass(frozen=True)
class AreaJob:
    """A job that synthesizes a core and counts the FPGA resources that it uses."""

    core: Config
    target: str  # name of the FPGA, for :func:`hw.fpga.targets.find_target`

    @property
    def facts(self):
        """Returns all settings that determine the result, as `{name: text or number}`."""
        return {"source": source_digest(), "core": command(self.core), "target": self.target}

    def run(self):
        """Executes the job. Returns `lut`, `ff`, `dsp`, `bram` and `fits`; or `error`, one line."""
        digest = hashlib.sha256(repr((self.target, asdict(self.core))).encode()).hexdigest()[:12]
        try:
            report = implement(self.core, find_target(self.target), build_directory() / "sweep" / f"{self.target}-{digest}")
        except SynthesisError as error:
            return {"error": str(error)}
        return {name: report[name] for name in (*RESOURCES, "fits")}
