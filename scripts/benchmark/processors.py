"""Comparison of the core with processors: multiply-accumulates per cycle, and bytes per multiply-accumulate on the bus."""

import re
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from amaranth_tpu.hw.config import PRESETS
from amaranth_tpu.sim.check.onnxruntime_import import import_onnxruntime
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network

from ..show.documents import table_rows
from ..show.terminal import spinner
from .common import MODEL, Json, Write, app, publish, run_module, run_tpu, samples_of
from .torch_speed import torch_speed

__all__ = ["processors"]

#: Presets of cores; the clock of a board's preset is from the table `boards`.
_CORES = "ulx3s-45f,ulx3s-85f,default"
#: Kinds of rows, in their order in the table.
_KINDS = ("riscv", "server", "core")
_SECONDS = 2.0  # measurement time of onnxruntime per batch


def routed_clocks():
    """Returns {board: clock in MHz after place and route, with its worst seed}, from the table `boards`."""
    rows = sorted(table_rows("boards"), key=lambda row: float(row["MHz"]), reverse=True)
    return {row["board"]: float(row["MHz"]) for row in rows}


def this_processor():
    """Returns `(name, clock in MHz)` of this machine's CPU, as Linux reports them. The clock is None if it is not known."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    name, clock = (re.search(rf"^{key}\s*: (.*)$", text, re.MULTILINE) for key in ("model name", "cpu MHz"))
    return name[1] if name else "this machine's CPU", float(clock[1]) if clock else None


def onnxruntime_seconds(batch):
    """Returns the shortest CPU time, in seconds, in which onnxruntime computes a batch of digits with one thread. It repeats the
    batch for about 2 s."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()[0]
    samples = samples_of(batch).astype(np.float32).reshape(batch, *inputs.shape[1:])
    times, end = [], time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        started = time.process_time()
        session.run(None, {inputs.name: samples})
        times.append(time.process_time() - started)
    return min(times)


def _figure(what, batch, macs, cycles, moved, clock):
    rate = macs * batch / cycles
    return {"what": what, "batch": batch, "macs_per_cycle": rate, "bytes_per_mac": moved / (macs * batch), "mhz": clock}


def _kind(what):
    return "riscv" if what.startswith("VexRiscv") else "core" if what.startswith("the core") else "server"


def _row(figure):
    clock, rate = figure["mhz"], figure["macs_per_cycle"]
    timed = [f"{clock:,.1f}", f"{clock * rate:,.0f}"] if clock else ["", ""]
    return [figure["what"], figure["batch"], f"{rate:.3g}", f"{figure['bytes_per_mac']:.3g}", *timed]


def _on_riscv(macs):
    """Yields the figures of the CPU of `hw/examples/riscv` for one digit: with binary32 in software, and with 8-bit integers.
    `macs` is the number of multiply-accumulates per digit."""
    found = run_module("hw.examples.riscv", "--model", "default", "--images", "1")
    for who, text in (("binary32", "binary32 in software"), ("integer", "8-bit integers")):
        yield _figure(f"VexRiscv, {text}", 1, macs, found[who]["cycles"][0], found[who]["bytes"][0], None)


def _on_this_machine(network, macs, batches, torch_python):
    """Yields the figures of this machine's CPU: in binary32 by onnxruntime, and in bfloat16 by PyTorch if the interpreter
    `torch_python` has it."""
    onnxruntime = import_onnxruntime()
    name, clock = this_processor()
    if clock is None:
        raise SystemExit("/proc/cpuinfo does not tell the clock of this machine's CPU")
    weights = sum(network.constants[term.weights].size for stage in network.stages for term in stage.terms)
    values = {batch: weights + batch * (network.input_size + network.output_size) for batch in batches}
    for batch in batches:
        cycles = onnxruntime_seconds(batch) * clock * 1e6
        yield _figure(f"{name}, onnxruntime {onnxruntime.__version__}", batch, macs, cycles, 4 * values[batch], clock)
    found = torch_speed(torch_python, batches, _SECONDS)
    if found is None:
        print(
            f"{torch_python} has no PyTorch: no rows in bfloat16; name an interpreter that has it with --torch", file=sys.stderr
        )
        return
    version, seconds = found
    for batch in batches:
        cycles = seconds[batch] * clock * 1e6
        yield _figure(f"{name}, bfloat16, torch {version}", batch, macs, cycles, 2 * values[batch], clock)


def _on_core(preset, macs, batch, clocks):
    size = ["--images", str(batch), "--batch", str(batch), "--cells", "native"]
    found, config = run_tpu("run", "--preset", preset, *size), PRESETS[preset]
    if found["mismatched_bits"]:
        raise SystemExit(f"{preset}: {found['mismatched_bits']} bits differ from the golden model's")
    moved = (found["read_beats"] + found["write_beats"]) * config.bus_bytes
    return _figure(f"the core, n = {config.n}, preset `{preset}`", batch, macs, found["cycles"], moved, clocks.get(preset))


@app.command()
def processors(
    batches: Annotated[str, typer.Option(help="Batch sizes; the RISC-V takes one digit.")] = "1,64,1024",
    presets: Annotated[str, typer.Option(help="Presets of cores.")] = _CORES,
    torch: Annotated[str, typer.Option(help="Python interpreter that has PyTorch, for the rows in bfloat16.")] = sys.executable,
    only: Annotated[str, typer.Option(help="Kinds of rows to measure. The page keeps the others, and other CPUs.")] = ",".join(
        _KINDS
    ),
    as_json: Json = False,
    write: Write = False,
):
    """Measure 784-128-10 on a RISC-V, on this machine's CPU and on the core: work per cycle and bytes moved."""
    network, counts, clocks = load_network(MODEL), [int(batch) for batch in batches.split(",")], routed_clocks()
    macs = compile_network(network, PRESETS["default"], 1).useful_macs
    kinds, figures = only.split(","), []
    if unknown := {*kinds} - {*_KINDS}:
        raise typer.BadParameter(f"must be some of {', '.join(_KINDS)}, not {min(unknown)}", param_hint="--only")
    with spinner(Console(stderr=True), "measuring") as show:
        if "riscv" in kinds:
            show("RISC-V, some minutes")
            figures += _on_riscv(macs)
        if "server" in kinds:
            show("onnxruntime and PyTorch")
            figures += _on_this_machine(network, macs, counts, torch)
        for preset in presets.split(",") if "core" in kinds else ():
            for batch in counts:
                show(f"{preset}, batch of {batch}")
                figures.append(_on_core(preset, macs, batch, clocks))
    made = [(figure["what"], figure["batch"]) for figure in figures]
    name, _ = this_processor()
    kept = [
        (row["what"], row["batch"])
        for row in table_rows("processors")
        if _kind(row["what"]) not in kinds or _kind(row["what"]) == "server" and not row["what"].startswith(f"{name},")
    ]
    keys = sorted([*made, *kept], key=lambda key: _KINDS.index(_kind(key[0])))
    head = ["what", "batch", "MACs a cycle", "bytes moved a MAC", "MHz", "million MACs a second"]
    publish("processors", head, [_row(figure) for figure in figures], figures, as_json, write, keys)
