"""Tests of moving registers into the output of block RAMs, and of registers that must stay outside."""

import copy
import functools
import json

import pytest

from amaranth_tpu.hw.fpga import output_registers
from amaranth_tpu.hw.fpga.output_registers import take_in_output_registers
from amaranth_tpu.hw.tools.yosys import run_yosys
from amaranth_tpu.sim.rtl.ecp5_cells import cell_models
from amaranth_tpu.sim.rtl.simulators import run_icarus

CLK, OUT, NEXT, CE = 2, [10, 11], [20, 21], 30


def register(d, q, **connections):
    wires = {"CLK": [CLK], "DI": [d], "Q": [q], **connections}
    return {
        "type": "TRELLIS_FF",
        "connections": wires,
        "port_directions": {port: "output" if port == "Q" else "input" for port in (*wires, "CE", "LSR")},
        "parameters": {"CLKMUX": "CLK", "CEMUX": "CE" if "CE" in wires else "1 ", "REGSET": "RESET"},
    }


def module(**connections):
    wires = {"CLKA": [CLK], "CLKB": [CLK], "OCEA": ["1"], "OCEB": ["1"], "DOA0": [5], "DOB0": [OUT[0]], "DOB1": [OUT[1]]}
    memory = {
        "type": "DP16KD",
        "connections": wires,
        "port_directions": {port: "output" if port.startswith("DO") else "input" for port in (*wires, "RSTB")},
        "parameters": {"DATA_WIDTH_A": "10", "DATA_WIDTH_B": "10", "REGMODE_A": "NOREG", "REGMODE_B": "NOREG"},
    }
    cells = {"memory": memory, **{f"ff{i}": register(OUT[i], NEXT[i], **connections) for i in range(2)}}
    return {"cells": cells, "ports": {"q": {"bits": NEXT}}}


def widen(cells):
    cells["memory"]["parameters"]["DATA_WIDTH_B"] = f"{36:b}"


@pytest.mark.parametrize("connections, enable", [({}, "1"), ({"CE": [CE]}, CE), ({"LSR": ["0"]}, "1")])
def test_taken_in(connections, enable):
    design = module(**connections)
    assert take_in_output_registers(design) == 1
    assert list(design["cells"]) == ["memory"]
    memory = design["cells"]["memory"]
    assert (memory["connections"]["DOB0"], memory["connections"]["DOB1"]) == ([NEXT[0]], [NEXT[1]])
    assert memory["connections"]["OCEB"] == [enable]
    assert (memory["parameters"]["REGMODE_A"], memory["parameters"]["REGMODE_B"]) == ("NOREG", "OUTREG")


@pytest.mark.parametrize(
    "change",
    [
        lambda cells: cells["ff0"]["connections"].update(LSR=[40]),  # a reset
        lambda cells: cells["ff0"]["connections"].update(CLK=[3]),  # another clock
        lambda cells: cells["ff0"]["parameters"].update(CLKMUX="INV"),
        lambda cells: cells["ff0"]["parameters"].update(REGSET="SET"),
        lambda cells: (cells["ff0"]["parameters"].update(CEMUX="CE"), cells["ff0"]["connections"].update(CE=[CE])),  # one of two
        lambda cells: cells.update(other=register(OUT[1], 50)),  # another reader
        lambda cells: cells["ff1"].update(type="LUT4"),
        lambda cells: cells["memory"]["connections"].update(RSTB=[40]),  # a reset of the memory's outputs
        lambda cells: cells["memory"]["parameters"].update(CLKBMUX="INV"),
        lambda cells: cells["memory"]["parameters"].update(REGMODE_B="OUTREG"),  # it has a register already
        lambda cells: widen(cells) or cells.update(other=register(5, 50, CE=[CE])),  # two enables for one wide port
        lambda cells: widen(cells) or cells["memory"]["connections"].update(CLKA=[3]),
    ],
)
def test_left_alone(change):
    design = module()
    change(design["cells"])
    before = copy.deepcopy(design)
    assert take_in_output_registers(design) == 0 and design == before


def test_port_of_the_design():
    design = module()
    design["ports"]["raw"] = {"bits": [OUT[0]]}
    assert take_in_output_registers(design) == 0


# --- Netlists of Yosys, simulated ---------------------------------------------------------------------------------

#: Memories with registers behind them. `wide`: a port of 32 bits, with an enable. `narrow`: 16 bits, always enabled. `seen`: its
#: output is also read before the register.
DESIGN = """
module dut(input clk, write, read, enable, input [8:0] to, from, input [31:0] data,
           output reg [31:0] wide = 0, output reg [15:0] narrow = 0, output reg [15:0] seen = 0, output parity);
    (* no_rw_check *) reg [31:0] wide_words [0:511];
    (* no_rw_check *) reg [15:0] narrow_words [0:511], seen_words [0:511];
    reg [31:0] wide_read;
    reg [15:0] narrow_read, seen_read;
    assign parity = ^seen_read;
    always @(posedge clk) begin
        if (write) begin
            wide_words[to] <= data;
            narrow_words[to] <= data[15:0];
            seen_words[to] <= data[31:16];
        end
        if (read) wide_read <= wide_words[from];
        narrow_read <= narrow_words[from];
        seen_read <= seen_words[from];
        if (enable) wide <= wide_read;
        narrow <= narrow_read;
        seen <= seen_read;
    end
endmodule
"""
_BENCH = """
module bench;
    reg clk = 0, write, read, enable;
    reg [8:0] to, from;
    reg [31:0] data;
    wire [64:0] a, b;
    original x(clk, write, read, enable, to, from, data, a[31:0], a[47:32], a[63:48], a[64]);
    moved y(clk, write, read, enable, to, from, data, b[31:0], b[47:32], b[63:48], b[64]);
    integer cycle, seed = {seed}, differ = 0, known = 0;
    initial begin
        for (cycle = 0; cycle < 4000; cycle = cycle + 1) begin
            {{write, read, enable}} = $random(seed);
            {{to, from}} = $random(seed) & {{2{{9'h1f}}}};
            data = $random(seed);
            if (to == from) write = 0;
            #5 clk = 1;
            #5 clk = 0;
            differ = differ + (a !== b);
            known = known + (^a !== 1'bx);
        end
        $display("%0d differ, %0d known", differ, known);
        $finish;
    end
endmodule
"""


@functools.cache
def netlist():
    script = "read_verilog -sv dut.v\nsynth_ecp5 -nowidelut -top dut -json dut.json\n"
    return run_yosys(script, {"dut.v": DESIGN}, "dut.json", timeout=300)


def to_verilog(**netlists):
    """Returns the Verilog of netlists as JSON, by the new name of each module."""
    script = "".join(f"read_json {name}.json\nrename dut {name}\ndesign -stash {name}\n" for name in netlists) + "".join(
        f"design -copy-from {name} {name}\n" for name in netlists
    )
    script += "write_verilog -noattr both.v\n"
    return run_yosys(script, {f"{name}.json": text for name, text in netlists.items()}, "both.v", timeout=300)


def simulate(seed):
    """Moves the registers of `DESIGN` and simulates both netlists.

    Returns the number of memories that use their output registers, the cycles in which the netlists differ, and the cycles
    without unknown bits.
    """
    after = json.loads(netlist())
    memories = take_in_output_registers(after["modules"]["dut"])
    texts = to_verilog(original=netlist(), moved=json.dumps(after))
    models = cell_models().partition("module MULT18X18D(")[0]  # it stops the simulation of a design without multipliers
    output = run_icarus(models + texts + _BENCH.format(seed=seed))
    differ, known = (int(part.split()[0]) for part in output.strip().splitlines()[-1].split(","))
    return memories, differ, known


def test_same_outputs_in_every_cycle(seed):
    memories, differ, known = simulate(seed)
    assert memories == 2 and differ == 0 and known > 3000


@pytest.mark.slow
def test_a_wrong_enable_is_noticed(seed, monkeypatch):
    monkeypatch.setattr(output_registers, "_enable", lambda cell: "1")
    assert simulate(seed)[1] > 100
