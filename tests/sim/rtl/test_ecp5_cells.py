"""Tests of the simulation models of ECP5 cells against the source of the netlist."""

from amaranth_tpu.hw.tools.yosys import run_yosys
from amaranth_tpu.sim.rtl.ecp5_cells import cell_models
from amaranth_tpu.sim.rtl.simulators import run_icarus

_DESIGN = """
module {name}(
    input clk, write, input [13:0] to, from, input [3:0] data, output reg [3:0] four, output reg [1:0] two, output reg one
);
    reg [3:0] fours [0:4095];
    reg [1:0] twos [0:8191];
    reg ones [0:16383];
    always @(posedge clk) begin
        if (write) begin
            fours[to[13:2]] <= data;
            twos[to[13:1]] <= data[1:0];
            ones[to] <= data[0];
        end
        four <= fours[from[13:2]];
        two <= twos[from[13:1]];
        one <= ones[from];
    end
endmodule
"""
_BENCH = """
module bench;
    reg clk = 0, write;
    reg [13:0] to, from;
    reg [3:0] data;
    wire [6:0] a, b;
    source x(clk, write, to, from, data, a[6:3], a[2:1], a[0]);
    netlist y(clk, write, to, from, data, b[6:3], b[2:1], b[0]);
    integer cycle, seed = {seed}, differ = 0, known = 0;
    initial begin
        for (cycle = 0; cycle < 3000; cycle = cycle + 1) begin
            to = $random(seed) & 14'h300f;
            from = $random(seed) & 14'h300f;
            data = $random(seed);
            write = to[13:2] != from[13:2];
            #5 clk = 1;
            #5 clk = 0;
            differ = differ + (^a !== 1'bx && a !== b);
            known = known + (^a !== 1'bx);
        end
        $display("%0d %0d", differ, known);
        $finish;
    end
endmodule
"""


def test_block_memories_of_one_two_and_four_bits(seed):
    source = _DESIGN.format(name="source")
    script = "read_verilog -sv source.v\nsynth_ecp5 -top source\nrename source netlist\nwrite_verilog -noattr netlist.v\n"
    netlist = run_yosys(script, {"source.v": source}, "netlist.v", timeout=300)
    assert all(f".DATA_WIDTH_A(32'd{bits})" in netlist for bits in (1, 2, 4))
    models = cell_models().partition("module MULT18X18D(")[0]  # it stops the simulation of a design without multipliers
    differ, known = map(int, run_icarus(models + source + netlist + _BENCH.format(seed=seed)).split()[-2:])
    assert differ == 0 and known > 1500
