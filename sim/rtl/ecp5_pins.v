// Simulation models of the ECP5's registers and clock outputs in pins, without delays.

module OFS1P3DX (input wire SCLK, input wire SP, input wire CD, input wire D, output reg Q);
    initial Q = 0;
    always @(posedge SCLK) if (SP) Q <= D;
endmodule

module OFS1P3BX (input wire SCLK, input wire SP, input wire PD, input wire D, output reg Q);
    initial Q = 1;
    always @(posedge SCLK) if (SP) Q <= D;
endmodule

module IFS1P3DX (input wire SCLK, input wire SP, input wire CD, input wire D, output reg Q);
    initial Q = 0;
    always @(posedge SCLK) if (SP) Q <= D;
endmodule

module ODDRX1F (input wire SCLK, input wire RST, input wire D0, input wire D1, output wire Q);
    assign Q = SCLK ? D0 : D1;
endmodule
