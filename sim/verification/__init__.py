"""Random programs for cores beside the C model, in a bench in C++, and the coverage of their Verilog."""
