"""The regression of a night: `python -m amaranth_tpu.scripts.night`, under two hours on two processors.

Runs the proofs by induction, the tests, slow suites of the hardware, random models, coverage, and a sample of mutants, all with a
fresh seed. Each step has a time limit, and the others run even if one fails. The report has result, time and last line of each
step; `--write` puts it into `hw/regression.md`, where steps that were not chosen are "not run". `--short` runs the steps that end
within a minute, as CI does.
"""

import datetime
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.hw.tools.process import ToolError, build_directory, execute, tail

from .cli.command_line import Json, console, run_app
from .show.documents import ROOT
from .show.markdown import markdown_table, replace_section
from .show.terminal import progress_bar
from .show.terminal_tables import figure_table, print_table

__all__ = ["STEPS", "Step", "StepResult", "run_step"]

REPORT = ROOT / "hw" / "regression.md"
_HEAD = ["step", "result", "seconds", "last line"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class RegressionError(RuntimeError):
    """A step failed, or did not end in time; the message names it."""


@dataclass(frozen=True)
class Step:
    """A command with a time limit in seconds. `{seed}` stands for the seed in its words. The short form has `short` steps."""

    title: str
    command: tuple
    limit: int
    short: bool = False


@dataclass(frozen=True)
class StepResult:
    """The result of a step: `passed`, `failed` or `no end`, its time, and the last line of its output."""

    title: str
    result: str
    seconds: float
    last: str


def _tests(*words):
    return ("-m", "pytest", "-n", "2", "-q", *words)


def _script(name, *words):
    return ("-m", f"amaranth_tpu.scripts.{name}", *words)


#: Folders of `tests/hw` with blocks of a core. The folders core and ring have a step of their own.
_BLOCKS = ("activation", "arithmetic", "array", "bus", "control", "matmul", "softmax", "spec")

STEPS = (
    Step("proofs by induction", _script("prove", "induction"), 60, short=True),
    Step("tests", _tests(), 900),
    Step("slow tests of the blocks", _tests("-m", "slow", *(f"tests/hw/{one}" for one in _BLOCKS)), 1200),
    Step("slow tests of the core", _tests("-m", "slow", "tests/hw/core", "tests/hw/ring", "tests/sim/verification"), 1500),
    Step("slow tests of the models", _tests("-m", "slow", "tests/sim/golden/test_c_machine.py"), 600),
    Step("random models", _script("random_models", "--count", "100", "--seed", "{seed}"), 840),
    Step("coverage", _script("coverage", "--seed", "{seed}"), 1200),
    Step("mutants", _script("mutate", "hw", "--count", "6", "--seeds", "1", "--seed", "{seed}"), 900),
)


def run_step(step, seed, folder):
    """Runs a step with a seed, and writes its output into `folder`. Returns its :class:`StepResult`."""
    words = [word.replace("{seed}", str(seed)) for word in step.command]
    path = folder / f"{step.title.replace(' ', '-')}.log"
    started = time.monotonic()
    try:
        with open(path, "w") as log:
            environment = os.environ | {"TPU_SEED": str(seed)}
            status = execute([sys.executable, *words], cwd=ROOT, env=environment, log=log, timeout=step.limit)
        result = "failed" if status else "passed"
    except TimeoutError:
        result = "no end"
    last = " ".join(tail(path, 1).replace("|", " ").split())  # a row of a table has bars, which end cells of the report
    return StepResult(step.title, result, time.monotonic() - started, last[:100])


@app.command(help=__doc__)
def night(
    steps: Annotated[list[str], typer.Argument(help=f"Any of {', '.join(step.title for step in STEPS)}. Default: all.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all steps. Default: drawn.")] = None,
    short: Annotated[bool, typer.Option("--short", help="Run only the steps that end within a minute.")] = False,
    as_json: Json = False,
    write: Annotated[bool, typer.Option("--write", help="Write the report into hw/regression.md.")] = False,
):
    titles = [step.title for step in STEPS]
    if unknown := [step for step in steps or () if step not in titles]:
        raise typer.BadParameter(f"no step {unknown[0]!r}; choose from {', '.join(titles)}")
    seed = random.randrange(1 << 30) if seed is None else seed
    chosen, results = [step for step in STEPS if (not steps or step.title in steps) and step.short >= short], []
    folder = build_directory() / "night"
    folder.mkdir(exist_ok=True)
    with progress_bar(console, "steps") as advance:
        for number, step in enumerate(chosen):
            results.append(run_step(step, seed, folder))
            advance(number + 1, len(chosen))
    rows = [[one.title, one.result, f"{one.seconds:.0f}", one.last] for one in results]
    if as_json:
        print(json.dumps({"seed": seed, "steps": [asdict(one) for one in results]}))
    else:
        table = figure_table(f"seed {seed}", *((name, "figure" if name == "seconds" else "word") for name in _HEAD))
        for row in rows:
            table.add_row(*row)
        print_table(Console(), table)
    if write:
        head = f"{datetime.date.today()}, seed {seed}."
        rows += [[step.title, "not run", "", ""] for step in STEPS if step not in chosen]
        replace_section(REPORT, "regression", f"{head}\n\n{markdown_table(_HEAD, rows)}")
    if failed := [one for one in results if one.result != "passed"]:
        raise RegressionError("; ".join(f"{one.title}: {one.result}" for one in failed) + f" (logs: {folder})")


def main():
    """Runs the command. Prints an expected error as one line and exits with 1."""
    run_app(app, (ToolError, RegressionError, OSError))


if __name__ == "__main__":
    main()
