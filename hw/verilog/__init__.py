"""From a component to Verilog-2005."""
