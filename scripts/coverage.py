"""Coverage of three cores by random programs: `python -m amaranth_tpu.scripts.coverage`, half an hour.

Lines, branches and toggles of the Verilog, counted by Verilator and merged over all jobs. Every job is compared with the C model.
Directed jobs come first. Random ones follow, which are steered to the events that are still missing.
Points that need not be covered have a waiver with a reason in `sim/verification/waivers.txt`. A waiver without points, or for a
point that was hit, is an error. The same command with the same `--seed` resumes an interrupted run. A run of some cores is kept
for a run of all.
"""

import hashlib
import json
import shutil
from collections import Counter, defaultdict
from dataclasses import astuple
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.tools.process import ToolError, build_directory, write_whole
from amaranth_tpu.sim.rtl.runner import SimulationError
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from amaranth_tpu.sim.verification.coverage import KINDS, WAIVERS, Point, Tally, WaiverError, judge, read_points, read_waivers
from amaranth_tpu.sim.verification.directed import directed_jobs
from amaranth_tpu.sim.verification.events import expected_events, reached_events
from amaranth_tpu.sim.verification.jobs import Mismatch, Session

from .cli.command_line import Json, console, run_app
from .show.documents import ROOT
from .show.markdown import markdown_table, replace_section
from .show.terminal import progress_bar
from .show.terminal_tables import figure_table, print_table

__all__ = ["CORES", "measure"]

#: Cores, and the sizes of the rings in which they run. A vector has several groups of lanes, as with the preset's n.
CORES = {
    "default": ({}, (1,)),
    "transformer": ({"softmax_lanes": 2, "update_lanes": 2}, (1,)),
    "training": ({"ring": True}, (1, 3, 8)),
}
#: Random jobs from power-up to the end of a simulation.
_SESSION = 50
#: Random jobs up to which the build takes longer than the simulation.
_FEW = 20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _sessions(config, sizes, jobs):
    """Returns (cores, directed jobs, number of random jobs) of each simulation. A job of a ring takes as long as a job of each of
    its cores."""
    share, sessions = -(-jobs // len(sizes)), []
    for cores in sizes:
        counts = [min(_SESSION, rest // cores) for rest in range(share, 0, -_SESSION * cores)]
        sessions += [(cores, directed_jobs(config, cores), 0), *((cores, [], count) for count in counts if count)]
    return sessions


def _place(n, jobs, seed):
    """Returns the folder of finished simulations, whose name depends on the stimulus and its source."""
    sources = [path.read_bytes() for path in sorted(WAIVERS.parent.glob("*")) if path.suffix in (".py", ".cpp")]
    digest = hashlib.sha256(b"".join([*sources, json.dumps([n, jobs, seed]).encode()])).hexdigest()
    place = build_directory() / "coverage" / digest[:20]
    place.mkdir(parents=True, exist_ok=True)
    return place


def _simulated(path, session, verilog, quick):
    """Runs a session and writes its points and events to a file."""
    data = path.with_suffix(".dat")
    results = session.run(data, quick=quick)
    points, events = read_points([data], verilog), reached_events(session.config, session, results)
    data.unlink()
    found = {"points": [[*astuple(point), count] for point, count in points.items()]}
    write_whole(path, json.dumps(found | {"events": [[*event, count] for event, count in events.items()]}))


def measure(name, n, jobs, seed, place, progress):
    """Runs jobs on a core. Returns `{point: count}` and `{event: how often it was reached}`. The folder `place` keeps finished
    simulations, which are not run again."""
    changes, sizes = CORES[name]
    config = from_preset(name, n=n, **changes)
    verilog, counts, events = verilog_of(config), Counter(), Counter(dict.fromkeys(expected_events(config), 0))
    key = hashlib.sha256(verilog.encode()).hexdigest()[:12]
    sessions = _sessions(config, sizes, jobs)
    for number, (cores, directed, random) in enumerate(sessions):
        path = place / f"{name}-{key}-{number}.json"
        if not path.exists():
            missed = {event for event, reached in events.items() if not reached}
            session = Session(seed + number, config, cores, missed, directed)
            for _ in range(len(directed) + random):
                session.draw()
            _simulated(path, session, verilog, quick=jobs <= _FEW)
        found = json.loads(path.read_text())
        counts.update({Point(*values): count for *values, count in found["points"]})
        events.update({tuple(event): count for *event, count in found["events"] if tuple(event) in events})
        progress(number + 1, len(sessions))
    return counts, events


def _rows(blocks):
    total = Tally()
    for tally in blocks.values():
        total.add(tally)
    for block, tally in [*blocks.items(), ("all", total)]:
        yield block, tally


def _figures(tally):
    return [f"{tally.percent(kind):.1f}" for kind in KINDS.values()] + [f"{tally.percent('toggle', waived=True):.1f}"]


_HEAD = ["block", "line %", "branch %", "toggle %", "with waivers %"]


def _missed(blocks):
    """Returns lines that name the missed points of each module: signals with the bits that did not toggle, and branches."""
    found = defaultdict(set)
    for _, tally in blocks.items():
        for point in tally.missed:
            key = (
                (point.module, point.signal[0]) if point.kind == "toggle" else (point.module, f"line {point.line}: {point.name}")
            )
            found[key].add(point.signal[1] if point.kind == "toggle" else None)
    for (module, name), bits in sorted(found.items()):
        numbers = sorted(bit for bit in bits if bit is not None)
        yield f"{module} {name}" + (f"[{','.join(map(str, numbers))}]" if numbers else "")


@app.command(help=__doc__)
def coverage(
    cores: Annotated[list[str], typer.Argument(help=f"Any of {', '.join(CORES)}. Default: all.")] = None,
    n: Annotated[int, typer.Option(help="Rows and columns of the array, 2 or 4.")] = 4,
    jobs: Annotated[int, typer.Option(min=1, help="Random jobs for each core, beside the directed ones.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first jobs. Default: drawn.")] = None,
    missed: Annotated[bool, typer.Option("--missed", help="List the points that were missed.")] = False,
    as_json: Json = False,
    write: Annotated[bool, typer.Option("--write", help="Write the table of all cores into hw/coverage.md.")] = False,
):
    if unknown := [core for core in cores or () if core not in CORES]:
        raise typer.BadParameter(f"no core {unknown[0]!r}; choose from {', '.join(CORES)}")
    if n not in (2, 4):
        raise typer.BadParameter("n must be 2 or 4: the bench has buses of up to 64 bits")
    if write and cores:
        raise typer.BadParameter("--write takes no choice: the table has all cores")
    seed = int(np.random.default_rng().integers(1 << 30)) if seed is None else seed
    waivers, found, events, hit, useless = read_waivers(), {}, {}, {}, Counter()
    chosen, place = cores or list(CORES), _place(n, jobs, seed)
    for name in chosen:
        with progress_bar(console, f"{name} (sessions)") as advance:
            counts, events[name] = measure(name, n, jobs, seed, place, advance)
        found[name], own_hit, own_useless = judge(counts, waivers, name)
        hit |= own_hit
        useless.update(own_useless)
    if as_json:
        print(
            json.dumps({"seed": seed, "n": n, "jobs": jobs, "cores": {name: _as_json(blocks) for name, blocks in found.items()}})
        )
    elif not write:
        _show(found, events, seed, missed)
    if write:
        rows = [[name, *row] for name, blocks in found.items() for row in _table(blocks)]
        reached = "; ".join(f"`{name}` {_reached(events[name])}" for name in found)
        head = f"{jobs} jobs for each core, n = {n}, seed {seed}. Events reached: {reached}."
        replace_section(ROOT / "hw" / "coverage.md", "coverage", f"{head}\n\n{markdown_table(['core', *_HEAD], rows)}")
    problems = [f"waived but hit: {one.module} {one.pattern}, {points[0].name}" for one, points in hit.items()]
    problems += [f"waives nothing: {one.module} {one.pattern}" for one in waivers if useless[one] == len(chosen) == len(CORES)]
    if problems and n == 4:  # ranges of bits hold for this n
        raise WaiverError("; ".join(problems[:10]))
    if not cores:
        shutil.rmtree(place, ignore_errors=True)


def _table(blocks):
    return [[block, *_figures(tally)] for block, tally in _rows(blocks)]


def _as_json(blocks):
    return {
        block: {kind: {"points": tally.points[kind], "hit": tally.hit[kind]} for kind in KINDS.values()}
        | {"missed": sorted(f"{point.module} {point.name}" for point in tally.missed)}
        for block, tally in _rows(blocks)
    }


def _reached(events):
    return f"{sum(count > 0 for count in events.values())} of {len(events)}"


def _show(found, events, seed, missed):
    output = Console()
    for name, blocks in found.items():
        table = figure_table(f"{name}, seed {seed}", *((head, "word" if head == "block" else "figure") for head in _HEAD))
        for row in _table(blocks):
            table.add_row(*row)
        print_table(output, table)
        print(f"events reached: {_reached(events[name])}")
        if missed:
            lines = [f"event {' '.join(event)}" for event, count in sorted(events[name].items()) if not count]
            print("\n".join([*_missed(blocks), *lines]))


def main():
    """Runs the command. Prints an expected error as one line and exits with 1."""
    run_app(app, (ToolError, SimulationError, Mismatch, WaiverError, OSError))


if __name__ == "__main__":
    main()
