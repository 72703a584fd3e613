# amaranth: UnusedElaboratable=no
"""Tests of the table of a cell's size and speed, covering the scan chain around a cell, the parsed counts, and a cell that does
not fit."""

import json

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from typer.testing import CliRunner

from amaranth_tpu.hw.array.cell import Cell
from amaranth_tpu.hw.fpga.netlist import count_cells
from amaranth_tpu.hw.fpga.scan_chain import on_scan_chain
from amaranth_tpu.hw.fpga.targets import FAMILIES
from amaranth_tpu.hw.spec.cell_stages import STAGES
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.scripts import cell_table
from amaranth_tpu.scripts.cell_table import fmax, rows, synthesize_cell
from amaranth_tpu.sim.rtl.simulators import run_icarus
from command import refused

LEAST_MHZ = {5: 110, STAGES[-1]: 150}


class Sum(wiring.Component):
    a: In(3)
    b: In(3)
    o: Out(4)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(self.a + self.b)
        return m


_BENCH = """
module bench;
  reg clk = 0, scan_i = 0, load = 0;
  wire scan_o;
  reg [6:0] inputs = {3'd6, 3'd5, 1'b0};    // b, a, rst
  integer i;
  top top(.clk(clk), .scan_i(scan_i), .load(load), .scan_o(scan_o));
  task tick; begin #1 clk = 1; #1 clk = 0; #1; end endtask
  initial begin
    for (i = 6; i >= 0; i = i - 1) begin scan_i = inputs[i]; tick; end
    tick;
    load = 1; tick; load = 0;
    for (i = 0; i < 4; i = i + 1) begin $write("%b", scan_o); tick; end
    $finish;
  end
endmodule
"""


def test_scan_chain():
    """Inputs shifted into the scan chain (last bit first) reach the block, and its outputs are shifted out: 5 + 6 gives 11."""
    verilog = component_to_verilog(Sum(), name="sum")
    printed = run_icarus(verilog + on_scan_chain(verilog, "sum", "clk") + _BENCH)
    assert int(printed.split()[0], 2) == 11


def test_count():
    kinds = ["LUT4", "LUT4", "CCU2C", "TRELLIS_FF", "MULT18X18D", "LUT4", "$scopeinfo"]
    assert count_cells([{"type": kind} for kind in kinds], FAMILIES["ecp5"].cells) == {"lut": 5, "ff": 1, "dsp": 1, "bram": 0}
    assert count_cells([], FAMILIES["ecp5"].cells) == {"lut": 0, "ff": 0, "dsp": 0, "bram": 0}


def check_sizes(stages):
    netlists = (json.loads(synthesize_cell(Cell(stages=stages), dsp=dsp))["modules"] for dsp in (True, False))
    lut, without = (count_cells(modules["tpu_cell"]["cells"].values(), FAMILIES["ecp5"].cells) for modules in netlists)
    assert lut["lut"] <= 560 and lut["dsp"] == 1 and without["lut"] <= 700 and without["dsp"] == 0


@pytest.mark.slow
def test_size():
    check_sizes(5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages", [pytest.param(1, marks=pytest.mark.xfail(strict=True, reason="564 LUT, four more than asked")), *STAGES[1:]]
)
def test_sizes(stages):
    check_sizes(stages)


@pytest.mark.slow
@pytest.mark.parametrize("stages", LEAST_MHZ)
def test_clock(stages):
    (figure,) = cell_table.measure([stages], range(1, 6))
    assert max(figure["fmax_mhz"], figure["fmax_moved_mhz"] or 0) >= LEAST_MHZ[stages]


def test_rows():
    figure = dict(stages=5, lead=1, latency=4, lut=516, ff=289, dsp=1, lut_without_dsp=650, fmax_without_dsp_mhz=99.6)
    figure |= dict(fmax_mhz=118.06, fmax_of_seeds=[118.06], fmax_moved_mhz=121.6)
    assert "\n| 5 | 1 | 4 | 516 | 289 | 1 | 118 | 122 | 650 | 100 |\n" in rows([figure])


@pytest.mark.slow
def test_nextpnr_fails():
    with pytest.raises(ToolError, match="nextpnr-ecp5 stopped with status"):
        fmax("not a netlist", 1)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--stages", "0"], "0 is not one of"),
        (["--stages", "three"], "not a list of numbers"),
        (["--seeds", "0"], "0 is not one of"),
        (["--write", "--stages", "5"], "--write needs all"),
    ],
)
def test_rejects(options, words):
    result = CliRunner().invoke(cell_table.app, options)
    assert result.exit_code == 2 and words in result.output


def test_a_tool_that_fails_is_one_line(command, monkeypatch):
    def stopped(*_):
        raise ToolError("nextpnr-ecp5 did not end within 600 s")

    monkeypatch.setattr(cell_table, "measure", stopped)
    refused(command("--stages", "5", main=cell_table.main), "nextpnr-ecp5 did not end within 600 s")
