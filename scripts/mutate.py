"""Mutation of the sources: `python -m amaranth_tpu.scripts.mutate --count 30`, some minutes for each mutant.

Draws changes of one expression in `hw` and `sim/compiler`, and runs the fast tests of the block on each, in a copy of the tree.
Tests follow the folders: of the file, those that import it, of its folder, then of the core or compiler, with several seeds. It
lists mutants that no test notices. `sim/verification/equivalents.txt` has mutants that change nothing, with reasons.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.sim.verification.mutations import mutations_of

from .cli.command_line import Json, console, run_app
from .show.documents import ROOT
from .show.terminal import progress_bar

__all__ = ["Mutant", "copy_tree", "draw", "is_noticed", "test_stages"]

#: Mutants that change nothing: path, line, mutation and reason, separated by `||`.
EQUIVALENTS = ROOT / "sim" / "verification" / "equivalents.txt"
#: Folders with mutants, and the tests that follow the ones of the block.
_FOLDERS = {"hw": "tests/hw/core", "sim/compiler": "tests/sim/compiler"}
#: Folders of `hw` without a core's logic.
_OTHERS = ("boards", "driver", "examples", "fpga", "standard_cells", "tools", "verilog", "fusesoc_generator.py")
#: Seconds after which the tests of a mutant count as failed: it hangs.
_LIMIT = 900

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Mutant:
    """A mutation of a file, and the test that noticed it; None if none did."""

    path: str
    line: int
    text: str
    noticed: str | None = None


def _files(chosen):
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            own = name.partition("/")[2].split("/")[0]
            if path.stem != "__init__" and own not in _OTHERS and any(name.startswith(one) for one in chosen or _FOLDERS):
                yield name


def draw(count, seed, chosen=()):
    """Draws mutations: a file, as often as it has lines, then one of its mutations. Returns a list of `(path, Mutation)`."""
    lines = [line for line in EQUIVALENTS.read_text().splitlines() if not line.startswith("#")]
    known = {tuple(part.strip() for part in line.split("||")[:3]) for line in lines}
    rng, left = random.Random(seed), {}
    sizes = {path: len((ROOT / path).read_text().splitlines()) for path in _files(chosen)}
    drawn = []
    while sizes and len(drawn) < count:
        (path,) = rng.choices(list(sizes), sizes.values())
        if path not in left:
            found = mutations_of((ROOT / path).read_text())
            left[path] = [one for one in found if (path, one.code, one.text) not in known]
        if left[path]:
            drawn.append((path, left[path].pop(rng.randrange(len(left[path])))))
        else:
            del sizes[path]
    return drawn


def test_stages(path):
    """Returns the tests of a file as lists, in order: its own tests, tests and proofs that import it, the tests of its folder,
    then of the core or the compiler."""
    parts = Path(path)
    room, module = Path("tests") / parts.parent, f"amaranth_tpu.{'.'.join(parts.with_suffix('').parts)} import"
    last = next(Path(tests) for folder, tests in _FOLDERS.items() if path.startswith(folder + "/"))
    others = [test.relative_to(ROOT) for test in sorted((ROOT / "tests" / "hw").rglob("test_*.py")) if module in test.read_text()]
    importing = [test for test in others if last not in test.parents]
    if any(module in proof.read_text() for proof in (ROOT / "sim" / "proofs").glob("*.py")):
        importing.append(Path("tests/sim/proofs"))
    stages = [[room / f"test_{parts.stem}.py"], importing, [room] if room != Path("tests/hw") else [], [last]]
    existing = [[test.as_posix() for test in stage if (ROOT / test).exists()] for stage in stages]
    return [stage for number, stage in enumerate(existing) if stage and stage not in existing[:number]]


def copy_tree(folder):
    """Copies the tree to a folder, with an environment whose `amaranth_tpu` is the copy. Returns the copy."""
    tree = Path(folder) / "tree"
    ignored = shutil.ignore_patterns("build", ".venv", ".git", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
    package = tree / "build" / "types" / "amaranth_tpu"
    package.mkdir(parents=True)
    for name, target in {"hw": "hw", "sim": "sim", "scripts": "scripts", "tpu": "sim/short"}.items():
        (package / name).symlink_to(tree / target)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tree / ".venv"], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = tree / ".venv" / "lib" / version / "site-packages" / "tree.pth"
    own.write_text(f"{package.parent}\n{sysconfig.get_path('purelib')}\n")
    return tree


def _run_tests(tree, tests, seed):
    """Runs tests until one fails. Returns its name, or None."""
    command = [tree / ".venv/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"TPU_SEED": str(seed), "TPU_BUILD": str(tree / "build")}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        return f"{tests[0]}: no end"
    if done.returncode in (0, 5):  # 5: no test was selected
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition(" ")[2].partition(" - ")[0] if failed else f"{tests[0]}: status {done.returncode}"


def is_noticed(tree, path, source, seeds):
    """Runs the tests of a file with a mutated source in a copy of the tree. Returns the name of the test that failed, or None."""
    place = tree / path
    before = place.read_text()
    try:
        place.write_text(source)
        for seed in seeds:
            for stage in test_stages(path):
                if name := _run_tests(tree, stage, seed):
                    return name
        return None
    finally:
        place.write_text(before)


@app.command(help=__doc__)
def mutate(
    paths: Annotated[list[str], typer.Argument(help="Files or folders, such as hw/ring. Default: hw and sim/compiler.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of mutants.")] = 30,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mutants. Default: drawn.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds of the tests.")] = 3,
    as_json: Json = False,
):
    seed = random.randrange(1 << 30) if seed is None else seed
    drawn = draw(count, seed, paths)
    if not drawn:
        raise typer.BadParameter(f"no sources below {', '.join(paths)}; choose paths such as hw/ring")
    results = []
    with tempfile.TemporaryDirectory() as folder, progress_bar(console, "mutants") as advance:
        tree = copy_tree(folder)
        for number, (path, mutation) in enumerate(drawn):
            noticed = is_noticed(tree, path, mutation.source, range(seed + 1, seed + 1 + seeds))
            results.append(Mutant(path, mutation.line, mutation.text, noticed))
            if not noticed and not as_json:
                print(f"survives: {path}:{mutation.line}: {mutation.text}", flush=True)
            advance(number + 1, len(drawn))
    survivors = [one for one in results if not one.noticed]
    if as_json:
        print(json.dumps({"seed": seed, "mutants": [asdict(one) for one in results]}))
    else:
        print(f"{len(results) - len(survivors)} of {len(results)} mutants noticed, seed {seed}")
    raise typer.Exit(bool(survivors))


def main():
    """Runs the command. Prints an expected error as one line and exits with 1."""
    run_app(app, (ToolError, OSError))


if __name__ == "__main__":
    main()
