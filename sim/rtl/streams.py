"""Simulation of one block on long streams of test vectors, one vector per cycle.

:class:`StreamedBlock` is fast: Verilator compiles the block together with a small C++ program, which processes some millions of
vectors a second. :func:`simulate_columns` uses Amaranth's simulator, with about a thousand vectors a second.
"""

import subprocess

import numpy as np
from amaranth.hdl import Module, Shape
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_tpu.hw.verilog.export import component_to_verilog

from .cpp_program import cpp_program
from .ports import simulate
from .runner import Simulation

__all__ = ["SideBySide", "StreamedBlock", "compile_block", "simulate_columns"]

# In each cycle, inputs change, outputs are sampled, and the clock rises. Row t of the output has the port values of cycle t.
_STREAM = """
#include <cstdio>
#include <vector>
#include "Vtop.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

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


def _ports(component):
    """Returns `(inputs, outputs)` of a component: lists of `(name, width)`, in the order of its signature."""
    ports = {"In": [], "Out": []}
    for path, member, _ in component.signature.flatten(component):
        name, width = "__".join(map(str, path)), Shape.cast(member.shape).width
        if width > 32:
            raise ValueError(f"port {name} is {width} bits wide; a vector holds 32")
        ports["In" if member.flow is In else "Out"].append((name, width))
    return ports["In"], ports["Out"]


def compile_block(component, main):
    """Compiles a component, as Verilator's class `Vtop`, and the C++ text `main` into a program. Returns the program's path.
    Raises ToolError."""
    return _compile(component_to_verilog(component, name="top"), main)


def _compile(verilog, main):
    return cpp_program(Simulation(simulator="verilator", verilog=verilog, top="top", public=()), main)


class SideBySide(wiring.Component):
    """A component that contains several components with shared inputs, so that they are simulated, or compiled, together.

    Parameters
    ----------
    components : dict
        Components with the same inputs, by name. Output `o` of the component named `a` becomes `o_a`.
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


class StreamedBlock:
    """A component compiled for long streams of test vectors. Ports of more than 32 bits are not supported.

    Parameters
    ----------
    component : wiring.Component
        Its flattened ports are the columns of the vectors.
    change : callable
        Function from the component's Verilog to the Verilog that is simulated. Default: no change.
    """

    def __init__(self, component, change=lambda verilog: verilog):
        self.inputs, self.outputs = _ports(component)
        verilog = change(component_to_verilog(component, name="top"))
        clocked = "posedge clk" in verilog
        main = _STREAM
        for key, value in {
            "INPUTS": len(self.inputs),
            "OUTPUTS": len(self.outputs),
            "RESET": "top.rst = 1; for (int i = 0; i < 4; i++) { top.clk = i & 1; top.eval(); } top.rst = 0;" if clocked else "",
            "SET": " ".join(f"top.{name} = i[{i}];" for i, (name, _) in enumerate(self.inputs)),
            "GET": " ".join(f"o[{i}] = top.{name};" for i, (name, _) in enumerate(self.outputs)),
            "LOW": "top.clk = 0;" if clocked else "",
            "HIGH": "top.clk = 1; top.eval();" if clocked else "",
        }.items():
            main = main.replace(f"@{key}@", str(value))
        self._program = _compile(verilog, main)

    def run(self, **columns):
        """Simulates the component. `columns` are inputs by name, with one value per cycle; other inputs are 0. Returns the
        outputs by name, with one value per cycle."""
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


def simulate_columns(component, **columns):
    """Computes :meth:`StreamedBlock.run` of a component in Amaranth's simulator. The component must not have nested ports."""
    cycles = max(map(len, columns.values()))
    inputs, outputs = _ports(component)
    found = {name: np.zeros(cycles, dtype=np.uint32) for name, _ in outputs}

    async def bench(ports, rng):
        ports.limit = cycles
        for cycle in range(cycles):
            ports.set(**{name: column[cycle] for name, column in columns.items()})
            await ports.settle()
            for name, values in found.items():
                values[cycle] = ports.get(name)
            await ports.tick()

    simulate(component, bench, seed=0)
    return found
