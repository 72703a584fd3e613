"""Export of components as Verilog-2005."""
