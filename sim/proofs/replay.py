"""Replay of a counterexample: simulation of a circuit's Verilog in Icarus with given inputs."""

from amaranth_tpu.hw.tools.yosys import run_yosys
from amaranth_tpu.hw.verilog.export import component_to_rtlil

from ..rtl.simulators import run_icarus

__all__ = ["replay"]

_SCRIPT = """
read_rtlil design.il
hierarchy -check -top dut
proc
flatten
opt_clean
{changes}
write_verilog -sv -noattr design.v
"""

_BENCH = """
`timescale 1ns/1ns
module bench;
    reg clk = 0;
{declarations}
    dut dut({connections});
    initial begin
{steps}
        $finish;
    end
endmodule
"""


def replay(circuit, columns):
    """Simulates a :class:`sim.proofs.smt.Circuit` with the given inputs, and returns its outputs. Raises ToolError if Icarus is
    missing or fails.

    Parameters
    ----------
    columns : dict
        Inputs by name: a list of ints, one per cycle.

    Returns
    -------
    dict
        Outputs by name: a list of ints, one per cycle and one after the last cycle. None if a bit is unknown.
    """
    files = {"design.il": component_to_rtlil(circuit.component, name="dut")}
    design = run_yosys(_SCRIPT.format(changes=circuit.changes), files, "design.v", timeout=120)
    declarations = [f"    reg [{width - 1}:0] {name} = 0;" for name, width in circuit.inputs.items()]
    declarations += [f"    wire [{width - 1}:0] {name};" for name, width in circuit.outputs.items()]
    show = f'        #1 $display("{" ".join(["%b"] * len(circuit.outputs))}", {", ".join(circuit.outputs)});'
    steps = []
    for values in zip(*columns.values()):
        steps += [f"        {name} = {circuit.inputs[name]}'d{value};" for name, value in zip(columns, values)]
        steps += [show, "        clk = 1;", "        #1 clk = 0;"]
    ports = ["clk", *circuit.inputs, *circuit.outputs]
    bench = _BENCH.format(
        declarations="\n".join(declarations),
        connections=", ".join(f".{name}({name})" for name in ports),
        steps="\n".join([*steps, show]),
    )
    rows = [
        [None if set(word) - {"0", "1"} else int(word, 2) for word in line.split()]
        for line in run_icarus(design + bench).splitlines()
        if line and line[0] in "01xz"
    ]
    return {name: [row[index] for row in rows] for index, name in enumerate(circuit.outputs)}
