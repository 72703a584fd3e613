// A board, module `top`, with its SDRAM chip. In the place of the delays of pins and wires, which are most of a cycle, the words
// that the chip sends reach the board half a cycle late.

module sdram_board #(
    parameter integer ROW_BITS = 13,
    parameter integer PERIOD = 10_000,  // ps of the clock
    parameter integer POWER_UP = 200_000
) (
    input  wire        clk25,
    input  wire        button,
    input  wire        uart_rx,
    output wire        uart_tx,
    output wire        led_0, led_1, led_2, led_3,
    output wire [31:0] errors
);
    wire clk, cke, cs_n, ras_n, cas_n, we_n;
    wire [1:0] ba, dqm, driven;
    wire [12:0] a;
    wire [15:0] dq, dq_chip;
    reg [15:0] dq_late;
    reg [1:0] driven_late = 0;

    always @(negedge clk) begin
        dq_late <= dq_chip;
        driven_late <= driven;
    end
    assign dq[7:0] = driven_late[0] ? dq_late[7:0] : 8'bz;
    assign dq[15:8] = driven_late[1] ? dq_late[15:8] : 8'bz;

    top top (
        .clk25(clk25), .button(button), .uart_rx(uart_rx), .uart_tx(uart_tx),
        .led_0(led_0), .led_1(led_1), .led_2(led_2), .led_3(led_3),
        .sdram_clk(clk), .sdram_clk_en(cke), .sdram_cs(cs_n), .sdram_ras(ras_n), .sdram_cas(cas_n), .sdram_we(we_n),
        .sdram_ba(ba), .sdram_a(a), .sdram_dqm(dqm), .sdram_dq(dq)
    );

    sdram_chip #(.ROW_BITS(ROW_BITS), .PERIOD(PERIOD), .POWER_UP(POWER_UP)) chip (
        .clk(clk), .cke(cke), .cs_n(cs_n), .ras_n(ras_n), .cas_n(cas_n), .we_n(we_n), .ba(ba), .a(a), .dqm(dqm),
        .dq_i(dq), .dq_o(dq_chip), .dq_oe(driven), .errors(errors), .refreshes(), .activations()
    );
endmodule
