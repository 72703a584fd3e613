"""From a core to an FPGA: synthesis, place and route, bitstream, and what is used of the part."""
