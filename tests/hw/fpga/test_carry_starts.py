"""Tests of the first cells of carry chains in Nexus netlists, by simulation with Yosys' models of the cells."""

import json
import re
from importlib.resources import files

import pytest

from amaranth_tpu.hw.fpga.carry_starts import free_carry_starts
from amaranth_tpu.hw.tools.run_tool import YOSYS
from amaranth_tpu.hw.tools.yosys import run_yosys
from amaranth_tpu.sim.rtl.simulators import run_icarus

DESIGN = "module top(input [5:0] a, b, input c, output [6:0] s);\n  assign s = a + b + c;\nendmodule\n"
BENCH = """
module bench;
  reg [12:0] i = 0;
  wire [6:0] s;
  integer bad = 0;
  top dut(.a(i[5:0]), .b(i[11:6]), .c(i[12]), .s(s));
  initial begin
    repeat (1170) begin
      #1 if (s !== 7'(i[5:0]) + 7'(i[11:6]) + 7'(i[12])) bad = bad + 1;
      i = i + 7;
    end
    $display("bad: %0d", bad);
  end
endmodule
"""


def models():
    """Returns Yosys' models of the carry cell and of its tables."""
    folder = files(YOSYS.replace("-", "_")) / "share" / "nexus"
    text = (folder / "cells_sim.v").read_text().replace('`include "parse_init.vh"', (folder / "parse_init.vh").read_text())
    text = re.sub(r"^\s*specify.*?endspecify", "", text, flags=re.M | re.S)
    names = ("CCU2", "LUT4_3", "LUT4", "VHI", "VLO")
    return "\n".join(re.search(rf"^module {name}\(.*?^endmodule", text, re.M | re.S)[0] for name in names)


def netlist():
    script = "read_verilog top.v; synth_nexus -noiopad -top top -json top.json"
    return json.loads(run_yosys(script, {"top.v": DESIGN}, "top.json", timeout=60))


@pytest.mark.slow
def test_carry_inputs_without_effect():
    """Without its first carry input, a chain with a carry adds right for a seventh of all operands. Unknown carries would be
    seen."""
    made = netlist()
    cells = made["modules"]["top"]["cells"]
    chain = [cell["connections"] for cell in cells.values() if cell["type"] == "CCU2"]
    assert free_carry_starts(made["modules"]["top"]) == 1
    assert sum(not cell["CIN"] for cell in chain) == 1 and len(chain) == 5
    verilog = run_yosys("read_json top.json; write_verilog -noattr fed.v", {"top.json": json.dumps(made)}, "fed.v", timeout=60)
    assert "bad: 0\n" in run_icarus(BENCH + verilog + models())
