// Simulation model of the ECP5's PLL: passes the clock through, inverted at CLKOS2, and asserts lock after some time.
module EHXPLLL #(
    parameter CLKI_DIV = 1, CLKFB_DIV = 1, FEEDBK_PATH = "CLKOP",
    parameter CLKOP_ENABLE = "ENABLED", CLKOP_DIV = 8, CLKOP_CPHASE = 0, CLKOP_FPHASE = 0,
    parameter CLKOS_ENABLE = "DISABLED", CLKOS_DIV = 8, CLKOS_CPHASE = 0, CLKOS_FPHASE = 0,
    parameter CLKOS2_ENABLE = "DISABLED", CLKOS2_DIV = 8, CLKOS2_CPHASE = 0, CLKOS2_FPHASE = 0,
    parameter OUTDIVIDER_MUXA = "DIVA", OUTDIVIDER_MUXB = "DIVB", OUTDIVIDER_MUXC = "DIVC", OUTDIVIDER_MUXD = "DIVD",
    parameter PLLRST_ENA = "DISABLED", INTFB_WAKE = "DISABLED", STDBY_ENABLE = "DISABLED", DPHASE_SOURCE = "DISABLED"
) (
    input wire CLKI, input wire CLKFB, output wire CLKOP, output wire CLKOS, output wire CLKOS2, output wire LOCK,
    input wire RST, input wire STDBY, input wire PHASESEL0, input wire PHASESEL1, input wire PHASEDIR, input wire PHASESTEP,
    input wire PHASELOADREG, input wire PLLWAKESYNC, input wire ENCLKOP, input wire ENCLKOS
);
    reg [3:0] cycles = 0;
    always @(posedge CLKI) if (!LOCK) cycles <= cycles + 1;
    assign LOCK = &cycles;
    assign CLKOP = CLKI, CLKOS = CLKI, CLKOS2 = ~CLKI;
endmodule
