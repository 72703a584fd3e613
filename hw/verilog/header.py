"""The header of the generated Verilog: licence, versions, configuration, and lint waivers."""

import functools
import subprocess
from dataclasses import fields
from pathlib import Path

from ..config import Config
from .module_names import TOP

__all__ = ["RELEASED", "with_header", "source", "package_version", "origin", "command"]

_ROOT = Path(__file__).resolve().parents[2]
#: The commit of a release, in its packages.
RELEASED = Path(__file__).with_name("commit.txt")

#: Waived warnings of Verilator, with the reason.
_WAIVERS = {
    "DECLFILENAME": "the file holds all modules, and has the name that its user gives it",
    "UNUSEDSIGNAL": "the carry of a sum, a field of a word, a port: what one of several users of a width or block does not need",
}


@functools.cache
def package_version():
    """Returns the version of this package: from the checkout of this file, else from the installed package."""
    project = _ROOT / "pyproject.toml"
    if project.exists():
        import tomllib

        return tomllib.loads(project.read_text())["project"]["version"]
    from importlib.metadata import version

    return version("amaranth-tpu")


def source():
    """Returns the commit of this checkout, with `+changes` if the working tree differs. For an installed package, returns the
    commit of its release, or an empty text.

    The commit is read from git's files, so that it is found on machines without git, too. Only `+changes` needs git.
    """
    place = _ROOT / ".git"
    try:
        if place.is_file():  # a linked working tree of the repository
            place = (_ROOT / place.read_text().removeprefix("gitdir:").strip()).resolve()
        common = place / "commondir"
        common = (place / common.read_text().strip()).resolve() if common.exists() else place
        head = (place / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            name = head.removeprefix("ref: ")
            if (common / name).exists():
                head = (common / name).read_text().strip()
            else:
                packed = (line.split(" ", 1) for line in (common / "packed-refs").read_text().splitlines())
                head = next(words[0] for words in packed if words[-1] == name)
    except (OSError, StopIteration):
        return RELEASED.read_text() if RELEASED.exists() else ""
    try:
        changed = (
            subprocess.run(
                ["git", "diff", "--quiet", "HEAD", "--", "hw", "pyproject.toml"],
                cwd=_ROOT,
                timeout=60,
                stdin=subprocess.DEVNULL,
                capture_output=True,
            ).returncode
            == 1
        )
    except (OSError, subprocess.TimeoutExpired):
        changed = False
    return f"commit {head}{'+changes' if changed else ''}"


def origin():
    """Returns the name and version of this package, and the commit of its checkout if known."""
    return " ".join(filter(None, ["amaranth-tpu", package_version(), source()]))


def command(config, cores=1, link_latency=0, name=TOP):
    """Returns the command line that generates the same core, or cores in a ring. It has the size, and all options whose values
    are not the defaults."""
    default = Config(n=config.n, ring=cores > 1)
    words = ["tpu", "generate", "--n", str(config.n)]
    words += ["--cores", str(cores)] if cores > 1 else []
    words += ["--link-latency", str(link_latency)] if link_latency else []
    for field in fields(config):
        value, option = getattr(config, field.name), field.name.replace("_", "-")
        if value != getattr(default, field.name):
            words += [f"--{option}" if value else f"--no-{option}"] if field.type is bool else [f"--{option}", str(value)]
    words += ["--name", name] if name != TOP else []
    return " ".join(words)


def with_header(verilog, config, *, source="", cores=1, link_latency=0, name=TOP):
    """Returns the Verilog of a core, or of cores in a ring, with a header before it. The lint waivers in the header apply up to
    the end of the text."""
    from importlib.metadata import version

    from ..spec.registers import VERSION  # imports Amaranth, which is slow and not needed for `package_version`
    from ..tools.run_tool import YOSYS

    major, minor = VERSION >> 16, VERSION & 0xFFFF
    lines = [
        "SPDX-License-Identifier: Apache-2.0",
        "",
        (
            f"A bfloat16 tensor processing unit: module {name} and what is below it, in Verilog-2005. Generated; do not edit."
            if cores == 1
            else f"{cores} bfloat16 tensor processing units in a ring: module {name}_pod, Verilog-2005. Generated; do not edit."
        ),
        (
            f"By amaranth-tpu {package_version()}{', ' + source if source else ''}, "
            f"with Amaranth {version('amaranth')} and Yosys {version(YOSYS)} ({YOSYS})."
        ),
        f"Programming interface: version {major}.{minor}. Datasheet: hw/README.md.",
        f"Made again by: {command(config, cores, link_latency, name)}",
        "",
        "Configuration:",
        *(f"  {field.name} = {getattr(config, field.name):d}" for field in fields(config)),
    ]
    head = "".join(f"// {line}".rstrip() + "\n" for line in lines)
    waivers = "".join(f"/* verilator lint_off {name} */ // {reason}\n" for name, reason in _WAIVERS.items())
    return f"{head}\n/* verilator lint_save */\n{waivers}\n{verilog}\n/* verilator lint_restore */\n"
