"""External tools: their processes, Yosys and nextpnr from PyPI, and the folder and locks of generated files."""
