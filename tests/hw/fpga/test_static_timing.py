"""Tests of the static timing analysis, on netlists whose longest paths are known by construction."""

import json

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.fpga.implement import implement
from amaranth_tpu.hw.fpga.netlist import BlockHierarchy
from amaranth_tpu.hw.fpga.scan_chain import on_scan_chain
from amaranth_tpu.hw.fpga.static_timing import worst_paths
from amaranth_tpu.hw.fpga.synthesis import SynthesisError, synthesize
from amaranth_tpu.hw.fpga.targets import find_target
from netlists import VERILOG

LAYOUT = BlockHierarchy(VERILOG, "top")
WIRE = 0.7  # ns, of a wire with one reader inside a block
CORE = "system.core"


class _Cells:
    """A flat netlist in Yosys' JSON. Each method adds a cell and returns the net of its output."""

    def __init__(self):
        self.cells, self.nets = {}, 1

    def add(self, name, kind, inputs, output, **parameters):
        self.nets += 1
        ports = {port: [bit] for port, bit in inputs.items()} | {output: [self.nets]}
        directions = {port: "output" if port == output else "input" for port in ports}
        self.cells[name] = {"type": kind, "parameters": parameters, "port_directions": directions, "connections": ports}
        return self.nets

    def register(self, name, data="0"):
        return self.add(f"{name}_TRELLIS_FF_Q", "TRELLIS_FF", {"CLK": 1, "DI": data}, "Q")

    def lut(self, name, *inputs):
        return self.add(f"{name}_LUT4_Z", "LUT4", dict(zip("ABCD", inputs)), "Z")

    def paths(self, **options):
        return worst_paths({"cells": self.cells}, LAYOUT, **options)


def test_the_longest_chain_between_two_blocks():
    """The path has the cells of the longest chain, its blocks in order, and the names of its registers in the design."""
    cells = _Cells()
    first = cells.register(f"{CORE}.array.x")
    short = cells.register(f"{CORE}.array.y")
    net = first
    for index in range(3):
        net = cells.lut(f"{CORE}.busy_{index}", net, *([short] if index == 2 else []))
    cells.register(f"{CORE}.memory.z", net)
    (path,) = cells.paths()
    assert (path["from_block"], path["to_block"], path["luts"], path["carries"]) == ("array", "system.core.memory", 3, 0)
    assert (path["from"], path["to"], path["through"]) == ("array.x", "memory.z", ["tpu"])
    # By hand: clock to output 0.53; four wires with one reader each; three LUTs, 0.24; two borders of blocks, among 7 cells.
    assert path["delay_ns"] == pytest.approx(0.53 + 4 * WIRE + 3 * 0.24 + 2 * 0.4 * (7 / 17_000) ** 0.5, abs=0.01)


def test_wires_between_blocks_are_longer_in_larger_designs():
    """A wire between two blocks takes 0.4 ns more among 17,000 cells, and twice as much among four times as many."""
    for others, more in ((0, 0.0), (16_998, 0.4), (67_998, 0.8)):
        cells = _Cells()
        cells.register("system.bridge.y", cells.register(f"{CORE}.array.x"))
        for index in range(others):
            cells.add(f"system.bridge.pad_{index}", "PAD", {}, "O")
        assert cells.paths()[0]["delay_ns"] == pytest.approx(0.53 + WIRE + more, abs=0.01)


def test_wires_with_more_readers_are_slower():
    cells = _Cells()
    net = cells.register(f"{CORE}.array.x")
    for index in range(4):
        cells.register(f"{CORE}.array.y_{index}", net)
    assert cells.paths()[0]["delay_ns"] == pytest.approx(0.53 + WIRE + 2 * 0.1, abs=0.01)


def test_a_carry_chain_counts_once():
    """Carries between the cells of a chain have no wires in the estimate, and the chain is one step of the path."""
    cells = _Cells()
    carry = cells.add("system.bridge.a0", "CCU2C", {"A0": cells.register("system.bridge.x")}, "COUT")
    for index in range(3):
        carry = cells.add(f"system.bridge.b{index}", "CCU2C", {"CIN": carry}, "COUT")
    cells.register("system.bridge.y", cells.add("system.bridge.c", "CCU2C", {"CIN": carry}, "S1"))
    (path,) = cells.paths()
    assert (path["luts"], path["carries"]) == (0, 1)
    assert path["delay_ns"] == pytest.approx(0.53 + WIRE + 0.45 + 3 * 0.08 + 0.45 + WIRE)


@pytest.mark.parametrize("mode, delay", [("NOREG", 5.83), ("OUTREG", 0.98)])
def test_a_block_ram_begins_a_path(mode, delay):
    cells = _Cells()
    data = cells.add("system.memory.0.0", "DP16KD", {"CLKA": 1, "ADA0": "0"}, "DOA0", REGMODE_A=mode)
    cells.register("system.bridge.y", data)
    (path,) = cells.paths()
    assert (path["from_block"], path["delay_ns"]) == ("memory", pytest.approx(delay + WIRE, abs=0.01))


def test_one_path_for_each_pair_of_blocks_slowest_first():
    cells = _Cells()
    start = cells.register("system.bridge.x")
    near, far = cells.lut("system.bridge.a", start), cells.lut("system.bridge.c", cells.lut("system.bridge.b", start))
    cells.register("system.bridge.y", near)
    cells.register("system.memory.y", far)
    cells.register("system.memory.z", near)
    assert [(path["to_block"], path["luts"]) for path in cells.paths()] == [("memory", 2), ("bridge", 1)]
    assert [path["to_block"] for path in cells.paths(most=1)] == ["memory"]


def test_other_families_are_refused(tmp_path):
    with pytest.raises(SynthesisError, match="^ice40-up5k: --paths analyses only ECP5 parts; leave out --paths"):
        implement(Config(n=2), find_target("ice40-up5k"), tmp_path, paths=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_paths_of_a_synthesized_design(tmp_path):
    """In a design made by Yosys, the slowest path is the 24-bit sum of one block's register, which ends in the other block."""
    core = """
module tpu_source (input wire clk, input wire [23:0] a, output reg [23:0] x);
  always @(posedge clk) x <= a;
endmodule
module tpu_sum (input wire clk, input wire [23:0] x, output reg [23:0] y);
  always @(posedge clk) y <= y + x;
endmodule
module tpu (
  input  wire aclk,
  input  wire [23:0] a,
  output wire [23:0] y
);
  wire [23:0] x;
  tpu_source source (
    .clk(aclk), .a(a), .x(x)
  );
  tpu_sum sum (
    .clk(aclk), .x(x), .y(y)
  );
endmodule
"""
    target = find_target("ecp5-25")
    *_, layout = synthesize(core + on_scan_chain(core), target, tmp_path, top="top", flat=True)
    module = json.loads((tmp_path / "netlist.json").read_text())["modules"]["top"]
    assert not {path.name for path in tmp_path.iterdir()} & {"mapped.json", "mapped.json.partial"}
    paths = worst_paths(module, layout)
    by_ends = {(path["from_block"], path["to_block"]): path for path in paths}
    assert by_ends["source", "sum"]["carries"] == 1 and by_ends["source", "sum"]["to"] == "sum.y"
    assert by_ends["top", "source"]["luts"] == by_ends["top", "source"]["carries"] == 0
    assert {paths[0]["to_block"], paths[1]["to_block"]} == {"sum"}
