// An SDRAM chip with the registers at the pins that `hw/boards/sdram_commands.py` expects: for a bench of its blocks. The chip's
// clock is inverted.

module sdram_pins #(
    parameter integer ROW_BITS = 13,
    parameter integer COLUMN_BITS = 9,
    parameter integer PERIOD = 10_000,
    parameter integer POWER_UP = 200_000,
    parameter integer T_WR = 14
) (
    input  wire        clk,
    input  wire [2:0]  command,     // RAS, CAS, WE
    input  wire [1:0]  ba,
    input  wire [12:0] a,
    input  wire [1:0]  dqm,
    input  wire [15:0] dq_o,
    input  wire        dq_oe,
    output reg  [15:0] dq_i,
    output wire [31:0] errors,
    output wire [31:0] refreshes,
    output wire [31:0] activations
);
    reg [2:0] command_pin = 0;
    reg [1:0] ba_pin = 0, dqm_pin = 0;
    reg [12:0] a_pin = 0;
    reg [15:0] dq_pin = 0, dq_fell = 0;
    reg oe_pin = 0;
    wire [15:0] dq_chip;
    wire [1:0] driven;
    wire [15:0] dq = {driven[1] ? dq_chip[15:8] : oe_pin ? dq_pin[15:8] : 8'bx, driven[0] ? dq_chip[7:0] : oe_pin ? dq_pin[7:0] : 8'bx};

    always @(posedge clk) begin
        command_pin <= command; ba_pin <= ba; a_pin <= a; dqm_pin <= dqm; dq_pin <= dq_o; oe_pin <= dq_oe;
        dq_i <= dq_fell;
    end
    always @(negedge clk) dq_fell <= dq;

    sdram_chip #(
        .ROW_BITS(ROW_BITS), .COLUMN_BITS(COLUMN_BITS), .PERIOD(PERIOD), .POWER_UP(POWER_UP), .T_WR(T_WR)
    ) chip (
        .clk(~clk), .cke(1'b1), .cs_n(1'b0), .ras_n(~command_pin[0]), .cas_n(~command_pin[1]), .we_n(~command_pin[2]),
        .ba(ba_pin), .a(a_pin), .dqm(dqm_pin), .dq_i(oe_pin ? dq_pin : 16'bx), .dq_o(dq_chip), .dq_oe(driven),
        .errors(errors), .refreshes(refreshes), .activations(activations)
    );
endmodule
