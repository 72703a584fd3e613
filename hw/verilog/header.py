"""The head of the generated Verilog: licence, configuration, where it comes from, and what lint is told."""

import subprocess
import tomllib
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

from ..config import Config
from ..tools.run_tool import YOSYS
from .module_names import TOP

__all__ = ["with_header", "source", "package_version", "command"]

_ROOT = Path(__file__).resolve().parents[2]

#: Verilator's warnings that stand, with the reason.
_WAIVERS = {
    "DECLFILENAME": "the file holds all modules, and has the name that its user gives it",
    "UNUSEDSIGNAL": "the carry of a sum, a field of a word, a port: what one of several users of a width or block does not need",
}


def package_version():
    """Version of this package: of the sources that this file is part of, else of what is installed."""
    project = _ROOT / "pyproject.toml"
    if project.exists():
        return tomllib.loads(project.read_text())["project"]["version"]
    return version("amaranth-tpu")


def source():
    """The commit that this file is part of, with `+changes` where the work tree differs; empty for an installed package.

    The commit is read from git's files, so that the answer is the same where there is no git; only changes need it.
    """
    place = _ROOT / ".git"
    try:
        if place.is_file():  # a work tree beside the repository
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
        return ""
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


def command(config, cores=1, link_latency=0, name=TOP):
    """The command that makes the core, or the cores in a ring, again: its size, and what else differs from the default."""
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
    """The Verilog of a core, or of cores in a ring, with its header; what lint is told holds up to the end of the text."""
    from ..spec.registers import VERSION  # with Amaranth, which who asks for a version need not wait for

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
