"""Proves the arithmetic equal to SMT-LIB's theory of floating point, and the control of the core by induction.

`python -m amaranth_tpu.scripts.prove`                      everything, some minutes
`python -m amaranth_tpu.scripts.prove multiplier adder`     these blocks with all latencies
`python -m amaranth_tpu.scripts.prove cell --stages 3,5`    cells with 3 and 5 stages
`python -m amaranth_tpu.scripts.prove controls`             wrong specifications and faulty blocks, which must be refuted
`python -m amaranth_tpu.scripts.prove induction`            queues, bus managers and control, in seconds
`python -m amaranth_tpu.scripts.prove --write`              all proofs; writes their tables into the datasheet

The properties, and the argument for their completeness, are in `sim/proofs/properties.py`, for lanes in `sim/proofs/lanes.py`,
for inductions in `sim/proofs/inductions.py`.
"""

import json
import struct
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import Annotated

import typer

from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.sim.proofs.blocks import BLOCKS
from amaranth_tpu.sim.proofs.inductions import INDUCTIONS
from amaranth_tpu.sim.proofs.jobs import negative_controls, proofs
from amaranth_tpu.sim.proofs.lanes import LANES
from amaranth_tpu.sim.proofs.smt import SolverError

from .cli.command_line import Json, console, run_app
from .datasheet import PROOFS
from .show.markdown import markdown_table, replace_section
from .show.terminal import progress_bar

__all__ = ["ProofError", "run_jobs"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class ProofError(RuntimeError):
    """A correct block was not proven, or a faulty block was not refuted."""


# --- Output -------------------------------------------------------------------------------------------------------


#: Ports of lanes that are not floating-point numbers.
_FLAGS = ("take", "equal", "number", "keep_all", "keep", "relu", "cut", "low", "wide", "stays")


def _number(bits, port, block):
    """Returns the bits of a port as text: hexadecimal and as a floating-point value, or as an integer for flags and counts."""
    if bits is None:
        return "-"
    if port.startswith(("mark", "switch", "rst")) or port in _FLAGS or (port == "o" and block in LANES):
        return str(bits)
    width = 16 if port in ("x", "w", "x_i", "w_i", "x_o", "w_o", "operand", "rounded") else 32
    (value,) = struct.unpack(">f", (bits << 32 - width).to_bytes(4))
    return f"0x{bits:0{width // 4}X} ({value:.9g})"


def _proofs_table(results):
    rows = [
        [r.block, f"{BLOCKS[r.block].parameter} {r.value}", r.properties, r.cycles, r.result, f"{r.seconds:.1f}"] for r in results
    ]
    return markdown_table(["block", "pipelining", "properties", "cycles unrolled", "result", "CPU seconds"], rows)


def _controls_table(results):
    rows = []
    for r in results:
        row = [r.subject, f"{r.block}, {BLOCKS[r.block].parameter} {r.value}", r.result]
        if example := r.counterexample:
            shown = [f"{port}({cycle}) = {_number(example.inputs[port][cycle], port, r.block)}" for port, cycle in example.shown]
            row += ["<br>".join(shown) or example.property]
            row += [_number(bits, example.port, r.block) for bits in (example.expected, example.found, example.golden)]
        else:
            row += ["-"] * 4
        rows.append([*row, "yes" if r.as_expected and r.counterexample else "-"])
    return markdown_table(
        ["what is wrong", "where", "result", "counterexample", "the property asks", "the block gives", "numpy", "replayed"], rows
    )


def _induction_table(results):
    rows = [[r.name, r.claims, "refuted" if r.failed else "proven", f"{r.seconds:.1f}"] for r in results]
    return markdown_table(["block", "claims", "result", "CPU seconds"], rows)


def _chosen(text, values, option):
    """Returns the elements of `values` that an option such as `1,3` lists. Raises typer.BadParameter for other numbers."""
    if text is None:
        return None
    try:
        chosen = {int(word) for word in text.split(",")}
    except ValueError:
        chosen = {None}
    known = {value[0] if isinstance(value, tuple) else value for value in values}
    if not chosen <= known:
        raise typer.BadParameter(f"{option} takes numbers from {min(known)} to {max(known)}, separated by commas, not {text!r}")
    return [value for value in values if (value[0] if isinstance(value, tuple) else value) in chosen]


def run_jobs(jobs, timeout, at_a_time):
    """Runs proof jobs, `at_a_time` in parallel, with a time limit of `timeout` seconds per property. Returns their results in the
    order of the jobs."""
    with progress_bar(console, "proving") as advance, ThreadPoolExecutor(at_a_time) as pool:
        futures = [pool.submit(job.run, timeout) for job in jobs]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                advance(done, len(futures))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


@app.command(help=__doc__)
def prove(
    parts: Annotated[list[str], typer.Argument(help=f"Any of {', '.join(BLOCKS)}, controls, induction. Default: all.")] = None,
    leads: Annotated[str, typer.Option(help="Multipliers to prove, by lead: 0,3.")] = None,
    latencies: Annotated[str, typer.Option(help="Adders to prove, by latency.")] = None,
    stages: Annotated[str, typer.Option(help="Cells to prove, by stages.")] = None,
    mutations: Annotated[int, typer.Option(min=0, help="Mutations of each block's netlist.")] = 3,
    timeout: Annotated[float, typer.Option(min=1, help="Time limit of each property, in seconds.")] = 900,
    jobs: Annotated[int, typer.Option(min=1, help="Parallel solvers.")] = 2,
    as_json: Json = False,
    write: Annotated[
        bool, typer.Option("--write", help="Write the tables into the datasheet; for all blocks, or induction.")
    ] = False,
):
    """Proves the chosen blocks and prints the results."""
    known = [*BLOCKS, "controls", "induction"]
    if unknown := [part for part in parts or () if part not in known]:
        raise typer.BadParameter(f"no part {unknown[0]!r}; choose from {', '.join(known)}")
    chosen = {
        block: _chosen(text, BLOCKS[block].values, option)
        for block, text, option in (
            ("multiplier", leads, "--leads"),
            ("adder", latencies, "--latencies"),
            ("cell", stages, "--stages"),
        )
    }
    if write and ((parts and parts != ["induction"]) or any(values is not None for values in chosen.values())):
        raise typer.BadParameter("--write takes no choice: the datasheet shows everything")
    parts = parts or known
    todo = [job for block in BLOCKS if block in parts for job in proofs(block, chosen.get(block))]
    todo += negative_controls(mutations) if "controls" in parts else []
    results = run_jobs(todo, timeout, jobs)
    induced = run_jobs(INDUCTIONS if "induction" in parts else [], timeout, jobs)

    proven, refuted = [r for r in results if not r.subject], [r for r in results if r.subject]
    found = {"proofs": proven, "controls": refuted, "induction": induced}
    makers = {"proofs": _proofs_table, "controls": _controls_table, "induction": _induction_table}
    tables = {name: makers[name](rows) for name, rows in found.items() if rows}
    if as_json:
        print(json.dumps({name: [asdict(r) for r in rows] for name, rows in found.items()}))
    else:
        print("\n\n".join(tables.values()))
    failed = [f"{r.block} {r.value}{', ' if r.subject else ''}{r.subject}: {r.result}" for r in results if not r.as_expected]
    failed += [f"{r.name}: {', '.join(r.failed)}" for r in induced if r.failed]
    if failed:
        raise ProofError("; ".join(failed))
    if write:
        for name, table in tables.items():
            replace_section(PROOFS, name, table)


def main():
    """Runs the command. Prints an expected error as one line and exits with 1."""
    run_app(app, (SolverError, ToolError, ProofError, OSError))


if __name__ == "__main__":
    main()
