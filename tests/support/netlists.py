"""Texts of netlists, for tests of their parsers."""

#: A board around a core, as Yosys writes it.
VERILOG = """
module tpu_array_row (input wire clk);
endmodule
module tpu_array (input wire clk);
  tpu_array_row row_0 (
    .clk(clk)
  );
  tpu_array_row row_1 (
    .clk(clk)
  );
endmodule
module tpu_memory(clk);
endmodule
module tpu (
  input  wire clk
);
  tpu_array array (
    .clk(clk)
  );
  tpu_memory memory (
    .clk(clk)
  );
endmodule
module system (input wire clk);
  bridge bridge (
    .clk(clk)
  );
  ram memory (
    .clk(clk)
  );
  tpu core (
    .clk(clk)
  );
endmodule
module bridge (input wire clk);
endmodule
module ram (input wire clk);
endmodule
module top (input wire clk);
  EHXPLLL pll (
    .CLKI(clk)
  );
  system system (
    .clk(clk)
  );
endmodule
"""
