"""Verilog models of the ECP5 cells that netlists contain.

The models of lookup tables, carry chains, registers and distributed memory are from Yosys. Yosys has no models of the block
memory and the multiplier. The models here follow Lattice's usage guides FPGA-TN-02204 (memory) and FPGA-TN-02205 (sysDSP). They
stop the simulation if a parameter selects an unsupported mode.
"""

import re
from importlib.resources import files

from amaranth_tpu.hw.tools.run_tool import YOSYS

__all__ = ["block_models", "cell_models"]

#: Models taken from Yosys. Icarus cannot read the rest of the file that has them.
_YOSYS_HAS = ("LUT4", "LUT2", "PFUMX", "L6MUX21", "CCU2C", "TRELLIS_FF", "TRELLIS_DPR16X4")


def _ports(direction, name, width):
    return ", ".join(f"{direction} {name}{index}" for index in range(width))


def _bus(name, width):
    return "{" + ", ".join(f"{name}{index}" for index in reversed(range(width))) + "}"


def _assign(name, width, value):
    return "\n".join(f"    assign {name}{index} = {value}[{index}];" for index in range(width))


# A byte has 9 bits. A port of 1, 2 or 4 bits accesses a part of the lower 8 bits. A port of 18 or 36 bits enables each byte by
# one of the low bits of its address. With 36 bits, port A writes and port B reads, both through the data pins of both ports.
# Contents are unknown (x) until written. A byte that one port reads while the other writes it is unknown too, because a design
# must not rely on the device's behaviour in this case. The output register of a port has an enable of its own, `OCE`. The two
# halves of a wide port must have the same.
_DP16KD = """
module DP16KD({ports});
    parameter integer DATA_WIDTH_A = 18, DATA_WIDTH_B = 18;
    parameter REGMODE_A = "NOREG", REGMODE_B = "NOREG", RESETMODE = "SYNC", ASYNC_RESET_RELEASE = "SYNC", GSR = "ENABLED";
    parameter CSDECODE_A = "0b000", CSDECODE_B = "0b000", WRITEMODE_A = "NORMAL", WRITEMODE_B = "NORMAL";
    parameter CLKAMUX = "CLKA", CLKBMUX = "CLKB";
{initial}

    localparam wide = DATA_WIDTH_A == 36 || DATA_WIDTH_B == 36;
    reg [8:0] bytes [0:2047];
    reg [35:0] a_out, b_out;
    wire [13:0] a_address = {ada}, b_address = {adb};
    wire [35:0] a_in = {{{dib}, {dia}}}, b_in = {{18'b0, {dib}}};
    reg [35:0] a_kept = 0, b_kept = 0;
    wire [35:0] a_final = REGMODE_A == "OUTREG" ? a_kept : a_out, b_final = REGMODE_B == "OUTREG" ? b_kept : b_out;
    wire [35:0] out = wide ? DATA_WIDTH_B == 36 ? b_final : {{b_final[17:0], 18'b0}} : {{b_final[17:0], a_final[17:0]}};
    wire a_on = CEA & ~CSA0 & ~CSA1 & ~CSA2, b_on = CEB & ~CSB0 & ~CSB1 & ~CSB2;
{doa}
{dob}

    initial begin
        #1;
        if (wide && REGMODE_A != REGMODE_B || CSDECODE_A != "0b000" || CSDECODE_B != "0b000"
            || CLKAMUX != "CLKA" || CLKBMUX != "CLKB"
            || DATA_WIDTH_A != DATA_WIDTH_B && (DATA_WIDTH_A < 9 || DATA_WIDTH_B < 9)
            || RESETMODE == "ASYNC" && (RSTA !== 0 || RSTB !== 0)) begin
            $display("%m: a mode of DP16KD without a model");
            $finish;
        end
    end

    always @(posedge CLKB)
        if (wide && REGMODE_B == "OUTREG" && OCEA !== OCEB) begin
            $display("%m: the halves of a wide output register of DP16KD differ in their enable");
            $finish;
        end

    // Address of byte `index` of a port, and the first bit of that byte; and the enable of the byte.
    function [13:0] place(input [13:0] address, input integer width, input integer index);
        place = width < 9 ? address & ~(width - 1)
            : {{(width == 36 ? {{address[13:5], 2'b0}} : width == 18 ? {{address[13:4], 1'b0}} : address[13:3]) + index, 3'b0}};
    endfunction
    function enabled(input [13:0] address, input integer width, input integer index);
        enabled = width <= 9 ? 1'b1 : address[index];
    endfunction
    // 1 if a port may write the byte at address `there`.
    function writes(input on, input [13:0] address, input integer width, input [13:0] there);
        integer index;
        begin
            writes = 0;
            for (index = 0; 9 * index < width; index = index + 1)
                if (on !== 0 && enabled(address, width, index) !== 0 && place(address, width, index) === there) writes = 1;
        end
    endfunction
{a}{b}
endmodule
"""

_DP16KD_PORT = """
    localparam part_{p} = DATA_WIDTH_{P} < 9 ? DATA_WIDTH_{P} : 9;
    always @(posedge CLK{P}) begin : port_{p}
        integer index;
        reg [13:0] here;
        reg [35:0] held, put;
        for (index = 0; 9 * index < DATA_WIDTH_{P}; index = index + 1) begin
            here = place({p}_address, DATA_WIDTH_{P}, index);
            held[9 * index +: 9] = bytes[here[13:3]] >> here[2:0];
            if (writes({q}_on & WE{Q}, {q}_address, DATA_WIDTH_{Q}, here)) held[9 * index +: 9] = 9'bx;
            put[9 * index +: 9] = enabled({p}_address, DATA_WIDTH_{P}, index) ? {p}_in[9 * index +: 9] : held[9 * index +: 9];
            if ({p}_on && WE{P} && enabled({p}_address, DATA_WIDTH_{P}, index))
                bytes[here[13:3]][here[2:0] +: part_{p}] <= put[9 * index +: part_{p}];
        end
        if (RST{P}) {p}_kept <= 0;
        else if (OCE{P}) {p}_kept <= {p}_out;
        if (RST{P}) {p}_out <= 0;
        else if ({p}_on && !WE{P}) {p}_out <= held;
        else if ({p}_on && WRITEMODE_{P} == "WRITETHROUGH") {p}_out <= put;
        else if ({p}_on && WRITEMODE_{P} == "READBEFOREWRITE") {p}_out <= held;
    end
"""

_MULT18X18D = """
module MULT18X18D({ports});
    parameter REG_INPUTA_CLK = "NONE", REG_INPUTB_CLK = "NONE", REG_INPUTC_CLK = "NONE";
    parameter REG_PIPELINE_CLK = "NONE", REG_OUTPUT_CLK = "NONE", MULT_BYPASS = "DISABLED";

    wire signed [18:0] a = {{SIGNEDA & A17, {a}}}, b = {{SIGNEDB & B17, {b}}};
    wire signed [37:0] p = a * b;
{p}

    initial begin
        #1;
        if (REG_INPUTA_CLK != "NONE" || REG_INPUTB_CLK != "NONE" || REG_PIPELINE_CLK != "NONE" || REG_OUTPUT_CLK != "NONE"
            || MULT_BYPASS != "DISABLED" || SOURCEA !== 0 || SOURCEB !== 0) begin
            $display("%m: a mode of MULT18X18D without a model");
            $finish;
        end
    end
endmodule
"""


def cell_models():
    """Returns the Verilog text of all cell models."""
    yosys = files(YOSYS.replace("-", "_")) / "share" / "ecp5"
    text = "".join((yosys / name).read_text() for name in ("common_sim.vh", "ccu2c_sim.vh"))
    small = (re.search(rf"^module {name} ?\(.*?^endmodule$", text, re.M | re.S)[0] for name in _YOSYS_HAS)
    return "\n".join([*small, block_models()])


def block_models():
    """Returns the Verilog text of the models of block memory and multiplier."""
    pins = {port: [*((name + port, width) for name, width in (("DI", 18), ("AD", 14)))] for port in "AB"}
    ports = [_ports("input", name, width) for port in "AB" for name, width in pins[port]]
    ports += [_ports("output", f"DO{port}", 18) for port in "AB"]
    ports += ["input " + ", ".join(f"{name}{port}" for name in ("CE", "OCE", "CLK", "WE", "RST")) for port in "AB"]
    ports += [_ports("input", f"CS{port}", 3) for port in "AB"]
    memory = _DP16KD.format(
        ports=", ".join(ports),
        initial="\n".join(f"    parameter [319:0] INITVAL_{index:02X} = 0;" for index in range(64)),
        dia=_bus("DIA", 18),
        dib=_bus("DIB", 18),
        ada=_bus("ADA", 14),
        adb=_bus("ADB", 14),
        doa=_assign("DOA", 18, "out"),
        dob="\n".join(f"    assign DOB{index} = out[{18 + index}];" for index in range(18)),
        a=_DP16KD_PORT.format(p="a", P="A", q="b", Q="B"),
        b=_DP16KD_PORT.format(p="b", P="B", q="a", Q="A"),
    )
    multiplier = _MULT18X18D.format(
        ports=", ".join(
            [
                *(_ports("input", name, 18) for name in "ABC"),
                "input SIGNEDA, SIGNEDB, SOURCEA, SOURCEB",
                _ports("output", "P", 36),
            ]
        ),
        a=_bus("A", 18),
        b=_bus("B", 18),
        p=_assign("P", 36, "p"),
    )
    return memory + multiplier
