"""The files of a release: wheel, source distribution, Verilog of five cores, and their SHA-256 sums.

`python -m amaranth_tpu.scripts.release -o DIR` takes about a minute. The extra `release` has the packages that it
needs, `build` and `twine`.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.verilog.header import RELEASED, package_version, source

from .cli.command_line import replaceable_folder, run_app, write_folder
from .cli.generate_command import verilog_text
from .show.terminal import spinner

__all__ = ["CORES", "main", "packages", "release_files"]

_ROOT = Path(__file__).parents[1]
_TIMEOUT = 600

#: The cores whose Verilog is released: name of the file, preset, changes, and number of cores.
CORES = (
    ("tiny", "tiny", {}, 1),
    ("default", "default", {}, 1),
    ("training", "training", {}, 1),
    ("transformer", "transformer", {}, 1),
    ("training-ring2", "training", {"ring": True}, 2),
)


def _run(module, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], cwd=_ROOT, capture_output=True, text=True, timeout=_TIMEOUT
    )
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise ToolError(f"python -m {module}: {''.join(last)}; pip install '.[release]' installs what a release needs")


def packages():
    """Returns `{name: bytes}` of wheel and source distribution, which `twine check --strict` accepts. Both have the commit that
    they are made from. Raises ToolError."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(_ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info"))
        (tree / "hw" / "verilog" / RELEASED.name).write_text(source())
        _run("build", "--outdir", Path(folder, "made"), tree)
        made = sorted(Path(folder, "made").iterdir())
        _run("twine", "check", "--strict", *made)
        return {path.name: path.read_bytes() for path in made}


def release_files(version, built):
    """Returns `{name: bytes}` of all files: the packages `built`, the Verilog of :data:`CORES`, and the sums."""
    files = dict(built)
    for name, preset, changes, cores in CORES:
        config = from_preset(preset, **changes)
        files[f"amaranth-tpu-{version}-{name}.v"] = verilog_text(config, cores, 0, "tpu").encode()
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))
    return files | {"SHA256SUMS": sums.encode()}


def _release(output: Annotated[Path, typer.Option("-o", "--output", help="New folder for the files.")]):
    """Write the files of a release: wheel, source distribution, Verilog of five cores, and their sums."""
    replaceable_folder(output, ())
    with spinner(Console(stderr=True), "building the packages"):
        built = packages()
    files = release_files(package_version(), built)
    write_folder(output, files)
    for name, data in files.items():
        print(f"{len(data):>10,} bytes  {name}")


app = typer.Typer(add_completion=False)
app.command()(_release)


def main():
    run_app(app, (ToolError, OSError))


if __name__ == "__main__":
    main()
