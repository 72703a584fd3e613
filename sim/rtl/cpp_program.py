"""Build of a C++ program around a verilated model, without cocotb."""

import hashlib
import os
from pathlib import Path

from amaranth_tpu.hw.tools.process import ToolError, execute, made_once

from .simulators import find_verilator

__all__ = ["cpp_program"]

_HEADER = Path(__file__).with_name("bench_parts.h")


def cpp_program(simulation, source, *, objects=(), timeout=300):
    """Builds a program and returns its path. The program is cached next to the build of the model. Raises ToolError if the
    model or the program does not build; the message names the log.

    Parameters
    ----------
    simulation : sim.rtl.runner.Simulation
        Simulation with Verilator. Its model is the C++ class `Vtop`.
    source : str
        C++ text with the function `main`. It may include `bench_parts.h`.
    objects : sequence of Path
        Object files to link to the program.
    """
    place, tool = simulation.build(), find_verilator()
    content = b"".join([source.encode(), *(path.read_bytes() for path in (_HEADER, *objects))])
    name = "main-" + hashlib.sha256(content).hexdigest()[:12]
    log_path = place / f"{name}.log"

    def make(partial):
        main = place / f"{name}.cpp"
        main.write_text(source)
        parts = [*objects, *place.glob("*.a"), *place.glob("verilated*.o")]
        include = [f"-I{place}", f"-I{_HEADER.parent}", f"-I{tool.root}/include", f"-I{tool.root}/include/vltstd"]
        with open(log_path, "w") as log:
            status = execute(
                [
                    "g++",
                    "-std=gnu++17",
                    "-O2",
                    *include,
                    str(main),
                    "-o",
                    str(partial),
                    "-Wl,--start-group",
                    *map(str, parts),
                    "-Wl,--end-group",
                    "-pthread",
                ],
                cwd=place,
                env=dict(os.environ),
                log=log,
                timeout=timeout,
            )
        if status:
            raise ToolError(f"building a C++ program around {place.name} failed (log: {log_path})")

    return made_once(place / name, make, timeout)
