"""Designs for Icarus or Verilator, and their builds, which are cached by content."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import re
import shutil
import time
from pathlib import Path

from amaranth_tpu.hw.tools.process import ToolError, build_directory, made_once

from .bench_runs import SimulationError, run_bench
from .cocotb_runners import cocotb_runners, own_environment
from .probes import probe_module
from .simulators import BUILD_LIMIT, build_limit, find_python_library, find_verilator, has_fst_headers, simulator_version
from .verilog_names import VerilogNames
from .wave_view import WaveView

__all__ = ["Simulation", "Simulators", "ToolError", "SimulationError"]

_HERE = Path(__file__).resolve().parent
Simulators = ("icarus", "verilator")

#: Signals of `testbench` that a bench may access. All other signals stay private, which makes Verilator's model fast.
_TESTBENCH_PORTS = ("clk", "rst_n", "s_axil_*", "irq", "bd_*", "errors", "cycle")
#: Modules that Verilator does not inline. At n = 16 the build then takes a third of the time, and the simulation is a third
#: faster. The instances share few functions, because Verilator writes the signals of an instance's neighbours into its functions.
#: `native_cells.py` therefore replaces the arithmetic itself.
_NO_INLINE = ("tpu_cell", "tpu_row")
#: The object files of Verilator's run-time library that every model needs.
_LIBRARY = ("verilated.o", "verilated_vpi.o", "verilated_threads.o")
#: From this n on, a row of the array is compiled separately, so that the build does not process n * n cells individually.
_ROWS_ALONE_FROM = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """A design prepared for one simulator. Its build is cached by content."""

    simulator: str  # ``icarus`` or ``verilator``
    verilog: str = ""  # verilog or SystemVerilog text
    sources: tuple = ()  # Sequence of path. Further source files.
    top: str = "testbench"  # name of the top module
    parameters: dict = dataclasses.field(default_factory=dict)  # parameters of the top module
    #: Sequence of str. Variables of the top module that a bench accesses, with ``*`` as a wildcard. For Verilator only. Public
    #: variables reduce speed. If there are none, only the model is compiled, for a C++ program
    #: (:func:`sim.rtl.cpp_program.cpp_program`).
    public: tuple = ("*",)
    #: Sequence of str. Modules that Verilator does not inline into the modules that instantiate them.
    no_inline: tuple = ("tpu_cell",)
    #: Sequence of str. Modules that Verilator compiles once, as a library for all instances. This is for designs too large to
    #: build as a whole. Traces do not contain the internal signals of these modules.
    alone: tuple = ()
    waves: bool | str = False  # write a waveform trace: True, or the format `fst` or `vcd`
    view: WaveView | None = None  # selection and order of signals in the trace of a core
    #: Prefer a fast build to a fast model, for simulations of less than about 100,000 cycles. For Verilator only.
    quick: bool = False
    coverage: bool = False  # count lines, branches and toggles. For Verilator only.

    @classmethod
    def of_core(cls, verilog, config, *, simulator, memory_bytes=1 << 25, waves=False, view=None, quick=False, probes=()):
        """Prepares the simulation of a core with its host memory, from `sim/rtl/testbench.sv`.

        `verilog` is the Verilog of the core, the module `tpu`, for `config`. The `probes` are a sequence of
        :class:`sim.rtl.probes.Probe`. They write to the file named by the plusarg `probes`.
        """
        return cls(
            simulator=simulator,
            verilog=verilog + (probe_module(probes, VerilogNames(verilog)) if probes else "") + (view.module if view else ""),
            waves=waves,
            view=view,
            quick=quick,
            sources=(_HERE / "axi_memory.sv", _HERE / "testbench.sv"),
            public=_TESTBENCH_PORTS,
            no_inline=_NO_INLINE,
            alone=("tpu_row",) if config.n >= _ROWS_ALONE_FROM and not waves else (),
            parameters={
                "BUS_WIDTH": config.bus_width,
                "ADDRESS_WIDTH": config.address_width,
                "ID_WIDTH": config.axi_id_width,
                "LINK_WIDTH": config.vector_width,
                "MEMORY_BYTES": memory_bytes,
            },
        )

    @classmethod
    def of_pod(cls, verilog, config, cores, *, simulator, memory_bytes=1 << 25, quick=False):
        """Prepares the simulation of cores `tpu` in a ring, each with its own host memory, from `sim/rtl/pod_testbench.sv`.

        Verilator compiles the core once for all instances.
        """
        one = cls.of_core(verilog, config, simulator=simulator, memory_bytes=memory_bytes, quick=quick)
        return dataclasses.replace(
            one,
            top="pod_testbench",
            sources=(_HERE / "axi_memory.sv", _HERE / "pod_testbench.sv"),
            public=("select", *_TESTBENCH_PORTS),
            alone=("tpu",),
            parameters={**one.parameters, "CORES": cores},
        )

    def __post_init__(self):
        if self.simulator not in Simulators:
            raise ToolError(f"unknown simulator {self.simulator!r}; choose one of: {', '.join(Simulators)}")
        if self.waves == "fst" and self.trace_kind != "fst":
            raise ToolError(
                "Verilator writes .fst only with the headers of lz4 and zlib; name a .vcd file, or install them with: "
                "apt-get install liblz4-dev zlib1g-dev"
            )

    # Arguments of a build
    @property
    def _build_arguments(self):
        if self.simulator == "icarus":
            return []
        trace = [f"--trace-{self.trace_kind}"] if self.waves else []
        hierarchical = ["--hierarchical"] if self.alone else []
        coverage = ["--coverage-line", "--coverage-toggle"] if self.coverage else []
        return [
            "--no-timing",
            "-Wno-fatal",
            "-O3",
            "--x-assign",
            "fast",
            "--x-initial",
            "fast",
            "--no-assert",
            "--output-split",
            "20000",
            *trace,
            *hierarchical,
            *coverage,
        ]

    @functools.cached_property
    def trace_kind(self):
        """Returns the format of the trace, `fst` or `vcd`: the requested format, else the format that the simulator supports."""
        if self.simulator == "verilator" and not has_fst_headers():
            return "vcd"
        return self.waves if isinstance(self.waves, str) else "fst"

    @property
    def _make_arguments(self):
        # Compile all files as one, so that Verilator's headers are parsed once, or each file separately on all processors. With
        # counters of coverage, which slow the model down, -O1 builds faster.
        fast = "-O0" if self.quick else "-O1" if self.coverage else "-O2"
        model = (f"OPT_FAST={fast}", *(("VM_PARALLEL_BUILDS=0",) if self.quick and not self.alone else ()))
        return *model, "OPT_SLOW=-O0", self._opt_global

    @property
    def _opt_global(self):
        # For the object files of Verilator's run-time library, which builds share. Without optimization it takes half the time.
        return "OPT_GLOBAL=-O0" if self.quick or not self.public else "OPT_GLOBAL=-O1"

    @property
    def _control(self):
        lines = ["`verilator_config"]
        lines += [f'public_flat_rw -module "{self.top}" -var "{name}"' for name in self.public]
        lines += [f'no_inline -module "{name}"' for name in self.no_inline if name not in self.alone]
        lines += [f'hier_block -module "{name}"' for name in self.alone]
        if self.view:
            lines += [f'tracing_off -file "*design.sv" -lines {first}-{last}' for first, last in self.view.hidden_lines]
        return "\n".join(lines) + "\n"

    @functools.cached_property
    def version(self):
        """Returns name and version of the simulator."""
        return simulator_version(self.simulator)

    @functools.cached_property
    def _key(self):
        import cocotb_tools.config

        content = [
            self.version,
            importlib.metadata.version("cocotb"),
            str(cocotb_tools.config.libs_dir),
            self.top,
            sorted((k, str(v)) for k, v in self.parameters.items()),
            self._build_arguments,
            self._control,
            self._make_arguments,
            self.waves,
            self.view.shown if self.view else [],
            self.verilog,
            [Path(source).read_text() for source in self.sources],
        ]
        return self.simulator + "-" + hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]

    def build(self):
        """Builds the simulation if it is not cached, and returns the folder of the build. Several processes may call it at the
        same time."""
        timeout = build_limit()
        find_python_library()
        version = self.version  # reports a missing simulator first
        place = build_directory() / "sim"
        if self.simulator == "verilator" and re.search(r"\s", str(place)):
            raise ToolError(f"make cannot build in a folder with spaces: {place}; set TPU_BUILD to another folder")

        def make(partial):
            partial.mkdir(parents=True)
            started = time.monotonic()
            self._build_in(partial, timeout, self._library(timeout) if self.simulator == "verilator" else None)
            (partial / "build.json").write_text(json.dumps({"simulator": version, "seconds": time.monotonic() - started}))

        return made_once(place / self._key, make, timeout)

    def _library(self, timeout):
        """Returns the folder with the object files of Verilator's run-time library, which is in the cache.

        All models share the library, because it takes most of the build time of a small model. One process compiles it beside an
        empty design, and others wait for it. A model that needs further object files, as for a trace, adds them.
        """
        design = "module top(input a);\nendmodule\n"
        public = ("*",) if self.public else ()
        empty = Simulation(simulator="verilator", verilog=design, top="top", public=public, quick=self.quick)
        content = [self.version, self._opt_global]

        def make(partial):
            partial.mkdir(parents=True)
            empty._build_in(partial, timeout)

        name = "library-" + hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]
        return made_once(build_directory() / "sim" / name, make, timeout)

    def _build_in(self, place, timeout, library=None):
        design = place / "design.sv"
        design.write_text(self.verilog)
        sources = [design, *self.sources]
        runner = cocotb_runners()[self.simulator]()
        runner.dumped = self.view.shown if self.view else []
        runner.time_limit, runner.log_path = timeout, place / "build.log"
        if self.simulator == "verilator":
            control = place / "control.vlt"
            control.write_text(self._control)
            sources.insert(0, control)
            runner.tool, runner.make_arguments = find_verilator(), self._make_arguments
            # Without a library, compile it. Without public variables, leave out cocotb's program.
            runner.make_arguments += () if library and self.public else ("Vtop__ALL.a",) if library else _LIBRARY
            runner.make_arguments += ("verilated_cov.o",) if self.coverage else ()
            for path in library.glob("verilated*.o") if library else ():
                shutil.copyfile(path, place / path.name)
                runner.make_arguments += ("-o", path.name)  # make then treats the file as up to date
        with own_environment():
            runner.build(
                sources=sources,
                hdl_toplevel=self.top,
                parameters=self.parameters,
                build_dir=place,
                waves=bool(self.waves),
                build_args=self._build_arguments,
                timescale=("1ns", "1ns"),
                always=True,
            )
        try:
            status = runner.perform()
        except TimeoutError as error:
            raise ToolError(
                f"build with {self.simulator}: {error}; set {BUILD_LIMIT} to more seconds, or take native cells (verilator only) "
                f"or a core with a smaller n (log: {runner.log_path})"
            ) from None
        if status:
            failed = place.with_suffix(".failed.log")
            shutil.copy(runner.log_path, failed)
            reason = next(
                (
                    line
                    for line in Path(failed).read_text(errors="replace").splitlines()
                    if re.search(r"%Error|error:|Error", line)
                ),
                "see the log",
            ).replace(str(place) + "/", "")
            raise ToolError(f"build with {self.simulator} failed: {reason} (log: {failed})")

        for path in place.glob("verilated*.o") if library else ():
            made_once(library / path.name, functools.partial(shutil.copyfile, path), timeout)

    @property
    def build_seconds(self):
        """Returns the duration of the build, in seconds."""
        return json.loads((self.build() / "build.json").read_text())["seconds"]

    run = run_bench
