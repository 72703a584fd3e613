"""Native cells: the binary32 unit of the host computes the sums and products of the cells in a verilated model.

A core with native cells has all registers of the RTL. Only the modules of the cell's adder and multiplier are replaced, by calls
of the C functions in `native_cells.h` with the same latencies. Bits and cycles stay the same, and the simulation is several times
as fast.
"""

import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path

import numpy as np

from amaranth_tpu.hw.spec.cell_stages import split_stages
from amaranth_tpu.hw.tools.process import ToolError, build_directory, execute, made_once, tail

__all__ = ["CELLS", "NativeArithmetic", "check_cells", "native_source", "with_native_cells"]

#: Kinds of cells in a simulation.
CELLS = ("rtl", "native")

#: Names of the processors whose binary32 unit flushes subnormals as the cells do.
_HOSTS = ("x86_64", "amd64", "aarch64", "arm64")

_PORT = re.compile(r"(input|output)\s+(?:wire|reg)\s*(?:\[\d+:0\])?\s*(\w+)")

_MAIN = """
#include <cstdio>
#include <vector>
int main(int count, char **) {
    std::vector<uint32_t> in(1 << 16), out(1 << 15);
    for (size_t pairs; (pairs = fread(in.data(), 8, out.size(), stdin)) > 0;) {
        for (size_t i = 0; i < pairs; i++)
            out[i] = (count > 1 ? tpu_native_multiply : tpu_native_add)(in[2 * i], in[2 * i + 1]);
        if (fwrite(out.data(), 4, pairs, stdout) != pairs) return 1;
    }
    return fflush(stdout) != 0;
}
"""


def check_cells(cells, simulator):
    """Raises ToolError if `simulator` or this host cannot simulate a core with this kind of cells."""
    if cells not in CELLS:
        raise ToolError(f"unknown cells {cells!r}; choose one of: {', '.join(CELLS)}")
    if cells == "native" and simulator != "verilator":
        raise ToolError(f"native cells are C functions, which {simulator} cannot call; use verilator, or the cells rtl")
    if cells == "native" and platform.machine().lower() not in _HOSTS:
        raise ToolError(
            f"native cells need an x86-64 or ARM64 processor, and this one is {platform.machine()}; use the cells rtl"
        )


def native_source():
    """Returns the C++ text of the functions: `native_cells.h`."""
    return Path(__file__).with_name("native_cells.h").read_text()


def with_native_cells(verilog, stages, module="tpu_cell", source=None):
    """Returns the Verilog of a design with its RTL cells replaced by native cells, for Verilator.

    Parameters
    ----------
    verilog : str
        Text of the design. It contains the modules `module`, `module`_adder and `module`_multiplier.
    stages : int
        Pipeline stages of the cells.
    source : str
        C++ text of the functions. Default: :func:`native_source`.
    """
    lead, latency = split_stages(stages)
    for block, function, registers in (("adder", "add", latency), ("multiplier", "multiply", lead)):
        verilog = _replaced(
            verilog,
            rf"module {module}_{block} \((.*?)\n\);.*?\nendmodule",
            lambda found, block=block, function=function, registers=registers: _arithmetic(
                f"{module}_{block}", found[1], function, registers
            ),
        )
    text = f"`systemc_header\n{source or native_source()}`verilog\n"
    return _replaced(verilog, rf"(module {module} \(.*?\n\);\n)", lambda found: found[1] + text)


def _replaced(verilog, pattern, make):
    verilog, count = re.subn(pattern, make, verilog, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{count} modules match {pattern!r}")
    return verilog


def _arithmetic(name, ports, function, registers):
    found = _PORT.findall(ports)
    clocks = [port for way, port in found if way == "input" and port in ("clk", "rst")]
    one, two = (port for way, port in found if way == "input" and port not in ("clk", "rst"))
    (result,) = (port for way, port in found if way == "output")
    width = 32 if function == "add" else 16
    call = f'$c32("tpu_native_{function}(", {one}, ",", {two}, ")")'
    inputs = [*(f"input wire {port}" for port in clocks), *(f"input wire [{width - 1}:0] {port}" for port in (one, two))]
    head = f"module {name} ({', '.join([*inputs, f'output wire [31:0] {result}'])});\n"
    if not registers:
        return f"{head}  assign {result} = {call};\nendmodule"
    steps = [f"step_{i}" for i in range(registers)]
    moves = "\n".join(f"    {step} <= {value};" for step, value in zip(steps, [call, *steps]))
    return (
        f"{head}  reg [31:0] {', '.join(steps)};\n  always @(posedge clk) begin\n{moves}\n  end\n"
        f"  assign {result} = {steps[-1]};\nendmodule"
    )


class NativeArithmetic:
    """The C functions of native cells in a program of its own, for arrays of bit patterns.

    Parameters
    ----------
    source : str
        C++ text of the functions. Default: :func:`native_source`.
    compiler : sequence of str
        Command of the compiler.
    emulator : sequence of str
        Command that executes the program, for a program of another processor.
    """

    def __init__(self, source=None, *, compiler=("g++",), emulator=()):
        text = (source or native_source()) + _MAIN
        key = hashlib.sha256(repr((text, compiler)).encode()).hexdigest()[:20]
        folder = build_directory() / "native"
        folder.mkdir(parents=True, exist_ok=True)

        def make(partial):
            main, log_path = folder / f"{key}.cpp", folder / f"{key}.log"
            main.write_text(text)
            command = [*compiler, "-std=gnu++17", "-O2", str(main), "-o", str(partial)]
            with open(log_path, "w") as log:
                if execute(command, cwd=folder, env=dict(os.environ), log=log, timeout=120):
                    raise ToolError(f"compiling native cells failed: {tail(log_path, 1)} (log: {log_path})")

        self._command = [*emulator, str(made_once(folder / key, make, 120))]

    def _call(self, one, two, *words):
        pairs = np.stack([np.asarray(one, "<u4"), np.asarray(two, "<u4")], axis=-1)
        done = subprocess.run([*self._command, *words], input=pairs.tobytes(), stdout=subprocess.PIPE, check=True)
        return np.frombuffer(done.stdout, "<u4")

    def add(self, a, b):
        """Adds binary32 numbers, given and returned as arrays of bit patterns."""
        return self._call(a, b)

    def multiply(self, x, w):
        """Multiplies bfloat16 numbers, given as arrays of bit patterns. Returns binary32 bit patterns."""
        return self._call(x, w, "multiply")
