"""FPGA implementation of a core: synthesis, place and route, bitstream, and utilisation of the part."""
