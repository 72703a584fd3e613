"""The flow from a configuration to an FPGA: synthesis, place and route, bitstream, and a report with errors and advice."""

import json
import time
from dataclasses import asdict

from ..spec.cell_stages import STAGES
from ..tools.process import lock, write_whole
from ..verilog.export import pod_to_verilog, to_verilog
from .area_picture import area_picture
from .netlist import AROUND
from .place_and_route import core_clock, critical_path, need_tools, place_and_route, used
from .scan_chain import on_scan_chain
from .static_timing import FAMILY as TIMED_FAMILY
from .static_timing import worst_paths
from .synthesis import SynthesisError, synthesize
from .targets import RESOURCES

__all__ = ["advice", "implement", "shortcomings"]

#: Blocks whose memories must be in block RAM, and the depth from which this is required.
_IN_BLOCK_RAM = {"unified_buffer": "unified_buffer_depth", "accumulators": "accumulator_depth"}
_TINY_DEPTH = 128

#: Yosys takes as many times as long as the generation of the Verilog as the text has times this number of characters.
_CHARACTERS = 14_000
#: Seconds that nextpnr takes for a LUT.
_PLACE_AND_ROUTE = 0.06

#: Result files, which are deleted before a run. A tool deletes its other files itself.
_RESULTS = (
    "report.json",
    "area.svg",
    "latches.txt",
    "netlist.json",
    "stat.json",
    "nextpnr.log",
    "timing.json",
    "pins",
    "routed",
    "top.bit",
    "top.bin",
    "top.fs",
)


def _design(config, target, flat, cores):
    """Returns `(Verilog text, name of its top module)`. A board's design has pins. Otherwise, the core is put on a scan chain if
    `flat` is True."""
    if target.board:
        return target.board.to_verilog(config), "top"
    core, module = (to_verilog(config), "tpu") if cores == 1 else (pod_to_verilog(config, cores=cores), "tpu_pod")
    return (core + on_scan_chain(core, module), "top") if flat else (core, module)


def _sum(blocks):
    return {resource: sum(counts[resource] for counts in blocks.values()) for resource in RESOURCES}


def _lacks(counts, target):
    """Returns `{resource: message}` for each resource of which the design needs more than the part has. `counts` is {resource:
    count}."""
    return {
        resource: f"{counts[resource]:,} {resource.upper()} of {available:,}"
        for resource, available in target.part.available.items()
        if counts.get(resource, 0) > available
    }


def shortcomings(report, config, target):
    """Returns a list of texts: the faults that a report shows. Faults are memories or multipliers in LUTs, a design that does not
    fit, and a missed clock."""
    found = []

    def count(block, resource):
        return report["blocks"].get(block, {}).get(resource, 0)

    several = report.get("cores", 1) > 1
    for block, depth in () if several else _IN_BLOCK_RAM.items():
        if getattr(config, depth) >= _TINY_DEPTH and count(block, "bram") < config.n:
            found.append(
                f"{count(block, 'bram')} block RAMs for the {config.n} memories of {block}: the others are in LUTs or flip-flops"
            )
    cores = [f"core{rank}" for rank in range(report["cores"])] if several else ["array"]
    for block in cores:
        if target.part.dsp and count(block, "dsp") < config.n**2:
            found.append(f"{count(block, 'dsp')} DSPs for the {config.n**2} multipliers of the array: the others are in LUTs")
    lacks = _lacks(report["total"], target)
    if lacks:
        found.append(f"n = {config.n} does not fit {target.part.name}: it takes {', '.join(lacks.values())}")
    if report["met"] is False:
        found.append(f"missed: {report['fmax_mhz']:.1f} MHz < {report['clock_mhz']:.1f} MHz")
    return found


def _ways_to_fit(report, config, lacks):
    """Returns a list of texts: ways to make a core smaller. A way is included if its blocks use the resources that the part
    lacks, and all ways together free enough."""
    ways = {"smaller buffers (--unified-buffer-depth, --accumulator-depth)": (("unified_buffer", "accumulators"), ("bram",))}
    if config.pooling or config.table_lanes or config.softmax:
        ways["fewer functions (--no-pooling, --no-softmax, --table-lanes 0)"] = (("activation",), RESOURCES)

    def savings(resource, way):
        blocks, resources = ways[way]
        return sum(report["blocks"].get(block, {}).get(resource, 0) for block in blocks) if resource in resources else 0

    found = [way for way in ways if any(savings(resource, way) for resource in lacks)]
    most = {resource: sum(savings(resource, way) for way in found) for resource in lacks}
    enough = all(report["total"][resource] - most[resource] <= report["available"][resource] for resource in lacks)
    return (["a smaller --n"] if config.n > 2 else []) + (found if enough else [])


def advice(report, config, target):
    """Returns a list of suggestions, as texts, if the core does not fit the target or is slower than the target clock."""
    found = []
    if lacks := _lacks(report["total"], target):
        ways = _ways_to_fit(report, config, lacks)
        found += [f"try {way}" for way in ways]
        found.append("try a larger part (--target)" + ("" if ways else ": no core is small enough for this one"))
    if report["fmax_mhz"] and report["fmax_mhz"] < report["clock_mhz"]:
        reached = f"{report['fmax_mhz']:.1f} MHz reached, {report['clock_mhz']:.1f} MHz aimed at"
        if config.cell_stages < STAGES[-1]:
            found.append(
                f"{reached}: a cell of more stages is faster (--cell-stages, now {config.cell_stages}, at most {STAGES[-1]})"
            )
        else:
            found.append(f"{reached}: try --across-blocks, or another --seed")
    return found


def implement(config, target, folder, *, cores=1, pnr=False, paths=False, across_blocks=False, seed=1, known=None, progress=None):
    """Implements a core for a target in `folder`, which keeps the tools' logs, `report.json` and `area.svg`.

    A board's design is its complete top. The design for a part alone is the core `tpu`. For place and route the core is put
    between two shift registers (see :mod:`hw.fpga.scan_chain`), which `lut` and `ff` do not include.

    Parameters
    ----------
    config : hw.config.Config
    target : hw.fpga.targets.Target
    folder : pathlib.Path
    cores : int
        Number of cores. Several cores form a ring, and each is a block of the report. Boards have one core.
    pnr : bool
        True to place and route after Yosys, and to make a bitstream.
    paths : bool
        True to add the longest paths inside and between blocks, see :func:`hw.fpga.static_timing.worst_paths`. ECP5 only.
    across_blocks : bool
        True, with `pnr` or `paths`, to let Yosys optimise across blocks. The counts by block are then only approximate.
    seed : int
        Seed of place and route.
    known : dict or None
        Modules of earlier syntheses, see :func:`hw.fpga.synthesis.synthesize`. Without `pnr` and `paths`.
    progress : callable or None
        Called with progress messages.

    Returns
    -------
    dict
        `target`, `part`, `board`, `n`, `cores`, `config`; `lut`, `ff`, `dsp`, `bram` of the design; `total`, including the logic
        around the core; `available` in the part; `fits`; `blocks`: {block: {resource: count}}; `placed`: True if the counts are
        nextpnr's (the block `placement` holds the additions of nextpnr), False if they are Yosys'; `fmax_mhz`, `clock_mhz`,
        `met` (`fmax_mhz` and `met` are None without place and route; `met` also without a board, as only boards have a fixed
        clock); `critical_path`, see :func:`critical_path`; `paths`, see :func:`hw.fpga.static_timing.worst_paths`;
        `registers_for_memories`; `with_output_registers`: number of block RAMs that use their output registers, or None;
        `bitstream`, `picture`, `logs`: paths; `stage_seconds`, `seconds`; `errors` and `advice`: texts of :func:`shortcomings`
        and :func:`advice`.

    Raises
    ------
    SynthesisError
        If the family has no place and route or no timing analysis, or the netlist has a latch. Also, before any work, if the core
        has more cells than the part has multipliers.
    hw.tools.process.ToolError
        If a tool is missing, fails or exceeds its time limit.
    """
    _refuse(target, cores, pnr, paths)
    _refuse_too_large(config.n, target.part)
    if pnr:
        need_tools(target.family.place_and_route)
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / "synth.lock", timeout=1):
        report = progress or (lambda text: None)
        return _implement(config, target, folder.resolve(), cores, pnr, paths, across_blocks, seed, known, report)


def _refuse(target, cores, pnr, paths):
    if pnr and target.family.place_and_route is None:
        raise SynthesisError(
            f"{target.name} can only be synthesized: no open place and route for it comes from PyPI; leave out --pnr"
        )
    if paths and target.family.name != TIMED_FAMILY:
        raise SynthesisError(f"{target.name}: --paths analyses only ECP5 parts; leave out --paths")
    if cores > 1 and target.board:
        raise SynthesisError(f"{target.name} has a single core; for {cores} in a ring take its part, --target {target.part.name}")


def _refuse_too_large(n, part):
    resource, count = part.least(n)
    if n not in part.sizes:
        raise SynthesisError(
            f"n = {n} does not fit {part.name}: its cells take at least {count:,} {resource.upper()} of "
            f"{part.available[resource]:,}; try --n {part.sizes[0]} or less, or a larger part (--target)"
        )


def _implement(config, target, folder, cores, pnr, paths, across_blocks, seed, known, progress):
    for name in _RESULTS:
        (folder / name).unlink(missing_ok=True)
    started, times = time.perf_counter(), {}

    def stage(name):
        times[name] = round(time.perf_counter() - started - sum(times.values()), 1)

    def tool_progress(seconds):
        about = _about(seconds)
        return lambda tool, phase: progress(f"{tool}{about}: {phase}" if phase else tool + about)

    progress("generating Verilog")
    verilog, top = _design(config, target, pnr or paths, cores)
    stage("generate")
    told = tool_progress(times["generate"] * len(verilog) / _CHARACTERS)
    blocks, memories, registered, layout = synthesize(
        verilog, target, folder, top=top, flat=pnr or paths, across_blocks=across_blocks, known=known, progress=told
    )
    stage("yosys")
    report = {
        "target": target.name,
        "part": target.part.name,
        "board": target.board and target.board.name,
        "n": config.n,
        "cores": cores,
        "config": asdict(config),
        "across_blocks": across_blocks,
        "seed": seed,
        "placed": False,
        "blocks": blocks,
        "registers_for_memories": memories,
        "with_output_registers": registered,
        "available": target.part.available,
        "total": _sum(blocks),
        "fmax_mhz": None,
        "clock_mhz": target.clock_mhz,
        "met": None,
        "critical_path": [],
        "paths": _paths(folder, top, layout) if paths else [],
        "bitstream": None,
    }
    if pnr and not _lacks(report["total"], target):
        report |= _placed(report, target, folder, layout, seed, tool_progress(_PLACE_AND_ROUTE * report["total"]["lut"]))
        stage("nextpnr")
    own = {block: counts for block, counts in blocks.items() if target.board or block != AROUND}
    report |= {
        "blocks": own,
        **_sum(own),
        "fits": not _lacks(report["total"], target),
        "stage_seconds": times,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return _judged(report, config, target, folder)


def _about(seconds):
    """Returns a text such as ` (about 3 min)` for an expected time. The text is empty below ten seconds."""
    if seconds < 10:
        return ""
    return f" (about {seconds / 60:.0f} min)" if seconds >= 120 else f" (about {seconds:.0f} s)"


def _paths(folder, top, layout):
    netlist = json.loads((folder / "netlist.json").read_text())
    return worst_paths(netlist["modules"][top], layout)


def _placed(report, target, folder, layout, seed, progress):
    """Runs place and route. Returns its entries for the report, and adds the block `placement` to the report's blocks."""
    constraints, blocks = target.board and target.board.constraints(), report["blocks"]
    measured, bitstream = place_and_route(target, folder, constraints=constraints, seed=seed, progress=progress)
    placed = used(measured, target.family.place_and_route)
    blocks["placement"] = {resource: placed.get(resource, count) - count for resource, count in report["total"].items()}
    clock = core_clock(measured, target.clock_mhz)
    return {
        "placed": True,
        "total": _sum(blocks),
        "bitstream": str(bitstream),
        "fmax_mhz": clock["achieved"],
        "clock_mhz": clock["constraint"],
        "met": clock["achieved"] >= clock["constraint"] if target.board else None,
        "critical_path": critical_path(measured, clock["name"], layout),
    }


def _judged(report, config, target, folder):
    """Adds errors, advice, the picture and the logs to a report, writes it to the folder, and returns it."""
    report |= {"errors": shortcomings(report, config, target), "advice": advice(report, config, target)}
    write_whole(folder / "area.svg", area_picture(report))
    report |= {"picture": str(folder / "area.svg"), "logs": sorted(str(path) for path in folder.glob("*.log"))}
    write_whole(folder / "report.json", json.dumps(report, indent=1))
    return report
