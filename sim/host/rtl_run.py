"""Execution of batches on a simulated core: from a memory image to results and counters."""

import asyncio
import json
import os
import tempfile
from pathlib import Path

import numpy

from amaranth_tpu.hw.tools.process import build_directory, execute, full_disk_named, tail

from ..rtl.cpp_program import cpp_program
from ..rtl.memory_images import read_dump, write_image
from ..rtl.probes import read_probes
from ..rtl.runner import SimulationError
from .driver import Driver, Script

__all__ = ["run_batches", "bare_clock"]

_BARE_CLOCK = Path(__file__).resolve().parents[1] / "rtl" / "bare_clock.cpp"


def _plan(simulation, run, image, outputs, memory):
    """Writes the memory images to files. Returns `(bytes per bus beat, plusargs, output window)` of a simulation."""
    images = image if isinstance(image, list) else [image]
    beat = simulation.parameters["BUS_WIDTH"] // 8
    first, size = outputs
    if first % beat:
        raise ValueError(f"outputs start at {first}, which is not a multiple of the bus beat of {beat} bytes")
    needed = max(first + size, *map(len, images))
    if needed > simulation.parameters["MEMORY_BYTES"]:
        raise ValueError(
            f"the run needs {needed} bytes of host memory, the simulation has {simulation.parameters['MEMORY_BYTES']}"
        )
    for number, one in enumerate(images):
        name = f"memory.hex.{number}" if isinstance(image, list) else "memory.hex"
        write_image(run / name, one, beat)
    plusargs = {"memory": run / "memory.hex", "dump": run / "dump.hex", **(memory or {})}
    window = [first // beat, max(first // beat, -(-(first + size) // beat) - 1)]
    return beat, plusargs, window


def run_batches(
    simulation,
    image,
    batches,
    *,
    outputs,
    memory=None,
    cycle_limit=1 << 32,
    timeout=3600,
    progress=None,
    on_cycles=None,
    seed=None,
    probes=(),
):
    """Simulates batches one after the other, on one core with `sim/benches/bench_run.py`, or on all cores of a ring with
    `bench_run_pod.py`.

    Parameters
    ----------
    simulation : Simulation
        Simulation from :meth:`Simulation.of_core`.
    image : bytes, or list of bytes
        Host memory starting at address 0. For a ring: one image per core.
    batches : list of dict
        For each batch: `regions`, a dict from a region's name to `[base, size]`, which needs only the regions that change; and
        `pc`, the start address in region MODEL (default 0).
    outputs : (int, int)
        Address and number of the bytes that are read back at the end.
    memory : dict
        Plusargs of `axi_memory`: latency, stalls, bus errors.
    cycle_limit : int
        Number of cycles after which a batch is aborted.
    progress, on_cycles : callable
        As in :meth:`sim.rtl.runner.Simulation.run`, in batches.
    probes : sequence of Probe
        The probes with which the simulation was built.

    Returns
    -------
    dict
        - `batches`: counters of each batch. For a ring, a list with the counters of each core, with `ring_sent` and
          `ring_received`.
        - `fault`: None, or `cause`, `pc` and `batch`.
        - `protocol_errors`: violations of AXI rules.
        - `simulated_cycles`, `seconds` (wall time without the build), `cycles_per_second`.
        - `identity`: parameters read from the core.
        - `output`: numpy bytes; for a ring, (cores, bytes).
        - `waves`: path of the trace.
        - `seen`, with probes: the result of :func:`sim.rtl.probes.read_probes`.
    """
    runs = build_directory() / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    with full_disk_named(runs), tempfile.TemporaryDirectory(prefix="batches-", dir=runs) as name:
        run = Path(name)
        beat, plusargs, window = _plan(simulation, run, image, outputs, memory)
        if probes:
            plusargs["probes"] = run / "probes"
        result = simulation.run(
            f"amaranth_tpu.sim.benches.{'bench_run_pod' if isinstance(image, list) else 'bench_run'}",
            plusargs=plusargs,
            timeout=timeout,
            progress=progress,
            on_cycles=on_cycles,
            seed=seed,
            arguments={
                "batches": batches,
                "window": window,
                "cycle_limit": cycle_limit,
                "beat_bytes": beat,
                "outputs": outputs[1],
                "dump": str(run / "dump.hex"),
                "npy": str(run / "output.npy"),
                "cores": len(image) if isinstance(image, list) else 1,
            },
        )
        result["output"] = numpy.load(run / "output.npy")
        if probes:
            result["seen"] = read_probes(run / "probes", probes)
    return result


def bare_clock(simulation, image, batches, *, outputs, memory=None, cycle_limit=1 << 32, timeout=3600):
    """Simulates batches like :func:`run_batches`, but a plain C++ loop clocks the verilated model. This is the baseline for the
    speed of cocotb.

    Returns
    -------
    dict
        `simulated_cycles`, `seconds`, `cycles_per_second`, `protocol_errors`, `output`; see :func:`run_batches`.
    """
    if simulation.simulator != "verilator":
        raise ValueError("only a verilated model can be clocked by a bare loop")
    program = cpp_program(simulation, _BARE_CLOCK.read_text())
    runs = build_directory() / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    with full_disk_named(runs), tempfile.TemporaryDirectory(prefix="bare-", dir=runs) as name:
        run = Path(name)
        beat, plusargs, window = _plan(simulation, run, image, outputs, memory)
        script = Script()
        driver = Driver(script)

        async def write_script():
            for batch in batches:
                await driver.configure_regions(batch.get("regions", {}))
                await driver.start(batch.get("pc", 0))
                await script.interrupt(cycle_limit)
                await driver.counters()

        asyncio.run(write_script())
        (run / "script").write_text("\n".join(script.lines) + "\n")
        with open(run / "log", "w") as log:
            try:
                status = execute(
                    [
                        str(program),
                        str(run / "script"),
                        *map(str, window),
                        *(f"+{key}={value}" for key, value in plusargs.items()),
                    ],
                    cwd=run,
                    env=dict(os.environ),
                    log=log,
                    timeout=timeout,
                )
            except TimeoutError as error:
                raise SimulationError(f"bare clock: {error}") from None
        lines = (run / "log").read_text().splitlines()
        if status or not lines or not lines[-1].startswith("{"):
            raise SimulationError(f"bare clock ended with status {status}: {tail(run / 'log', 3)}")
        result = json.loads(lines[-1])
        result["output"] = numpy.frombuffer(read_dump(run / "dump.hex", beat)[: outputs[1]], numpy.uint8)
    result["cycles_per_second"] = result["simulated_cycles"] / max(result["seconds"], 1e-9)
    return result
