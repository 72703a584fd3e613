"""Sizes and clock rates of cores on FPGAs."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.hw.boards import BOARDS
from amaranth_tpu.hw.config import PRESETS, from_preset
from amaranth_tpu.hw.fpga.devices import largest_cores
from amaranth_tpu.hw.fpga.implement import implement
from amaranth_tpu.hw.fpga.targets import PARTS, RESOURCES, Target
from amaranth_tpu.hw.tools.process import build_directory, write_whole

from ..show.terminal import spinner
from .common import Json, Write, app, publish
from .versions import VERSION, version_of_file

__all__ = ["blocks", "boards", "devices", "options"]

#: {board: seeds of its rows} of the table `boards`
_ROUTED = {
    "ulx3s-25f": (1,),
    "ulx3s-45f": (1,),
    "ulx3s-85f": (1, 2),
    "ecpix5-85f": (1,),
    "orangecrab-25f": (1,),
    "versa-5g": (1,),
    "tang-primer-20k": (1,),
    "crosslink-nx": (1,),
}
_BLOCKS = "ulx3s-85f"  # the board of the table `blocks`
_AROUND_CORE = ("bridge", "memory", "top")  # blocks of the board outside its core
#: {option: (its value, other options that it needs)} of the table `options`. The core without it has `training`.
_OPTIONS = {
    "softmax_lanes": (4, {}),
    "normalize": (True, {"softmax_lanes": 4}),
    "table_lanes": (8, {}),
    "update_lanes": (4, {}),
    "weight_rows": (2, {}),
    "weight_formats": (True, {}),
}
_LARGE = 200  # LUTs of a block with a row of its own


def _shares(used, available):
    return [
        f"{used[name]:,} of {available[name]:,}" + (f" ({used[name] / available[name]:.0%})" if available[name] else "")
        for name in RESOURCES
    ]


@app.command()
def devices(
    parts: Annotated[str, typer.Option(help="Names of parts.")] = "ecp5-85,ice40-up5k,gw2a-18,xc7a100t,xc7a200t,xc7k325t",
    preset: Annotated[str, typer.Option(help="Preset with the buffers and cells of the cores.")] = "tiny",
    as_json: Json = False,
    write: Write = False,
):
    """Find the largest core for each FPGA: the largest N for which `tpu synth --target PART --preset tiny --n N` fits."""
    unknown = [part for part in parts.split(",") if part not in PARTS]
    if unknown:
        raise SystemExit(f"no part is called {unknown[0]!r}; choose from {', '.join(PARTS)}")
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
    publish(
        "devices",
        ["part", "largest n", "LUT", "FF", "DSP", "block RAM", "too much: the next size"],
        rows,
        figures,
        as_json,
        write,
    )


@app.command()
def boards(
    names: Annotated[str, typer.Option(help="Names of boards; the page keeps the rows of the others.")] = ",".join(_ROUTED),
    as_json: Json = False,
    write: Write = False,
):
    """Show the last report of `tpu synth --target BOARD --pnr --seed SEED` for each board and seed: the whole design and its
    clock, by nextpnr. The folder of a second seed has a name of its own: `-o build/synth/ulx3s-85f-n8-seed-2`."""
    unknown = [name for name in names.split(",") if name not in _ROUTED]
    if unknown:
        raise SystemExit(f"the table has no row of {unknown[0]!r}; choose from {', '.join(_ROUTED)}")
    figures, rows = [], []
    for name in names.split(","):
        reports = sorted((build_directory() / "synth").glob(f"{name}-n*/report.json"))
        core = asdict(PRESETS[BOARDS[name].preset])
        placed = [
            report | {VERSION: version_of_file("boards", path)}
            for path, report in ((path, json.loads(path.read_text())) for path in reports)
            if report["placed"] and report["config"] == core and report["seed"] in _ROUTED[name] and not report["across_blocks"]
        ]
        if not placed:
            raise SystemExit(f"no report of {name} with place and route; run `tpu synth --target {name} --pnr` first")
        for figure in placed:
            figures.append(figure)
            rows.append(
                [
                    name,
                    figure["seed"],
                    figure["n"],
                    *_shares(figure["total"], figure["available"]),
                    f"{figure['fmax_mhz']:.1f}",
                    f"{figure['clock_mhz']:.1f}",
                    figure[VERSION],
                ]
            )
    head = ["board", "seed", "n", "LUT", "FF", "DSP", "block RAM", "MHz", "its clock", VERSION]
    keys = [(name, seed) for name, seeds in _ROUTED.items() for seed in seeds]
    publish("boards", head, rows, figures, as_json, write, keys)


@app.command()
def blocks(as_json: Json = False, write: Write = False):
    """Show the last report of `tpu synth --target ulx3s-85f` by block, as counted by Yosys."""
    path = build_directory() / "synth" / f"{_BLOCKS}-n{PRESETS[_BLOCKS].n}" / "report.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    if report.get("config") != asdict(PRESETS[_BLOCKS]) or report["across_blocks"]:
        raise SystemExit(f"no report of {_BLOCKS} by block; run `tpu synth --target {_BLOCKS}` first")
    found = {name: counts for name, counts in report["blocks"].items() if name != "placement"}
    core = {name: counts for name, counts in found.items() if name not in _AROUND_CORE}

    def row(title, names):
        return [title, *(f"{sum(found[name][resource] for name in names):,}" for resource in RESOURCES)]

    rest = sorted(core.keys() - {"array"}, key=lambda name: -core[name]["lut"])
    large = [name for name in rest if core[name]["lut"] >= _LARGE]
    rows = [
        row("array", ["array"]),
        row("core without the array", rest),
        *(row(f"- {name}", [name]) for name in large),
        row("- others", rest[len(large) :]),
        row("bridge and memory of the board", [name for name in _AROUND_CORE if name in found]),
    ]
    head = ["block", *(name.upper() if name != "bram" else "block RAM" for name in RESOURCES), VERSION]
    version = version_of_file("blocks", path)
    publish("blocks", head, [[*row, version] for row in rows], found, as_json, write)


@app.command()
def options(
    names: Annotated[str, typer.Option(help="Names of options; the page keeps the rows of the others.")] = ",".join(_OPTIONS),
    n: Annotated[int, typer.Option(help="Array size.")] = 8,
    as_json: Json = False,
    write: Write = False,
):
    """Synthesize the preset `training` without and with each option alone, as `tpu synth --target ecp5-85 --preset training`.
    A module is synthesized once for all cores, and a command that was ended continues."""
    unknown = [name for name in names.split(",") if name not in _OPTIONS]
    if unknown:
        raise SystemExit(f"no option is called {unknown[0]!r}; choose from {', '.join(_OPTIONS)}")
    rows, counts = [], {}
    for name in names.split(","):
        value, others = _OPTIONS[name]
        made = []
        for fields in (others, others | {name: value}):
            key = ", ".join(f"{field} {given}" for field, given in fields.items())
            if key not in counts:
                folder = build_directory() / "options" / f"n{n} {key}".strip().replace(", ", "-").replace(" ", "-")
                report = _synthesized(from_preset("training", n=n, **fields), folder)
                counts[key] = {resource: report[resource] for resource in RESOURCES}
            made.append(counts[key])
        before, after = made
        more = [f"{after[resource] - before[resource]:+,}" for resource in RESOURCES]
        needs = ", ".join(f"`{field}` {given}" for field, given in others.items())
        rows.append([f"`{name}` {int(value)}", n, needs, f"{before['lut']:,}", *more])
    head = ["option", "n", "needs", "LUT without it", *(f"more {name.upper()}" for name in RESOURCES[:-1]), "more block RAM"]
    publish(
        "options", head, rows, counts, as_json, write, [(f"`{name}` {int(value)}", n) for name, (value, _) in _OPTIONS.items()]
    )


def _synthesized(config, folder):
    """Returns the report of a core for an ECP5-85. A module is synthesized once for all cores: `modules.json` beside the folder
    keeps its cells."""
    modules = folder.parent / "modules.json"
    known = json.loads(modules.read_text()) if modules.exists() else {}
    with spinner(Console(stderr=True), "synthesizing") as show:
        report = implement(config, Target("ecp5-85", PARTS["ecp5-85"]), folder, known=known, progress=show)
    write_whole(modules, json.dumps(known))
    return report
