"""Speed of the simulation and the generator."""

import time
from itertools import product
from typing import Annotated

import typer

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.verilog.export import to_verilog
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.host.host_image import core_simulation
from amaranth_tpu.sim.host.inference import InferenceImage, run_samples
from amaranth_tpu.sim.host.rtl_run import bare_clock
from amaranth_tpu.sim.rtl.native_cells import CELLS

from .common import MODEL, Json, app, publish, samples_of

__all__ = ["generation", "simulation"]


_WAYS = [(cells, loop) for cells in CELLS for loop in ("cocotb", "bare C++ loop")]


def _speeds(n, batches):
    """Returns `(cycles per second by cells and loop, differing bits, seconds of the builds by cells)`.

    The combinations take turns, and the fastest of three turns counts.
    """
    network, config = load_network(MODEL), Config(n=n)
    program, samples = compile_network(network, config, 128), samples_of(128 * batches)
    host, options = InferenceImage(program, samples), {"batch": 128, "program": program}
    models = {cells: core_simulation(config, simulator="verilator", memory_bytes=host.size, cells=cells) for cells in CELLS}
    speeds, different = {way: 0.0 for way in _WAYS}, 0
    for _, (cells, loop) in product(range(3), _WAYS):
        if loop == "cocotb":
            run = run_samples(network, config, samples, cells=cells, **options)
            speed, different = run.cycles_per_second, different + run.mismatched_bits
        else:
            speed = bare_clock(models[cells], host.bytes, host.batches, outputs=host.outputs)["cycles_per_second"]
        speeds[cells, loop] = max(speeds[cells, loop], speed)
    return speeds, different, {cells: model.build_seconds for cells, model in models.items()}


@app.command()
def simulation(n: int = 16, batches: Annotated[int, typer.Option(help="Batches of 128.")] = 4, as_json: Json = False):
    """Measure cycles per second with both kinds of cells, under cocotb and in a bare C++ loop, in turns on one job; not
    documented."""
    speeds, different, builds = _speeds(n, batches)
    figures = [
        {
            "n": n,
            "cells": cells,
            "loop": loop,
            "cycles_per_second": speeds[cells, loop],
            "of_rtl_cells": speeds[cells, loop] / speeds["rtl", loop],
            "build_seconds": builds[cells],
            "mismatched_bits": different,
        }
        for cells, loop in _WAYS
    ]
    publish(
        None,
        ["n", "cells", "loop", "cycles/s", "of RTL cells", "build, s", "bits different"],
        [
            [
                *(f["n"], f["cells"], f["loop"], f"{f['cycles_per_second']:,.0f}", f"{f['of_rtl_cells']:.2f}"),
                *(f"{f['build_seconds']:.0f}", f["mismatched_bits"]),
            ]
            for f in figures
        ],
        figures,
        as_json,
        False,
    )


@app.command()
def generation(sizes: str = "4,8,16,32,64,128", as_json: Json = False):
    """Measure seconds and bytes of `tpu generate --n N`, also relative to the first N; not documented."""
    figures = []
    for n in map(int, sizes.split(",")):
        started = time.perf_counter()
        text = to_verilog(Config(n=n))
        seconds = time.perf_counter() - started
        figures.append(
            {
                "n": n,
                "seconds": seconds,
                "ratio": seconds / (figures[0]["seconds"] if figures else seconds),
                "bytes": len(text),
                "modules": text.count("\nmodule "),
            }
        )
    publish(
        None,
        ["n", "seconds", f"of n = {figures[0]['n']}", "MB", "modules"],
        [[f["n"], f"{f['seconds']:.1f}", f"{f['ratio']:.2f}", f"{f['bytes'] / 1e6:.2f}", f["modules"]] for f in figures],
        figures,
        as_json,
        False,
    )
