"""Speed of the simulation and the generator."""

import time
from typing import Annotated

import typer

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.verilog.export import to_verilog
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.host.batches import bare_clock
from amaranth_tpu.sim.host.inference import InferenceImage, core_simulation, run_samples

from .common import MODEL, Json, app, publish, samples_of

__all__ = ["generation", "simulation"]


@app.command()
def simulation(n: int = 16, batches: Annotated[int, typer.Option(help="Batches of 128.")] = 4, as_json: Json = False):
    """Measure cycles per second under cocotb and in a bare C++ loop, in turns, on the same model and job; not documented."""
    network, config = load_network(MODEL), Config(n=n)
    program = compile_network(network, config, 128)
    samples = samples_of(128 * batches)
    host = InferenceImage(program, samples)
    model = core_simulation(config, simulator="verilator", memory_bytes=host.size)
    speeds = {"cocotb": [], "bare": []}
    for _ in range(3):
        speeds["cocotb"].append(run_samples(network, config, samples, batch=128, program=program).cycles_per_second)
        speeds["bare"].append(bare_clock(model, host.bytes, host.batches, outputs=host.outputs)["cycles_per_second"])
    best = {name: max(values) for name, values in speeds.items()}
    figures = {"n": n, **best, "ratio": best["cocotb"] / best["bare"], "build_seconds": model.build_seconds}
    publish(
        None,
        ["n", "cocotb, cycles/s", "bare C++ loop, cycles/s", "ratio", "build, s"],
        [[n, f"{best['cocotb']:,.0f}", f"{best['bare']:,.0f}", f"{figures['ratio']:.1%}", f"{model.build_seconds:.0f}"]],
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
